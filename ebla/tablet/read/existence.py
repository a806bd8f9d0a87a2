"""Which of many rows a table has, without reading what they hold.

    rows asked for   --blocks that may have them-->  their keys alone  --search-->  there, or not

Where nothing was erased and nothing expires, a row is there if anything has a record of it, so that no records are
merged: the keys of the blocks in question are read and searched. Elsewhere the rows are read as a look-up reads them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebla.metadata.values.table_metadata import FragmentRef, TabletMetadata
from ebla.model.order import lower_bound
from ebla.model.projection import Projection
from ebla.model.ranges import KeyRange, successor
from ebla.storage.record.records import ROW, Block
from ebla.tablet.read.answers import ReadPoint
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.view import Sources, TableView

__all__ = ["which_exist"]

Mask = npt.NDArray[np.bool_]


def which_exist(view: TableView, reader: Reader, rows: pa.Array, as_of: int) -> Mask:
    """Tell which of some rows, which are sorted and each once, are there at a txn, which is held by the caller."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for tablet, begin, end in view.tablets_of(rows):
        found[begin:end] = _in_tablet(view, reader, tablet, rows.slice(begin, end - begin), as_of)
    return found


def _in_tablet(view: TableView, reader: Reader, tablet: TabletMetadata, rows: pa.Array, as_of: int) -> Mask:
    span = KeyRange(rows[0].as_py(), successor(rows[-1].as_py()))
    every = [view.sources(tablet, group.id, span, as_of) for group in view.schema.groups]
    if not all(group.max_age_microseconds is None for group in view.schema.groups) or not all(map(_says_all, every)):
        return _looked_up(view, reader, rows, as_of)
    found = np.zeros(len(rows), dtype=np.bool_)
    for sources in every:
        if not all(block.txn_max <= as_of for block in sources.blocks) or not all(
            ref.txn_max <= as_of for ref in sources.fragments
        ):
            return _looked_up(view, reader, rows, as_of)
        for block in sources.blocks:
            found |= _among(rows, block.rows)
        for ref in sources.fragments:
            found |= _in_fragment(reader, ref, rows)
    return found


def _says_all(sources: Sources) -> bool:
    """Tell whether every record of these shows its row."""
    each: tuple[Block | FragmentRef, ...] = (*sources.blocks, *sources.fragments)
    return not sources.erasures and not any(source.has_erasures for source in each) and not _is_restricted(sources)


def _is_restricted(sources: Sources) -> bool:
    return any(ref.is_restricted for ref in sources.fragments)


def _in_fragment(reader: Reader, ref: FragmentRef, rows: pa.Array) -> Mask:
    found = np.zeros(len(rows), dtype=np.bool_)
    low, high = 0, len(rows)
    counted = ref.within(KeyRange(ref.first, successor(ref.last)))
    if counted is not None:
        low = lower_bound(rows, counted.first)
        high = len(rows) if counted.last is None else lower_bound(rows, counted.last, low)
    if counted is None or low >= high:
        return found
    fragment = reader.fragment(ref)
    asked = rows.slice(low, high - low)
    firsts = pa.array(fragment.first_rows, pa.binary())
    # A row with many records may begin in the block before the one that starts with it: that one has it, too.
    blocks = np.maximum(0, pc.search_sorted(firsts, asked, side="right").to_numpy(zero_copy_only=False).astype(int) - 1)
    for first, last in _spans(np.unique(blocks)):
        here = slice(int(np.searchsorted(blocks, first)), int(np.searchsorted(blocks, last, "right")))
        keys = fragment.read_blocks(first, last + 1, [ROW]).column(0)
        begin = here.start
        for chunk in keys.chunks:
            end = begin + lower_bound(asked.slice(begin, here.stop - begin), successor(chunk[-1].as_py()))
            found[low + begin : low + end] |= _among(asked.slice(begin, end - begin), chunk)
            begin = end
    return found


def _spans(numbers: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return runs of numbers that follow one another, by their first and last."""
    cuts = np.flatnonzero(np.diff(numbers) > 1)
    return [
        (int(a), int(b)) for a, b in zip(numbers[[0, *(cuts + 1)]], numbers[[*cuts, len(numbers) - 1]], strict=True)
    ]


def _among(asked: pa.Array, rows: pa.Array) -> Mask:
    """Tell which of the rows asked for are among others; both are sorted."""
    if not len(asked) or not len(rows):
        return np.zeros(len(asked), dtype=np.bool_)
    places = pc.search_sorted(rows, asked).to_numpy(zero_copy_only=False)
    nearest = rows.take(pa.array(np.minimum(places, len(rows) - 1)))
    return np.asarray(pc.equal(nearest, asked).to_numpy(zero_copy_only=False))


def _looked_up(view: TableView, reader: Reader, rows: pa.Array, as_of: int) -> Mask:
    projection = Projection.of(view.schema, ())
    batches = reader.rows.read_many(view, rows, ReadPoint(as_of, projection))
    found = np.zeros(len(rows), dtype=np.bool_)
    for batch in batches:
        keys = view.parts.codec.encode_arrays([batch.column(name) for name in view.schema.key_names])
        found |= _among(rows, keys)
    return found
