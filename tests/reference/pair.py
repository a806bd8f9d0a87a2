"""Store and model side by side: every change goes to both, every answer is compared.

    change:  model says whether it must be refused  ->  store commits, or refuses  ->  model takes over its txn
    read:    store answers at some txn  ->  model answers at the same txn  ->  the two must be equal, to the type

A *moment* is a number that picks one of the commits remembered for a table, 0 the newest; None is now. What differs is
shown as a diff of rows, followed by all that was ever written to the first row in question.

Invariants checked on the way: commit txns only grow; a read without `as_of` sees every commit acknowledged before it;
a refused request changes nothing (the model does not apply it, so the next comparison would show it).
"""

from __future__ import annotations

import contextlib
import datetime
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.errors import Conflict, RequestError
from ebla.model.schema_change import Alteration, altered
from ebla.settings import KIB, Settings
from ebla.tablet.tables.table_state import FORMER_MAX
from ebla.tablet.upkeep.compaction import Choice
from ebla.tablet.upkeep.compactor import Chosen
from tests.support.compact_here import compact_here
from tests.support.inside import abandon, engine_of, state_of

from .alterations import same_names
from .comparing import as_rows, assert_equal, compare, history
from .forms import as_form, as_key, cells_to_arrow, read_scan, rows_of_arrow
from .reference import (
    Cell,
    Key,
    ReferenceStore,
    Row,
    decode_counter,
    in_range,
)
from .strategies import Filter, Shape

VERSIONS_ALL = 1_000
# How many moments of the past a deep comparison looks at.
MOMENTS_MAX = 12
# So small that memory is folded and flushed, the log rolled and every cache emptied within a few commits.
TINY = Settings(
    queue_bytes_max=64 * KIB,
    memory_bytes_max=32 * KIB,
    flush_bytes=4 * KIB,
    close_flush_bytes=2 * KIB,
    log_segment_bytes=4 * KIB,
    log_bytes_max=16 * KIB,
    block_cache_bytes=32 * KIB,
    row_cache_bytes=24 * KIB,
    open_files_max=8,
    recent_row_slots=4,
    scan_batch_rows=3,
    metadata_snapshot_every=3,
    garbage_age_seconds=0.0,
    lookup_at_once=True,
)
# Everything stays in memory and in one log segment, until it is flushed by hand.
ROOMY = Settings(scan_batch_rows=5, recent_row_slots=1 << 10, garbage_age_seconds=0.0)


def crash_and_reopen(database: Any, settings: Settings) -> Any:
    """Abandon a store as a killed process would, with nothing flushed or closed in order, and open it again."""
    abandon(database)
    return ebla.open(database.path, settings=settings)


@dataclass
class HeldScan:
    """A scan that was begun and is read on later, whatever happens in between."""

    table: str
    rows: Iterator[Any]
    expected: list[Row]
    read: list[Row]
    txn: int
    alterations: int = 0


class Pair:
    """One store on disk, its model, and what is remembered of both."""

    def __init__(self, path: Path, shapes: dict[str, Shape], settings: Settings) -> None:
        self.path = path
        self.settings = settings
        self.shapes = shapes
        self.database: Any = ebla.open(path, settings=settings)
        self.model = ReferenceStore()
        self.last_txn = 0
        self.moments: dict[str, list[int]] = {}
        self.snapshots: list[Any] = []
        self._names = 0
        self.scans: list[HeldScan] = []
        for name in shapes:
            self.create(name)

    def table(self, name: str) -> Any:
        """Return the store's table."""
        return self.database.table(name)

    # --- the life of the store ----------------------------------------------------------------

    def create(self, name: str) -> None:
        """Create a table in both."""
        shape = self.shapes[name]
        splits = None if shape.splits is None else list(shape.splits)
        made = self.database.create_table(name, shape.schema, splits=splits)
        assert made.name == name
        assert tuple(made.key_names) == shape.key_names
        assert len(made.tablets()) == 1 + len(shape.splits or ())
        self.model.create_table(name, shape.schema)
        self.moments[name] = []

    def recreate(self, name: str) -> None:
        """Drop a table and make it again, empty."""
        self._let_go()
        self.database.drop_table(name)
        self.model.drop_table(name)
        assert self.database.tables() == self.model.tables()
        with pytest.raises(ebla.UnknownTable):
            self.database.table(name)
        self.create(name)

    def clone(self, origin: str, name: str) -> None:
        """Put a clone of one table in the place of another."""
        self._let_go()
        self.database.drop_table(name)
        self.model.drop_table(name)
        made = self.database.clone_table(origin, name)
        self.model.clone_table(origin, name)
        assert made.name == name
        assert self.database.tables() == self.model.tables()
        self.moments[name] = list(self.moments[origin])

    def alter(self, name: str, seed: int) -> None:
        """Change the schema of both in a way that leaves all names and types as they are."""
        model = self.model.table(name)
        request = same_names(model.schema, random.Random(seed))
        if request is None:
            return
        held = [scan for scan in self.scans if scan.table == name]
        for scan in held:
            scan.alterations += 1
            if scan.alterations > FORMER_MAX:  # more changes than the store remembers
                self.scans.remove(scan)
        schema = altered(model.schema, Alteration(**request), engine_of(self.database).sequencer.allocated)
        self.database.alter_table(name, **request)
        assert self.table(name).schema == schema
        model.alter(schema)

    def flush(self, name: str) -> None:
        """Move what is in memory to files."""
        self.table(name).flush()
        self.make_lookups()

    def make_lookups(self) -> None:
        """Have rows found by lookup files of all that is in files, where the settings say so."""
        engine_of(self.database).lookup_maker.round()

    def compact(self, name: str, *, forget: bool, by_job: bool = False) -> None:
        """Merge the files of a table; to `forget` is to do it as if all history had ended now.

        `by_job` lets tasks do it, in sections as small as can be.
        """
        with self._forgetting(name) if forget else contextlib.nullcontext():
            if by_job:
                assert compact_here(self.database, name, section_bytes_min=1).given_up == ()
            else:
                self.table(name).compact()
            self.make_lookups()

    def merge_some(self, name: str, seed: int, *, forget: bool) -> None:
        """Merge any of the files that are current in each tablet, or the newest of its history."""
        dice = random.Random(seed)
        self.table(name).flush()
        engine, table = engine_of(self.database), state_of(self.table(name))
        with self._forgetting(name) if forget else contextlib.nullcontext():
            metadata = table.view.metadata
            for tablet in metadata.tablets:
                for group in metadata.schema.groups:
                    state = tablet.group(group.id)
                    txns = sorted({ref.history_txn for ref in state.history})
                    if txns and dice.random() < 0.4:
                        since = dice.choice(txns)
                        files = tuple(ref for ref in state.history if ref.history_txn >= since)
                    else:
                        files = tuple(ref for ref in state.current if dice.random() < 0.7)
                    horizon = engine.history.horizon_of(table, group.id)
                    chosen = Chosen(metadata.schema.version, tablet, group, Choice(files, "depth"), horizon)
                    if files:
                        engine.compactor._carry_out(table, chosen)
        self.make_lookups()

    @contextlib.contextmanager
    def _forgetting(self, name: str) -> Iterator[None]:
        """Have all history of a table end now, for compactions in the block."""
        self._let_go()
        self.moments[name] = []
        store = engine_of(self.database)
        history: Any = store.history
        horizon = history.bound

        def now(table: Any, group: int) -> Any:
            is_flushed = table.view.oldest_in_memory(group) is None
            return store.sequencer.committed if table.name == name and is_flushed else horizon(table, group)

        history.bound = now
        try:
            yield
        finally:
            history.bound = horizon

    def collect_garbage(self) -> None:
        """Remove at once what nobody names; scans under the schema of now, and snapshots, go on."""
        self.scans = [scan for scan in self.scans if not scan.alterations]  # files of a former schema may go
        self.database.gc(dry_run=False)
        self.database.gc(dry_run=False)
        named = {file for name in self.shapes for file in self.table(name).files()}
        assert all((self.path / file).exists() for file in named)

    def split(self, name: str, at: Any) -> None:
        """Split a tablet at a key, or where the store likes; nothing changes for readers."""
        table = self.table(name)
        before = len(table.tablets())
        try:
            table.split(self._end(name, at))
        except ebla.CannotSplit:
            assert len(table.tablets()) == before
        else:
            assert len(table.tablets()) == before + 1

    def join(self, name: str, number: int) -> None:
        """Join two neighbours; nothing changes for readers."""
        table = self.table(name)
        ids = [tablet["id"] for tablet in table.tablets()]
        if len(ids) > 1:
            at = number % (len(ids) - 1)
            table.join(tablets=(ids[at], ids[at + 1]))
            assert len(table.tablets()) == len(ids) - 1

    def unload(self, name: str) -> None:
        """Take a table offline and back; what is not there meanwhile is there again after it."""
        self.database.unload_table(name)
        with pytest.raises(ebla.TableUnloaded):
            list(self.table(name).scan())
        with pytest.raises(ebla.TableUnloaded):
            self.table(name).erase_range()
        self.database.load_table(name)

    def reopen(self) -> None:
        """Close in order and open again."""
        named = [(snapshot.name, snapshot.txn) for snapshot in self.snapshots if snapshot.name is not None]
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot.name is None]
        self._let_go()
        self.database.close()
        self.database = ebla.open(self.path, settings=self.settings)
        self._found_again(named)

    def crash(self) -> None:
        """Stop without any order and open again."""
        named = [(snapshot.name, snapshot.txn) for snapshot in self.snapshots if snapshot.name is not None]
        self.snapshots.clear()
        self.scans.clear()
        self.database = crash_and_reopen(self.database, self.settings)
        self._found_again(named)

    def _found_again(self, named: list[tuple[str, int]]) -> None:
        """See that tables and named snapshots are there."""
        assert self.database.tables() == self.model.tables()
        assert self.database.snapshots() == dict(named)
        self.snapshots = [self.database.snapshot(name) for name, _ in named]

    def close(self) -> None:
        """Close the store for good."""
        self._let_go()
        self.database.close()

    def _let_go(self) -> None:
        while self.scans:
            self.continue_scan(0, None)
        while self.snapshots:
            self.release_snapshot(0)

    # --- changes ------------------------------------------------------------------------------

    def put(
        self,
        name: str,
        rows: list[Row],
        form: str = "list",
        *,
        replace: bool = False,
        if_absent: bool = False,
        if_unchanged_since: int | None = None,
        wait: str = "durable",
    ) -> None:
        """Put rows into both, or see both refuse them."""
        model, shape = self.model.table(name), self.shapes[name]
        conditions = {"if_absent": if_absent, "if_unchanged_since": if_unchanged_since}
        keys = [model.key_of(row) for row in rows]
        refused = model.conflicts(keys, self._now(), **conditions)
        given = as_form(shape, rows, form)
        try:
            txn = self.table(name).put(given, replace=replace, wait=wait, **conditions)
        except Conflict:
            assert refused, f"a conflict where there is none: {keys} with {conditions}\n{history(model, keys)}"
            return
        assert not refused, f"no conflict where there is one: {keys} with {conditions}\n{history(model, keys)}"
        if wait == "none":
            self.database.sync(txn)
        self._committed(name, txn)
        model.put(rows, txn, replace=replace, **conditions)

    def put_unchanged(self, name: str, row: Row) -> None:
        """Read a row, and put it on the condition that nobody changed it since: nobody did."""
        key = self.model.table(name).key_of(row)
        found = self.table(name).get(as_key(key))
        if found is not None:
            before = self.last_txn
            self.put(name, [row], if_unchanged_since=found.txn)
            assert self.last_txn > before, "a row that nobody changed since it was read"

    def put_cells(self, name: str, cells: list[Cell], *, as_timestamps: bool = True) -> None:
        """Put cells into both."""
        given = cells_to_arrow(self.shapes[name], cells, as_timestamps=as_timestamps)
        txn = self.table(name).put_cells(given)
        self._committed(name, txn)
        self.model.table(name).put_cells(cells, txn)

    def erase(self, name: str, key: Key, columns: list[str] | None = None) -> None:
        """Erase a row, or some of it."""
        model = self.model.table(name)
        targets = [model.schema.resolve(column) for column in columns or ()]
        # A typed column is erased only where there is a row to erase it from.
        writes = columns is None or any(t.column is None or model.shows(t.group, key, self._now()) for t in targets)
        txn = self.table(name).erase(as_key(key), columns=columns)
        if writes:
            self._committed(name, txn)
            model.erase(key, txn, columns)

    def erase_many(self, name: str, keys: list[Key]) -> None:
        """Erase rows."""
        txn = self.table(name).erase_many([as_key(key) for key in keys])
        self._committed(name, txn)
        self.model.table(name).erase_many(keys, txn)

    def erase_range(self, name: str, start: Key | None, stop: Key | None) -> None:
        """Erase all rows in a range."""
        txn = self.table(name).erase_range(self._end(name, start), self._end(name, stop))
        if txn is not None and txn > self.last_txn:
            self._committed(name, txn)
        else:
            held = [key for key in self.shapes[name].keys if in_range(key, start, stop)]
            assert not held, f"a range was not erased that can hold {held}"
        self.model.table(name).erase_range(start, stop, self.last_txn)

    def increment(self, name: str, key: Key, column: str, by: Any) -> None:
        """Add to a column or counter, or see both refuse to count on what is no counter."""
        model, table = self.model.table(name), self.table(name)
        if model.schema.resolve(column).column is None:
            current = (model.get(key, [column], self._now()) or {}).get(column)
            if current is not None and len(current) != 8:
                with pytest.raises(RequestError):
                    table.increment(as_key(key), column, by)
                return
            assert abs(decode_counter(current)) < 1 << 62
        actual = table.increment(as_key(key), column, by)
        txn = self._written_by(name, key, column)
        assert_equal(actual, model.increment(key, column, by, txn), f"increment {key} {column} by {by}")

    def append(self, name: str, key: Key, column: str, suffix: Any) -> None:
        """Append to a column or cell."""
        actual = self.table(name).append(as_key(key), column, suffix)
        txn = self._written_by(name, key, column)
        expected = self.model.table(name).append(key, column, suffix, txn)
        assert_equal(actual, expected, f"append {suffix!r} to {key} {column}")

    def transact(self, name: str, key: Key, changes: Row | None) -> None:
        """Let both show the row to a function, and put what it returns."""
        model = self.model.table(name)
        shown: list[Row | None] = []

        def change(row: Row | None) -> Row | None:
            shown.append(None if row is None else dict(row))
            return changes

        expected = model.get(key, as_of=self._now())
        txn = self.table(name).transact(as_key(key), change)
        assert len(shown) == 1, "nobody else writes, so there is nothing to retry"
        compare(as_rows([shown[0]]), as_rows([expected]), model, f"transact {key} was shown")
        if changes is not None:
            self._committed(name, txn)
            model.put(model.key_row(key) | changes, txn)

    def refuse(self, name: str, request: Callable[[Any], object]) -> None:
        """See the store refuse a request that is wrong."""
        with pytest.raises(RequestError):
            request(self.table(name))

    def _committed(self, name: str, txn: Any) -> None:
        assert type(txn) is int, f"a commit returns its txn, not {txn!r}"
        assert txn > self.last_txn, f"txn {txn} came after {self.last_txn}"
        self.last_txn = txn
        self.moments[name].append(txn)

    def _written_by(self, name: str, key: Key, column: str) -> int:
        """Return the txn of the newest version of a column, for commits that return something else."""
        before = self.last_txn
        (row,) = self.table(name).scan(self._end(name, key), columns=[column], versions=2, limit=1)
        assert self.model.table(name).key_of(row) == key
        txn = max(version.txn for version in row[column])
        assert txn > before, f"{column} of {key} was written by {txn}, before the last commit {before}"
        self._committed(name, txn)
        return int(txn)

    # --- moments ------------------------------------------------------------------------------

    def _now(self) -> int:
        return self.last_txn

    def remembered(self, name: str, moment: int) -> int | None:
        """Return the txn of a moment, None if nothing is remembered yet."""
        moments = self.moments[name]
        return moments[-1 - moment % len(moments)] if moments else None

    def _as_of(self, name: str, moment: int | None) -> int | None:
        return None if moment is None else self.remembered(name, moment)

    def _answers(
        self, name: str, as_of: int | None, read: Callable[[], Any], answer: Callable[[int], Any]
    ) -> tuple[Any, Any]:
        """Return what the store reads and what the model answers at the same moment.

        A get does not say at which txn it read. Where rows expire by themselves that matters: if the model's answer
        is not the same just before and just after, there is nothing to compare.
        """
        before = self.table(name).scan(limit=0).txn if as_of is None else as_of
        actual = read()
        after = self.table(name).scan(limit=0).txn if as_of is None else as_of
        expected = answer(before)
        return actual, expected if as_rows(expected) == as_rows(answer(after)) else actual

    # --- reads --------------------------------------------------------------------------------

    def _end(self, name: str, end: Key | None) -> Any:
        """Return an end of a range as the API takes it: a scalar where the key is one column."""
        return end if end is None or len(self.shapes[name].key_names) > 1 else end[0]

    def check_get(
        self,
        name: str,
        key: Key,
        columns: list[str] | None = None,
        moment: int | None = None,
        *,
        by_name: bool = False,
        uncommitted: bool = False,
    ) -> None:
        """Compare one row."""
        model = self.model.table(name)
        as_of = self._as_of(name, moment)
        given = model.key_row(key) if by_name else as_key(key)
        actual, expected = self._answers(
            name,
            as_of,
            lambda: [self.table(name).get(given, columns=columns, as_of=as_of, read_uncommitted=uncommitted)],
            lambda at: [model.get(key, columns, at)],
        )
        compare(as_rows(actual), as_rows(expected), model, f"get {key} {columns} as of {as_of}")

    def check_get_many(
        self, name: str, keys: list[Key], columns: list[str] | None = None, moment: int | None = None
    ) -> None:
        """Compare many rows, in the order asked."""
        model = self.model.table(name)
        as_of = self._as_of(name, moment)

        def read() -> list[Row | None]:
            answer = self.table(name).get_many([as_key(key) for key in keys], columns=columns, as_of=as_of)
            assert answer.num_rows == len(keys)
            rows = rows_of_arrow(answer.drop_columns(["_found"]), model)
            assert [model.key_of(row) for row in rows] == keys, "get_many answers in the order asked"
            found = answer.column("_found").to_pylist()
            return [row if here else None for row, here in zip(rows, found, strict=True)]

        actual, expected = self._answers(name, as_of, read, lambda at: list(model.get_many(keys, columns, at)))
        compare(as_rows(actual), as_rows(expected), model, f"get_many {keys} {columns} as of {as_of}")

    def check_scan(
        self,
        name: str,
        start: Key | None = None,
        stop: Key | None = None,
        *,
        moment: int | None = None,
        as_of_time: bool = False,
        where: Filter | None = None,
        through: str = "dicts",
        options: dict[str, Any] | None = None,
        **common: Any,
    ) -> None:
        """Compare a scan. `common` goes to both sides, `options` to the store alone."""
        model = self.model.table(name)
        as_of: Any = None if moment is None else self.remembered(name, moment)
        if as_of is not None and as_of_time:
            # A time stands for the end of its microsecond.
            as_of = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=as_of >> 10)
        scan = self.table(name).scan(
            self._end(name, start),
            self._end(name, stop),
            as_of=as_of,
            where=None if where is None else where.expression(),
            **common,
            **(options or {}),
        )
        actual = read_scan(scan, through, model)
        if as_of is None:
            assert scan.txn >= self.last_txn, "a scan sees every commit acknowledged before it"
        elif isinstance(as_of, int):
            assert scan.txn == as_of
        expected = model.scan(start, stop, where=where, as_of=scan.txn, **common)
        label = f"scan {name} [{start}, {stop}) as of {as_of} where {where} with {common} and {options} via {through}"
        compare(as_rows(actual), as_rows(expected), model, label)

    def check_all(self, *, deeply: bool = False) -> None:
        """Compare whole tables now; deeply: all versions, single rows, and moments from all of the past too."""
        for name, shape in self.shapes.items():
            self.check_scan(name)
            if deeply:
                self.check_scan(name, versions=VERSIONS_ALL)
                for key in shape.keys[:4]:
                    self.check_get(name, key)
                count = len(self.moments[name])
                for moment in range(0, count, max(1, count // MOMENTS_MAX)):
                    self.check_scan(name, moment=moment)

    # --- what is held open --------------------------------------------------------------------

    def take_snapshot(self, *, named: bool = False) -> None:
        """Hold on to the present; with a name, over reopenings and crashes too."""
        self._names += 1
        snapshot = self.database.snapshot(f"snapshot{self._names}" if named else None)
        assert snapshot.txn >= self.last_txn
        self.snapshots.append(snapshot)

    def check_snapshot(self, number: int, name: str, key: Key) -> None:
        """Compare what a snapshot shows with what the model shows at its moment."""
        if not self.snapshots:
            return
        snapshot = self.snapshots[number % len(self.snapshots)]
        model, table = self.model.table(name), snapshot.table(name)
        label = f"snapshot {snapshot.txn} of {name}"
        compare(as_rows(table.scan()), as_rows(model.scan(as_of=snapshot.txn)), model, label)
        expected = model.get(key, as_of=snapshot.txn)
        compare(as_rows([table.get(as_key(key))]), as_rows([expected]), model, f"{label}, get {key}")

    def release_snapshot(self, number: int) -> None:
        """Let go of a snapshot."""
        if self.snapshots:
            self.snapshots.pop(number % len(self.snapshots)).release()

    def begin_scan(self, name: str, *, reverse: bool, versions: int) -> None:
        """Begin a scan and read one row of it."""
        model = self.model.table(name)
        scan = self.table(name).scan(reverse=reverse, versions=versions)
        rows = iter(scan)
        read = [dict(row) for row in islice(rows, 1)]
        expected = model.scan(as_of=scan.txn, reverse=reverse, versions=versions)
        self.scans.append(HeldScan(name, rows, expected, read, scan.txn))

    def continue_scan(self, number: int, count: int | None) -> None:
        """Read on in a scan, some rows or to its end."""
        if not self.scans:
            return
        held = self.scans[number % len(self.scans)]
        more = [dict(row) for row in islice(held.rows, count)]
        held.read += more
        expected = held.expected[: len(held.read)] if count is not None and len(more) == count else held.expected
        label = f"a scan of {held.table} held since {held.txn}"
        compare(as_rows(held.read), as_rows(expected), self.model.table(held.table), label)
        if count is None or len(more) < count:
            self.scans.remove(held)
