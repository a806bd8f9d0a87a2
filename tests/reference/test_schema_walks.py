"""Random walks through schemas: any change, with writes, flushes, compactions, splits and crashes in between.

Names, types and groups differ from step to step, so rows are drawn from the schema of the moment. Store and model are
compared after every change of the schema and after every compaction: whole rows, single rows, versions, and moments of
the past, which both answer in the schema of today; a moment that a compaction let go of is gone, and never answered
wrongly. Compactions merge everything, or any of the files of a group.
"""

from __future__ import annotations

import contextlib
import datetime
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.model.declaration import Group, Schema
from ebla.model.schema import WILDCARD
from ebla.model.schema_change import Alteration, altered
from ebla.tablet.upkeep.compaction import Choice
from ebla.tablet.upkeep.compactor import Chosen
from tests.support.inside import engine_of, state_of
from tests.support.seeds import seeds

from .alterations import any_change, columns_of
from .comparing import as_rows, compare
from .pair import TINY, crash_and_reopen
from .reference import ReferenceTable, Row

KEYS = ("", "a", "a\x00", "b", "m", "z")
VALUES: dict[str, tuple[Any, ...]] = {
    "int32": (-(2**31), -1, 0, 7, None),
    "int64": (-(2**53), 2**53, 3, None),
    "float": (0.5, -1.25, None),
    "double": (0.1, -3.0, 1e300, None),
    "string": ("", "text", "long " * 30, None),
    "date32[day]": (datetime.date(1969, 12, 31), datetime.date(2026, 1, 1), None),
    "date64[ms]": (datetime.date(1971, 1, 2), None),
    "timestamp[ms]": (datetime.datetime(1960, 1, 1, 1), None),
}
START = Schema(
    key={"k": "string"},
    groups=[
        Group("x", columns={"a": "int32", "b": "string"}, max_versions="all"),
        Group("y", columns={"c": "int32", "d": "date32"}, max_versions="all", compression="zstd"),
        Group("p", families=["f", "g"]),
        Group("q", families=["h", "*"]),
    ],
)
SPLIT = ("a\x00", "m")


class Walk:
    """One table, its model, and the dice."""

    def __init__(self, path: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.db: Any = ebla.open(path, settings=TINY)
        self.db.create_table("t", START, splits=list(SPLIT) if seed % 2 else None)
        self.model = ReferenceTable(START.number())
        self.moments: list[int] = []
        self.horizon = 0  # what a compaction was told that nobody looks behind
        self.steps: list[str] = []

    @property
    def table(self) -> Any:
        return self.db.table("t")

    def step(self) -> None:
        ways = [self.put] * 5 + [self.erase] * 2 + [self.erase_range, self.flush, self.compact, self.reopen, self.recut]
        ways += [self.compact_some] * 2
        ways += [self.alter] * 4
        self.dice.choice(ways)()

    def row(self) -> Row:
        row: Row = {"k": self.dice.choice(KEYS)}
        columns = columns_of(self.model.schema)
        for _, name, kind in self.dice.sample(columns, self.dice.randint(0, min(3, len(columns)))):
            row[name] = self.dice.choice(VALUES[kind])
        families = [family.name for group in self.model.schema.groups for family in group.families]
        if WILDCARD in families:
            families = [name for name in families if name != WILDCARD] + ["loose", "other"]
        for name in self.dice.sample(families, self.dice.randint(0, min(2, len(families)))):
            row[f"{name}:{self.dice.choice('qr')}"] = self.dice.choice((b"1", b"2", b"long " * 20))
        return row

    def put(self) -> None:
        rows = [row for row in (self.row() for _ in range(self.dice.randint(1, 5))) if len(row) > 1]
        if rows:
            replace = self.dice.random() < 0.25
            txn = self.table.put(rows, replace=replace)
            self.model.put(rows, txn, replace=replace)
            self.moments.append(txn)

    def erase(self) -> None:
        key = self.dice.choice(KEYS)
        names = None
        if self.dice.random() < 0.5:
            names = [name for name in self.row() if name != "k"]
            names = [
                name.partition(":")[0] + ":" if ":" in name and self.dice.random() < 0.3 else name for name in names
            ]
            if not names:
                return
        now = engine_of(self.db).sequencer.committed
        txn = self.table.erase(key, columns=names)
        if txn > now:  # else there was no row to erase a column of
            self.model.erase((key,), txn, names)
            self.moments.append(txn)

    def erase_range(self) -> None:
        start, stop = sorted(self.dice.sample(KEYS, 2))
        txn = self.table.erase_range(start, stop)
        self.model.erase_range((start,), (stop,), txn)
        self.moments.append(txn)

    def flush(self) -> None:
        self.table.flush()

    def compact(self) -> None:
        with self.history_ending():
            self.table.compact()
        self.check("compact")

    def compact_some(self) -> None:
        """Merge any of the files of one group, as a strategy might choose them."""
        compactor, state = engine_of(self.db).compactor, state_of(self.table)
        metadata = state.view.metadata
        tablet, group = self.dice.choice(metadata.tablets), self.dice.choice(metadata.schema.groups)
        held = tablet.group(group.id)
        if not held.fragments:
            return
        files = self.dice.sample(held.fragments, self.dice.randint(1, len(held.fragments)))
        with self.history_ending():
            horizon = engine_of(self.db).history.horizon_of(state, group.id)
            is_rooted = all(ref in files or ref.txn_min > horizon for ref in held.fragments)
            choice = Choice(tuple(files), "depth", is_rooted)
            # In vain if the compactor in the background has merged one of them meanwhile.
            compactor._carry_out(state, Chosen(metadata.schema.version, tablet, group, choice, horizon))
        self.check("compact_some")

    @contextlib.contextmanager
    def history_ending(self) -> Iterator[None]:
        """Let history end now, as far as all is in files; or let it be."""
        store = engine_of(self.db)
        history: Any = store.history
        horizon = history.bound

        def now(table: Any, group: int) -> int:
            unflushed = table.view.oldest_in_memory(group)
            self.horizon = store.sequencer.committed
            return store.sequencer.committed if unflushed is None else min(store.sequencer.committed, unflushed - 1)

        if self.dice.random() < 0.6:
            history.bound = now
        try:
            yield
        finally:
            history.bound = horizon

    def reopen(self) -> None:
        if self.dice.random() < 0.5:
            self.db = crash_and_reopen(self.db, TINY)
        else:
            path = self.db.path
            self.db.close()
            self.db = ebla.open(path, settings=TINY)
        assert self.table.schema == self.model.schema

    def recut(self) -> None:
        tablets = [tablet["id"] for tablet in self.table.tablets()]
        if len(tablets) > 1 and self.dice.random() < 0.5:
            at = self.dice.randrange(len(tablets) - 1)
            self.table.join(tablets=(tablets[at], tablets[at + 1]))
            return
        try:
            self.table.split(self.dice.choice(KEYS[1:]))
        except ebla.CannotSplit:
            return

    def alter(self) -> None:
        request = any_change(self.model.schema, self.dice)
        if request is None:
            return
        txn = engine_of(self.db).sequencer.allocated
        try:
            expected = altered(self.model.schema, Alteration(**request), txn)
        except ebla.RequestError as error:
            with pytest.raises(type(error)):
                self.db.alter_table("t", **request)
            return
        self.db.alter_table("t", **request)
        assert self.table.schema == expected
        self.model.alter(expected)
        self.steps.append(str(request))
        self.check("alter")

    def check(self, what: str) -> None:
        label = f"after {what}; schema changes so far:\n  " + "\n  ".join(self.steps)
        table, model = self.table, self.model
        scan = table.scan()
        expected = model.scan(as_of=scan.txn)
        compare(as_rows(scan), as_rows(expected), model, label)
        many = table.scan(versions=100)
        compare(as_rows(many), as_rows(model.scan(as_of=many.txn, versions=100)), model, f"versions {label}")
        key = self.dice.choice(KEYS)
        compare(as_rows([table.get(key)]), as_rows([model.get((key,), as_of=scan.txn)]), model, f"get {key!r} {label}")
        found = table.get_many(KEYS).column("_found").to_pylist()
        assert found == [model.exists((one,), scan.txn) for one in KEYS], label
        names = [name for _, name, _ in columns_of(model.schema)]
        if names:
            some = self.dice.sample(names, min(2, len(names)))
            one = table.scan(columns=some)
            compare(as_rows(one), as_rows(model.scan(columns=some, as_of=one.txn)), model, f"{some} {label}")
        if self.moments:
            moment = self.dice.choice(self.moments)
            try:
                found = as_rows(table.scan(as_of=moment))
            except ebla.HistoryGone:
                assert moment < self.horizon, label
            else:
                compare(found, as_rows(model.scan(as_of=moment)), model, f"as of {moment} {label}")


def walk(path: Path, seed: int, steps: int) -> None:
    one = Walk(path, seed)
    try:
        for _ in range(steps):
            one.step()
        one.compact()
        one.check("all")
    finally:
        one.db.close()


@pytest.mark.parametrize("seed", seeds(3, 10))
def test_store_equals_model_through_any_change_of_the_schema(tmp_path: Path, seed: int) -> None:
    walk(tmp_path / "data", seed, 50)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 1_400))
def test_store_equals_model_through_any_change_of_the_schema_for_long(tmp_path: Path, seed: int) -> None:
    walk(tmp_path / "data", seed, 200)
