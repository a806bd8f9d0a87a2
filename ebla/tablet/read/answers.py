"""What reading a stretch and reading rows by key share: when sources are the answer as they are, and making it.

Where a single sorted run with one record per row covers what is asked for, nothing hides any of it, and no policy
applies, the run is *clean*: it is the answer, and the merge is skipped. Sources of which each is wholly older than the
next are *stacked*: one txn for each puts all their records in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ebla.clock import microseconds_of
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.keys import KeyCodec
from ebla.model.order import is_strictly_sorted
from ebla.model.projection import Projection
from ebla.model.schema import GroupSchema
from ebla.storage.merge.merge import MergedCells, MergedColumns
from ebla.storage.merge.rules import Rules
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, Block, Run
from ebla.tablet.read.assembly import assemble, join_rows
from ebla.tablet.read.view import Sources

__all__ = [
    "Answers",
    "ReadPoint",
    "as_it_is",
    "is_clean",
    "is_clean_run",
    "is_stacked",
    "only_cells",
    "rules_for",
    "tops_suffice",
]


class ReadPoint(NamedTuple):
    """The snapshot and the projection of a read, and how many rows are enough of what is merged."""

    as_of: int
    projection: Projection
    limit: int | None = None


def rules_for(group: GroupSchema, as_of: int, sources: Sources, versions: int) -> Rules:
    """Return what a reader at `as_of` may see of a group: its erasures and its purge policy."""
    expired = None if group.max_age_microseconds is None else microseconds_of(as_of) - group.max_age_microseconds
    return Rules(as_of, sources.erasures, versions, expired, group.max_versions, group.purge_join == "and")


class Answers:
    """Makes the rows of an answer of one table's records."""

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec

    def assemble(
        self, projection: Projection, merged: Mapping[int, MergedColumns | MergedCells]
    ) -> pa.RecordBatch | None:
        """Join what was merged per group into rows of the answer, or None if there are none."""
        rows, places = join_rows([part.rows for part in merged.values()])
        if not len(rows):
            return None
        placed = {group: (part, place) for (group, part), place in zip(merged.items(), places, strict=True)}
        return assemble(projection, self._codec.decode_arrays(rows), rows, placed)

    def key_of(self, row: bytes, projection: Projection) -> Iterable[tuple[str, Any]]:
        """Return the columns of the key that a row is, by name."""
        return zip(projection.schema.key_names, self._codec.decode(row), strict=True)

    def clean_columns(self, run: Run, projection: Projection) -> list[pa.Array | pa.ChunkedArray]:
        """Return the columns of a clean run in the order of the answer, chunked as they are."""
        records = run.records
        held = records.schema.names
        keys = projection.key_fields
        arrays: list[pa.Array | pa.ChunkedArray]
        if not keys:
            key = records.column(ROW)
            kind = projection.schema.key[0].type
            arrays = [key if key.type == kind else key.cast(kind)]
        elif set(keys).issubset(held):
            arrays = [records.column(key) for key in keys]
        else:
            rows = run.column(ROW)
            assert rows is not None
            arrays = list(self._codec.decode_arrays(rows))
        for name, output in zip(projection.field_names, projection.outputs, strict=True):
            arrays.append(records.column(name) if name in held else pa.nulls(len(run), output.type))
        return arrays


def is_clean(sources: Sources, rules: Rules) -> bool:
    """Tell whether the sources can be read as they are: one run, one record per row, nothing hidden, no versions."""
    if rules.versions != 1 or rules.erasures or rules.expires_alone or len(sources) > 1:
        return False
    known: list[Block | FragmentRef] = [*sources.blocks, *sources.fragments]
    return all(s.unique and not s.has_erasures and s.txn_max <= rules.as_of for s in known)


def is_stacked(sources: Sources, rules: Rules) -> bool:
    """Tell whether each source is wholly older or newer than any other, and no rule asks for the txn of a record.

    As the records of a row stand newest first in each of them, one txn for each source gives the order of all.
    """
    if rules.versions != 1 or rules.erasures or rules.expires_alone:
        return False
    known: list[Block | FragmentRef] = [*sources.blocks, *sources.fragments]
    known.sort(key=attrgetter("txn_min"))
    return all(s.txn_max <= rules.as_of for s in known) and all(a.txn_max < b.txn_min for a, b in pairwise(known))


def tops_suffice(source: Block | FragmentRef, newest_at: int | None) -> bool:
    """Tell whether a reader of the newest version gets all from the newest record of each row, and erasures."""
    if newest_at is None or source.unique or source.txn_max > newest_at:
        return False
    return not source.has_partial or (isinstance(source, FragmentRef) and source.topped)


def is_clean_run(run: Run, rules: Rules) -> bool:
    """Tell whether a run by itself is the answer: one record per row, nothing hidden, no versions."""
    if rules.versions != 1 or rules.erasures or rules.expires_alone or ERASED in run.records.schema.names:
        return False
    rows = run.column(ROW)
    return rows is not None and is_strictly_sorted(rows) and int(run.txns().max(initial=0)) <= rules.as_of


def as_it_is(runs: Sequence[Run], types: Mapping[int, pa.DataType]) -> MergedColumns:
    """Return clean runs as if they had been merged."""
    columns = {i: _joined(runs, str(i), kind) for i, kind in types.items()}
    return MergedColumns(_joined(runs, ROW, pa.binary()), columns)


def _joined(runs: Sequence[Run], name: str, kind: pa.DataType) -> pa.Array:
    """Return a column of consecutive runs as one array; nulls where a run does not have it."""
    if not runs:
        return pa.array([], kind)
    parts = []
    for run in runs:
        column = run.column(name)
        parts.append(pa.nulls(len(run), kind) if column is None else column)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def only_cells(run: Run, wanted: Mapping[str, frozenset[str] | None]) -> Run:
    """Leave out cells that are not asked for; erasures that may cover wanted ones stay."""
    family, qualifier = run.column(FAMILY), run.column(QUALIFIER)
    assert family is not None
    assert qualifier is not None
    mask = pc.is_null(family)
    for name, qualifiers in wanted.items():
        fits = pc.fill_null(pc.equal(family, name), False)
        if qualifiers is not None:
            fits = pc.and_(fits, pc.is_in(qualifier, value_set=pa.array([*qualifiers, None], pa.string())))
        mask = pc.or_(mask, fits)
    return Run(run.records.filter(mask), run.txn)
