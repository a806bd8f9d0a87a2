"""The records of one row as a lookup file has them: a list of values, and how to read it.

[key, txn, "17", "18", txn, "17", "18"]       two records of the fields txn, "17", "18", newest first
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, TypeAlias

import pyarrow as pa

from ebla.storage.lookup.row_encoding import column_of, logical_of
from ebla.storage.record.records import ERASED, FAMILY, NOT_VALUES, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE

__all__ = ["CellLists", "Elsewhere", "RecordShape", "RowValues", "Values", "Wanted"]

# The key of a row, and then the fields of each of its records.
Values: TypeAlias = list[Any]
# The names of columns that are asked for, with their field ids.
Wanted: TypeAlias = tuple[tuple[str, str], ...]
# Families, qualifiers, timestamps, txns, which are erasures, and values, of the cells of a row.
CellLists: TypeAlias = tuple[
    Sequence[str | None], Sequence[str | None], Sequence[int], Sequence[int], Sequence[bool | None], Sequence[bytes]
]

PICKS_MAX = 64


class Elsewhere(Exception):
    """A row has too many records for a lookup file: the fragment has to be asked."""


class RowValues:
    """What one record of a row sets: values by column, as Python has them; None if it erases the row."""

    __slots__ = ("cells",)

    def __init__(self, cells: dict[str, Any] | None) -> None:
        self.cells = cells


class _Pick:
    """How the columns that somebody wants are picked from the values of a row; not at all, if `values` is None."""

    __slots__ = ("names", "values", "wanted")

    def __init__(self, wanted: Wanted, values: Callable[[Values], tuple[Any, ...]] | None) -> None:
        self.wanted = wanted  # held, so that no other can have its id
        self.names = tuple(name for name, _ in wanted)
        self.values = values


class RecordShape:
    """Where in the values of a row each field of its records stands. Set once, but for what is remembered."""

    __slots__ = ("_erased", "_fields", "_first", "_logical", "_picks", "_places", "_set", "_txn", "names", "width")

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields
        self._places = {name: at for at, name in enumerate(fields.names)}
        self.width = len(fields)
        self._txn = self._places.get(TXN)
        self._erased = self._places.get(ERASED)
        self._set = self._places.get(SET)
        self.names = tuple(name for name in fields.names if name not in NOT_VALUES)
        self._first = self.width - len(self.names)
        assert fields.names[self._first :] == list(self.names), "values are the last fields of a record"
        made = [(name, logical_of(fields.field(name).type)) for name in self.names]
        self._picks: dict[int, _Pick] = {}
        self._logical: list[tuple[str, Callable[[Any], Any]]] = [
            (name, make) for name, make in made if make is not None
        ]

    def check_here(self, values: Values) -> None:
        """Raise `Elsewhere` if the records of a row are not in the lookup file."""
        if len(values) == 1:
            raise Elsewhere

    def newest(self, values: Values, wanted: Wanted) -> dict[str, Any] | None:
        """Return the wanted columns of the newest record of a row, if that says all there is to say; None if not."""
        pick = self._pick_of(wanted)
        if pick is None or pick.values is None:
            return None
        return dict(zip(pick.names, pick.values(values), strict=True))

    def pick(self, wanted: Wanted) -> Callable[[Values], tuple[Any, ...]] | None:
        """Return what takes the wanted columns of the newest record of a row; None if that does not say it all."""
        pick = self._pick_of(wanted)
        return None if pick is None else pick.values

    def _pick_of(self, wanted: Wanted) -> _Pick | None:
        if self._set is not None or self._erased is not None or self._logical:
            return None
        pick = self._picks.get(id(wanted))
        if pick is None or pick.wanted is not wanted:
            places = [1 + self._places[field_id] for _, field_id in wanted if field_id in self._places]
            has_all = len(places) == len(wanted) > 1  # of one, no tuple is picked
            pick = _Pick(wanted, itemgetter(*places) if has_all else None)
            if len(self._picks) >= PICKS_MAX:
                self._picks.clear()
            self._picks[id(wanted)] = pick
        return pick

    def records(
        self, values: Values, txn: int | None, erased_at: int, as_of: int, names: Collection[str] | None = None
    ) -> list[tuple[int, RowValues, int]]:
        """Return the records with txns from `erased_at` to `as_of`, newest first, each with its place, which is 0.

        `txn` is that of all, if they share one. Of the columns, only `names` count, or all.
        """
        found = []
        for at in range(1, len(values), self.width):
            own = txn if self._txn is None else values[at + self._txn]
            assert own is not None, "records that do not share a txn have one each"
            if own > as_of:
                continue
            if own < erased_at:
                break
            cells = self._cells(values, at)
            if names is not None and cells is not None:
                cells = {name: value for name, value in cells.items() if name in names}
            found.append((own, RowValues(cells), 0))
            if self._set is None and self._erased is None:
                break  # older ones set nothing else
        return found

    def _cells(self, values: Values, at: int) -> dict[str, Any] | None:
        if self._erased is not None and values[at + self._erased]:
            return None
        cells = dict(zip(self.names, values[at + self._first : at + self.width], strict=True))
        for name, make in self._logical:
            if cells[name] is not None:
                cells[name] = make(cells[name])
        named = None if self._set is None else values[at + self._set]
        if named is None:
            return cells
        return {name: cells[name] for name in named.split() if name in cells}

    def batch(self, rows: Sequence[Values], names: Collection[str] | None) -> pa.RecordBatch:
        """Return the records of rows, in their order, as a batch with those of the columns `names` that there are."""
        width = self.width
        wanted = [name for name in (ROW, *self._fields.names) if names is None or name in names]
        arrays = []
        for name in wanted:
            if name == ROW:
                kind = pa.binary()
                values = [key for row in rows for key in repeat(row[0], len(row) // width)]
            else:
                kind = self._fields.field(name).type
                at = 1 + self._places[name]
                if all(len(row) == 1 + width for row in rows):
                    values = [row[at] for row in rows]
                else:
                    values = [value for row in rows for value in row[at::width]]
            arrays.append(column_of(values, kind))
        return pa.RecordBatch.from_arrays(arrays, names=wanted)

    def newest_txn(self, values: Values, txn: int | None) -> int:
        """Return the newest txn of the records of a row."""
        if self._txn is None:
            assert txn is not None, "records that do not share a txn have one each"
            return txn
        newest: int = max(values[1 + self._txn :: self.width])
        return newest

    def cell_lists(self, values: Values, txn: int | None) -> CellLists:
        """Return the cells of a row of a cells group."""
        width, places = self.width, self._places
        count = len(values) // width
        return (
            values[1 + places[FAMILY] :: width],
            values[1 + places[QUALIFIER] :: width],
            values[1 + places[TIMESTAMP] :: width],
            [txn or 0] * count if self._txn is None else values[1 + self._txn :: width],
            [False] * count if self._erased is None else values[1 + self._erased :: width],
            values[1 + places[VALUE] :: width],
        )
