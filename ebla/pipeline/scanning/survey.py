"""Surveying a table before a scan: which sources have records where, as the planner wants to know it.

    METADATA + memory  --sources_of-->  sources with one span each           no file is opened
                       --refine----->  those that meet others, block by block  their footers, and rows of small ones

Most fragments of a settled table meet no other: for them METADATA says enough. Where fragments overlap, the large ones
are divided at their blocks, and the rows of the small ones (corrections, mostly) are looked at, so that a few
scattered rows make a few blocks dirty and not everything between the first and the last of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ebla.direct.fragments import ROW, Block, Fragment
from ebla.direct.views import Erasure, Reader, TableView, check_history
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange, successor
from ebla.model.schema import GroupSchema
from ebla.pipeline.scanning.stretches import Source, Span, cut_rows, mixed_sources

__all__ = ["Survey", "survey"]

# Rows of sources up to this size are looked at one by one, as long as all of them together are not too many.
FINE_RECORDS_MAX = 262_144
FINE_RECORDS_ALL_MAX = 2_097_152
FINE_WHOLE_MAX = 16_384
MARKS_MAX = 4_096
MEMORY_STRIDE = 1_024


@dataclass(frozen=True, slots=True)
class Survey:
    """What a scan meets: sources, what each of them is, and range erasures with the groups they hide in."""

    sources: tuple[Source, ...]
    origins: tuple[FragmentRef | Block, ...]
    erasures: tuple[tuple[int, Erasure], ...]


def survey(
    view: TableView,
    reader: Reader,
    projection: Projection,
    key_range: KeyRange,
    as_of: int,
    native_groups: Collection[int] = (),
) -> Survey:
    """Return what a scan meets. Fragments of `native_groups` may be read by Spark itself where they are alone."""
    found = sources_of(view, projection, key_range, as_of, native_groups)
    mixed = sorted(mixed_sources(found.sources, found.erasures))
    return replace(found, sources=refine(found, mixed, reader, projection))


# --- from METADATA and memory ----------------------------------------------------------------------


def sources_of(
    view: TableView, projection: Projection, key_range: KeyRange, as_of: int, native_groups: Collection[int]
) -> Survey:
    """Return what may have records at `as_of` in a range, each with one span."""
    sources: list[Source] = []
    origins: list[FragmentRef | Block] = []
    erasures: list[tuple[int, Erasure]] = []
    tablets = list(view.tablets_in(key_range))
    for group in projection.groups:
        shares: dict[FragmentRef, list[KeyRange]] = defaultdict(list)
        for tablet, share in tablets:
            state = tablet.group(group.id)
            check_history(state, as_of)
            for ref in state.fragments:
                counted = ref.within(share)
                if ref.is_read_at(as_of) and counted is not None:
                    shares[ref].append(counted)
            known: list[Erasure] = [*state.erasures, *view.memory_of(tablet.id, group.id).erasures]
            erasures += [
                (group.id, _Hidden(part.first, part.last, erasure.txn))
                for erasure in known
                if erasure.txn <= as_of and (part := share.intersect(KeyRange(erasure.first, erasure.last))) is not None
            ]
        for ref, own in shares.items():
            span = Span(ref.first, successor(ref.last), ref.rows, ref.bytes)
            is_native = group.id in native_groups and reads_as_it_is(ref, projection, group, as_of)
            source = Source(group.id, (span,), _joined(own), ref.txn_min, ref.txn_max, ref.file, is_native)
            sources.append(replace(source, cleared_txn=ref.cleared_txn))
            origins.append(ref)
        for tablet, share in tablets:
            for block in view.memory_of(tablet.id, group.id).blocks:
                if block.txn_min <= as_of:
                    span = Span(block.first, successor(block.last), len(block), block.bytes)
                    sources.append(Source(group.id, (span,), (share,), block.txn_min, block.txn_max))
                    origins.append(block)
    return Survey(tuple(sources), tuple(origins), tuple(erasures))


@dataclass(frozen=True, slots=True)
class _Hidden:
    """A range erasure as far as one tablet knows it."""

    first: bytes
    last: bytes | None
    txn: int


def reads_as_it_is(ref: FragmentRef, projection: Projection, group: GroupSchema, as_of: int) -> bool:
    """Tell whether the rows of a fragment, where no other has any, are what a reader at `as_of` sees.

    A record that sets only some columns has nulls in the others, and so does a file that lacks a column: which is what
    a reader sees where nothing older is. Spark finds columns by name, so the file must be younger than their names.
    """
    wanted = [group.column_by_id[output.field_id] for output in projection.outputs if output.group.id == group.id]
    return (
        ref.unique
        and not ref.has_erasures
        and ref.txn_max <= as_of
        and ref.columns is None
        and ref.families is None
        and all(c.named_since <= ref.schema_version >= c.typed_since for c in (*projection.schema.key, *wanted))
    )


def _joined(shares: Sequence[KeyRange]) -> tuple[KeyRange, ...]:
    """Join ranges in order that follow one another without a gap."""
    joined = [shares[0]]
    for share in shares[1:]:
        if joined[-1].last == share.first:
            joined[-1] = KeyRange(joined[-1].first, share.last)
        else:
            joined.append(share)
    return tuple(joined)


# --- from files ------------------------------------------------------------------------------------


def refine(found: Survey, mixed: Collection[int], reader: Reader, projection: Projection) -> tuple[Source, ...]:
    """Return the sources, with those numbered in `mixed` divided into spans that have records."""
    sources = list(found.sources)
    fragments = {n: reader.fragment(ref) for n in mixed if isinstance(ref := found.origins[n], FragmentRef)}
    memory = {n: block for n in mixed if isinstance(block := found.origins[n], Block)}
    spans = {n: block_spans(fragment, sources[n]) for n, fragment in fragments.items()}
    marks = _marks([span.first for own in spans.values() for span in own], memory.values())
    for n, fragment in fragments.items():
        sources[n] = replace(sources[n], is_whole=sets_all(found.origins[n], fragment, sources[n].group, projection))
    # Where many whole rows lie over others, it does not matter whether that is here and there or everywhere.
    worth_a_look = [n for n in mixed if not sources[n].is_whole or sources[n].spans[0].records <= FINE_WHOLE_MAX]
    for n in _fine({n: sources[n].spans[0].records for n in worth_a_look}):
        rows = memory[n].rows.to_pylist() if n in memory else _rows_of(fragments[n])
        spans[n] = cut_rows(rows, marks, sources[n].spans[0].bytes)
    return tuple(replace(source, spans=spans[n]) if n in spans else source for n, source in enumerate(sources))


def sets_all(origin: FragmentRef | Block, fragment: Fragment, group: int, projection: Projection) -> bool:
    """Tell whether every record of a fragment sets every column that is asked for.

    A record that does not say what it sets sets the columns that its file has, and these need not be all.
    """
    wanted = {str(field_id) for field_id in projection.types.get(group, ())}
    return not origin.has_partial and wanted <= fragment.names


def _fine(records: Mapping[int, int]) -> set[int]:
    """Choose the sources whose rows are worth a look: the small ones."""
    chosen, together = set(), 0
    for n, count in sorted(records.items(), key=lambda item: item[1]):
        together += count
        if count > FINE_RECORDS_MAX or together > FINE_RECORDS_ALL_MAX:
            break
        chosen.add(n)
    return chosen


def block_spans(fragment: Fragment, source: Source) -> tuple[Span, ...]:
    """Return a span for every block of a fragment, each up to the next, as the footer tells them."""
    bounds = [*fragment.first_rows, successor(fragment.footer.last)]
    record_bytes = source.spans[0].bytes / max(1, source.spans[0].records)
    spans, held = [], 0
    for (first, last), count in zip(pairwise(bounds), fragment.block_rows, strict=True):
        held += count
        if first < last:  # else a row that goes over several blocks
            spans.append(Span(first, last, held, int(held * record_bytes)))
            held = 0
    return tuple(spans)


def _rows_of(fragment: Fragment) -> list[bytes]:
    rows: list[bytes] = fragment.read_blocks(0, len(fragment.block_rows), [ROW]).column(0).to_pylist()
    return rows


def _marks(firsts: Iterable[bytes], memory: Iterable[Block]) -> list[bytes]:
    """Return rows at which to divide: where blocks begin, or some of these evenly chosen if they are too many."""
    rows = {*firsts, *(block.rows[at].as_py() for block in memory for at in range(0, len(block), MEMORY_STRIDE))}
    return sorted(rows)[:: len(rows) // MARKS_MAX + 1]
