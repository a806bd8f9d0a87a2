"""Records as plain Python values, batches made of them, and what a reader must see of them, worked out one by one.

The definitions here (`seen_columns`, `seen_cells`) are the rules of the data model in as few lines as possible, with
loops and without a thought for speed. The merge must agree with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, cast

import pyarrow as pa
from hypothesis import strategies as st

from ebla.storage.merge.rules import Rules
from ebla.storage.record.records import TIMESTAMP_MAX, Run

# Few rows, so that records meet; among them rows that tie in their first eight bytes, and rows that begin others.
ROWS = [b"", b"a", b"a\0", b"ab", b"long-prefix", b"long-prefix\0", b"long-prefix-1", b"long-prefix-2", b"z\xff"]

COLUMN_TYPES = {3: pa.int64(), 4: pa.string(), 10: pa.list_(pa.int8())}
VALUES: dict[int, list[Any]] = {3: [None, 0, 1, -2], 4: [None, "", "x", "yz"], 10: [None, [], [1], [2, 3]]}
IDS = tuple(COLUMN_TYPES)

# A seed is drawn, not every throw: a hundred times quicker, and sizes still shrink.
DICE = st.randoms(use_true_random=True)


class Range(NamedTuple):
    """A range erasure."""

    first: bytes
    last: bytes | None
    txn: int

    def hides(self, row: bytes, txn: int) -> bool:
        return txn < self.txn and self.first <= row and (self.last is None or row < self.last)


# --- columns groups ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnsRecord:
    """One record of a columns group; `sets` None sets all columns of its run."""

    row: bytes
    txn: int
    erased: bool
    sets: tuple[int, ...] | None
    values: tuple[Any, ...]  # for all of IDS

    def value(self, field_id: int) -> Any:
        return self.values[IDS.index(field_id)]


@dataclass(frozen=True)
class ColumnsRun:
    """Sorted records, and the columns that their batch has."""

    records: tuple[ColumnsRecord, ...]
    ids: tuple[int, ...]
    txn: int | None = None  # of all records, which then have no column for it

    def batch(self) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {"_row": pa.array([r.row for r in self.records], pa.binary())}
        if self.txn is None:
            columns["_txn"] = pa.array([r.txn for r in self.records], pa.int64())
        if any(r.erased for r in self.records):
            columns["_erased"] = pa.array([r.erased or None for r in self.records], pa.bool_())
        if any(r.sets is not None for r in self.records):
            texts = [None if r.sets is None else " ".join(map(str, r.sets)) for r in self.records]
            columns["_set"] = pa.array(texts, pa.string())
        for field_id in self.ids:
            values = [r.value(field_id) for r in self.records]
            columns[str(field_id)] = pa.array(values, COLUMN_TYPES[field_id])
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def run(self) -> Run:
        return Run(self.batch(), self.txn)

    def sets(self, record: ColumnsRecord) -> tuple[int, ...]:
        return self.ids if record.sets is None else record.sets


def columns_runs() -> st.SearchStrategy[list[ColumnsRun]]:
    """Several runs. A row and a txn belong to one record, but the same record may lie in two runs."""
    return st.builds(_columns_runs, st.integers(1, 24), DICE)


def _columns_runs(size: int, dice: Random) -> list[ColumnsRun]:
    identities = sorted({(dice.choice(ROWS), dice.randint(1, 12)) for _ in range(size)})
    txns = sorted({txn for _, txn in identities})
    count = dice.randint(1, 4)
    runs = []
    for number in range(count):
        # A txn of a run of its own, or all others whose turn it is.
        alone = dice.choice([None, *txns])
        if alone is not None:
            txns.remove(alone)
        own = [(row, txn) for row, txn in identities if txn == alone or (alone is None and txn in txns)]
        own = own if alone is not None else [i for at, i in enumerate(own) if at % (count - number) == 0]
        if own:
            identities = [identity for identity in identities if identity not in own]
            runs.append(_columns_run(dice, own, alone))
    if runs and dice.random() < 0.3:
        runs.append(dice.choice(runs))
    return runs


def _columns_run(dice: Random, identities: Sequence[tuple[bytes, int]], txn: int | None) -> ColumnsRun:
    ids = tuple(i for i in IDS if dice.random() < 0.7)
    partial = dice.random() < 0.5
    erasing = dice.choice([0, 0.3])
    records = []
    for row, number in sorted(identities, key=lambda identity: (identity[0], -identity[1])):
        sets = tuple(i for i in ids if dice.random() < 0.5) if partial and dice.random() < 0.8 else None
        values = tuple(dice.choice(VALUES[i]) for i in IDS)
        records.append(ColumnsRecord(row, number << 10, dice.random() < erasing, sets, values))
    return ColumnsRun(tuple(records), ids, None if txn is None else txn << 10)


def _erasures(rules: Rules) -> list[Range]:
    """Return the erasures that a reader knows of: all that tests give to rules are of this kind."""
    return [cast(Range, erasure) for erasure in rules.erasures if erasure.txn <= rules.as_of]


def seen_columns(runs: Iterable[ColumnsRun], ids: Sequence[int], rules: Rules) -> dict[bytes, dict[int, list[Any]]]:
    """Return what a reader sees: per row and column, its versions as (value, txn), newest first."""
    records = {(r.row, r.txn): (r, run.sets(r)) for run in runs for r in run.records if r.txn <= rules.as_of}
    answer: dict[bytes, dict[int, list[Any]]] = {}
    for row in sorted({row for row, _ in records}):
        own = [records[key] for key in sorted(records, reverse=True) if key[0] == row]
        erased_at = max((record.txn for record, _ in own if record.erased), default=0)
        live = [
            (record, sets)
            for record, sets in own
            if record.txn > erased_at
            and not any(e.hides(row, record.txn) for e in _erasures(rules))
            and not (rules.expires_alone and record.txn >> 10 < (rules.expired_before or 0))
        ]
        if live:
            answer[row] = {}
            for field_id in ids:
                versions = [(r.value(field_id), r.txn) for r, sets in live if field_id in sets]
                found = kept(versions, [txn >> 10 for _, txn in versions], rules)
                # Where one version is kept, it is one of the row as a whole.
                answer[row][field_id] = [(value, live[0][0].txn) for value, _ in found] if rules.keeps_one else found
    return answer


def kept(versions: Sequence[Any], times: Sequence[int], rules: Rules) -> list[Any]:
    """Return what the purge policy and the request leave of the versions of one thing, newest first."""
    left = []
    for rank, (version, time) in enumerate(zip(versions, times, strict=True)):
        verdicts = []
        if rules.expired_before is not None:
            verdicts.append(time < rules.expired_before)
        if rules.versions_kept is not None:
            verdicts.append(rank >= rules.versions_kept)
        purged = bool(verdicts) and (all(verdicts) if rules.purge_both else any(verdicts))
        if not purged and rank < rules.versions:
            left.append(version)
    return left


# --- cells groups --------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One record of a cells group."""

    row: bytes
    family: str | None
    qualifier: str | None
    timestamp: int
    txn: int
    erased: bool
    value: bytes | None

    @property
    def order(self) -> tuple[Any, ...]:
        """Nulls first, newest first."""
        family = (self.family is not None, self.family or "")
        qualifier = (self.qualifier is not None, self.qualifier or "")
        return self.row, family, qualifier, -self.timestamp, -self.txn

    @property
    def identity(self) -> tuple[bytes, str | None, str | None]:
        return self.row, self.family, self.qualifier

    def covers(self, other: Cell) -> bool:
        """Whether this erasure hides the other record."""
        return (
            self.erased
            and self.row == other.row
            and self.family in (None, other.family)
            and self.qualifier in (None, other.qualifier)
            and self.txn > other.txn
            and self.timestamp >= other.timestamp
        )


def cells_batch(cells: Sequence[Cell], *, with_txn: bool = True) -> pa.RecordBatch:
    """Return records of a cells group; they must be sorted."""
    columns = {
        "_row": pa.array([c.row for c in cells], pa.binary()),
        "family": pa.array([c.family for c in cells], pa.string()),
        "qualifier": pa.array([c.qualifier for c in cells], pa.string()),
        "_ts": pa.array([c.timestamp for c in cells], pa.int64()),
    }
    if with_txn:
        columns["_txn"] = pa.array([c.txn for c in cells], pa.int64())
    if any(c.erased for c in cells):
        columns["_erased"] = pa.array([c.erased for c in cells], pa.bool_())
    columns["value"] = pa.array([c.value for c in cells], pa.binary())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def cell_runs() -> st.SearchStrategy[list[list[Cell]]]:
    """Several sorted runs. No two records have identity, timestamp and txn in common, but one may lie in two runs."""
    return st.builds(_cell_runs, st.integers(1, 24), DICE)


def _cell_runs(size: int, dice: Random) -> list[list[Cell]]:
    drawn = [_cell(dice) for _ in range(size)]
    cells = list({(c.identity, c.timestamp, c.txn): c for c in drawn}.values())
    count = dice.randint(1, 4)
    runs = [sorted(cells[number::count], key=lambda cell: cell.order) for number in range(count)]
    runs = [run for run in runs if run]
    if dice.random() < 0.3:
        runs.append(dice.choice(runs))
    return runs


def _cell(dice: Random) -> Cell:
    row = dice.choice(ROWS[:5])
    family = dice.choice(["", "f", "g"])
    qualifier = dice.choice(["", "p", "q"])
    txn = dice.randint(1, 12) << 10
    kind = dice.choice(["put", "put", "put", "cell", "family", "row"])
    if kind == "put":
        return Cell(row, family, qualifier, dice.randint(0, 6), txn, False, dice.randbytes(2))
    stamp = dice.choice([TIMESTAMP_MAX, dice.randint(0, 6)])
    return Cell(row, None if kind == "row" else family, qualifier if kind == "cell" else None, stamp, txn, True, None)


def seen_cells(runs: Iterable[Sequence[Cell]], rules: Rules) -> list[Cell]:
    """Return the cells that a reader sees, in order."""
    cells = {cell for run in runs for cell in run if cell.txn <= rules.as_of}
    live = [
        cell
        for cell in sorted(cells, key=lambda c: c.order)
        if not cell.erased
        and not any(other.covers(cell) for other in cells)
        and not any(e.hides(cell.row, cell.txn) for e in _erasures(rules))
    ]
    answer = []
    for versions in _by_identity(live):
        newest = list({cell.timestamp: cell for cell in reversed(versions)}.values())[::-1]
        answer += kept(newest, [cell.timestamp for cell in newest], rules)
    return answer


def _by_identity(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    grouped: dict[Any, list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(cell.identity, []).append(cell)
    yield from grouped.values()


# --- rules ---------------------------------------------------------------------------------------


def all_rules() -> st.SearchStrategy[Rules]:
    """Snapshots, range erasures, numbers of versions, purge policies."""
    return st.builds(_rules, DICE)


def _rules(dice: Random) -> Rules:
    erasures = [
        Range(dice.choice(ROWS), dice.choice([None, *ROWS]), dice.randint(1, 14) << 10)
        for _ in range(dice.choice([0, 0, 1, 3]))
    ]
    return Rules(
        as_of=dice.choice([(1 << 63) - 1, dice.randint(0, 13) << 10]),
        erasures=[e for e in erasures if e.last is None or e.first < e.last],
        versions=dice.choice([1, 1, 2, 4]),
        expired_before=dice.choice([None, dice.randint(0, 12)]),
        versions_kept=dice.choice([None, dice.randint(1, 3)]),
        purge_both=dice.random() < 0.5,
    )
