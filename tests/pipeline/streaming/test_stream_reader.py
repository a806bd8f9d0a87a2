"""The source of a stream without Spark around it: its batches, applied one after the other, are the table."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

import ebla
from ebla.client.moments import time_of
from ebla.errors import HistoryGone, RequestError, SchemaChanged, UnknownTable
from ebla.pipeline.change_feed.changes import BEFORE, CHANGE
from ebla.pipeline.streaming.stream_options import StreamReadOptions
from ebla.pipeline.streaming.stream_reader import EblaStreamReader, stream_schema
from ebla.settings import Settings
from tests.support.inside import engine_of
from tests.support.seeds import seeds

POINTS = ebla.Schema(
    key={"k": "string"},
    groups=[ebla.Group("a", columns={"n": "int64"}), ebla.Group("b", columns={"s": "string"})],
)
SHORT = Settings(history_seconds=0, background_compaction=False)


def reader_of(root: Path, **options: str) -> EblaStreamReader:
    given = {"root": str(root), "table": "t", "since": "snapshot", **options}
    read = StreamReadOptions.of(given)
    return EblaStreamReader(read, stream_schema(read))


class Follows:
    """What Spark does with a source: asks how far, plans, reads, commits; crashes and starts again."""

    def __init__(self, root: Path, rows_max: int | None = None, **options: str) -> None:
        self.root, self.options = root, options
        self.limit: ReadLimit = ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)
        self.reader = reader_of(root, **options)
        self.at = self.reader.initialOffset()
        self.rows: dict[str, dict[str, Any]] = {}
        self.batches: list[int] = []

    def batch(self, *, commit: bool = True) -> bool:
        """Take one batch; tell whether there was one."""
        self.reader._stream._follower._rests_until = 0.0
        end = self.reader.latestOffset(self.at, self.limit)
        if end == self.at:
            return False
        self.apply(self.read(self.at, end))
        self.at = end
        if commit:
            self.reader.commit(end)
        return True

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        parts = self.reader.partitions(start, end)
        return [row for part in parts for found in self.reader.read(part) for row in found.to_pylist()]

    def apply(self, changes: list[dict[str, Any]]) -> None:
        assert len({row["k"] for row in changes}) == len(changes)
        self.batches.append(len(changes))
        for row in changes:
            kind, values = row[CHANGE], {name: value for name, value in row.items() if name not in (CHANGE, BEFORE)}
            assert kind == ("erase" if kind == "erase" else "update" if row["k"] in self.rows else "insert")
            if kind == "erase":
                del self.rows[row["k"]]
            else:
                self.rows[row["k"]] = values

    def drain(self) -> None:
        while self.batch():
            pass

    def restart(self) -> None:
        self.reader.stop()
        self.reader = reader_of(self.root, **self.options)


def rows_of(table: ebla.Table) -> dict[str, dict[str, Any]]:
    return {row["k"]: dict(row) for row in table.scan()}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "store", settings=SHORT) as db:
        yield db


@pytest.mark.parametrize("seed", seeds(3, 6))
def test_batches_follow_the_table_through_everything_that_happens_to_it(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    root = tmp_path / "store"
    db = ebla.open(root, settings=SHORT)
    table = db.create_table("t", POINTS)
    table.put([{"k": f"{n:03}", "n": n, "s": str(n)} for n in range(100)])
    follows = Follows(root, rows_max=dice.choice([None, 7, 40]))
    for _ in range(60):
        key = f"{dice.randrange(130):03}"
        match dice.choice(
            ["put", "put", "part", "erase", "range", "flush", "compact", "cut", "join", "reopen", "batch"]
        ):
            case "put":
                table.put([{"k": f"{n:03}", "n": dice.randrange(9), "s": "x"} for n in dice.sample(range(130), 9)])
            case "part":
                table.put({"k": key, "s": None if dice.random() < 0.3 else "y"})
            case "erase":
                table.erase(key)
            case "range":
                table.erase_range(key, f"{int(key) + 5:03}")
            case "flush":
                table.flush()
            case "compact":
                table.compact()
            case "cut":
                if table.tablets() and key not in [at["first"] for at in table.tablets()]:
                    table.split(key)
            case "join":
                if len(table.tablets()) > 1:
                    ids = [at["id"] for at in table.tablets()]
                    place = dice.randrange(len(ids) - 1)
                    table.join(tablets=(ids[place], ids[place + 1]))
            case "reopen":
                db.close()
                db = ebla.open(root, settings=SHORT)
                table = db.table("t")
                follows.restart()
            case "batch":
                if dice.random() < 0.3:
                    # Read, and lost before it was written down that it was done.
                    end = follows.reader.latestOffset(follows.at, follows.limit)
                    first = follows.read(follows.at, end)
                    follows.restart()
                    again = follows.read(follows.at, end)
                    assert sorted(map(repr, first)) == sorted(map(repr, again))
                follows.batch()
    follows.drain()
    assert follows.rows == rows_of(table)
    if isinstance(follows.limit, ReadMaxRows):
        assert max(follows.batches) <= follows.limit.max_rows
    follows.reader.stop()
    db.close()


def test_a_stream_begins_where_it_is_told(store: ebla.Database) -> None:
    table = store.create_table("t", POINTS)
    table.put([{"k": "a", "n": 1}, {"k": "b", "n": 1}])
    txn = table.put({"k": "a", "n": 2})
    table.put({"k": "b", "n": 3})
    begins = {"snapshot": {"a": "insert", "b": "insert"}, "now": {}, str(txn): {"b": "update"}}
    begins[time_of(txn).isoformat()] = begins[str(txn)]
    begins[datetime.now(UTC).isoformat()] = {}
    for since, expected in begins.items():
        follows = Follows(store.path, since=since, before="true")
        end = follows.reader.latestOffset(follows.at, ReadAllAvailable())
        assert {row["k"]: row[CHANGE] for row in follows.read(follows.at, end)} == expected
        follows.reader.stop()


def test_a_part_of_the_rows_and_columns_can_be_followed(store: ebla.Database) -> None:
    table = store.create_table("t", POINTS, splits=["5"])
    table.put([{"k": f"{n}", "n": n, "s": "x"} for n in range(10)])
    follows = Follows(store.path, rows_max=2, start="3", stop="8", columns="s")
    follows.drain()
    assert follows.rows == {f"{n}": {"k": f"{n}", "s": "x"} for n in range(3, 8)}
    assert follows.batches == [2, 2, 1]
    follows.reader.stop()


def test_what_is_committed_later_waits_until_the_round_is_over(store: ebla.Database) -> None:
    table = store.create_table("t", POINTS)
    table.put([{"k": f"{n}", "n": 0} for n in range(6)])
    follows = Follows(store.path, rows_max=2)
    seen = []
    for number in range(1, 4):
        assert follows.batch()
        seen.append(sorted((row["k"], row["n"]) for row in follows.rows.values()))
        table.put([{"k": "0", "n": number}, {"k": "5", "n": number}])
    assert seen[-1] == [(f"{n}", 0) for n in range(6)]
    follows.drain()
    assert follows.rows == rows_of(table)
    follows.reader.stop()


def test_batches_have_about_as_many_bytes_as_asked_for(store: ebla.Database) -> None:
    table = store.create_table("t", POINTS)
    dice = random.Random(1)
    table.put([{"k": f"{n:04}", "n": n, "s": dice.randbytes(500).hex()} for n in range(200)])
    table.flush()
    follows = Follows(store.path, max_bytes="20000")
    follows.limit = follows.reader.getDefaultReadLimit()
    assert follows.limit == ReadMaxBytes(20_000)
    follows.drain()
    assert follows.rows == rows_of(table)
    whole = sum(map(len, (row["s"] for row in follows.rows.values())))
    assert 3 < len(follows.batches) < 20
    assert max(follows.batches) * whole / 200 < 50_000
    follows.reader.stop()
    for asked, limit in (("max_rows", ReadMaxRows), ("since", ReadAllAvailable)):
        assert isinstance(reader_of(store.path, **{asked: "5"}).getDefaultReadLimit(), limit)


def test_available_now_ends_with_what_was_there(store: ebla.Database) -> None:
    table = store.create_table("t", POINTS)
    table.put([{"k": f"{n}", "n": 0} for n in range(5)])
    follows = Follows(store.path, rows_max=2)
    follows.reader.prepareForTriggerAvailableNow()
    table.put({"k": "later", "n": 0})
    follows.drain()
    assert sorted(follows.rows) == [f"{n}" for n in range(5)]
    follows.restart()
    follows.reader.prepareForTriggerAvailableNow()
    follows.drain()
    assert follows.rows == rows_of(table)
    assert not follows.batch()
    follows.reader.stop()


def test_the_history_of_a_stream_is_held_and_let_go(store: ebla.Database) -> None:
    table = store.create_table("t", POINTS)
    table.put({"k": "a", "n": 1})
    follows = Follows(store.path, since="now")
    (pin,) = store.snapshots()
    for n in range(2, 5):
        table.put({"k": "a", "n": n})
        table.compact()
    follows.restart()
    follows.rows = {"a": {"k": "a", "n": 1}}
    assert follows.batch()
    assert store.snapshots() == {pin: table.scan().txn}
    gone = table.scan().txn - 1
    for n in range(2):
        table.put({"k": "a", "n": n})
        table.compact()
    with pytest.raises(HistoryGone, match="history reaches back"):
        reader_of(store.path, since=str(gone)).initialOffset()
    # Nobody moved it for a long time, and somebody let go of it.
    for name in store.snapshots():
        store.snapshot(name).release()
    for n in range(2):
        table.put({"k": "a", "n": -n})
        table.compact()
    table.put({"k": "a", "n": 9})
    follows.restart()
    end = follows.reader.latestOffset(follows.at, ReadAllAvailable())
    with pytest.raises(HistoryGone, match="history reaches back"):
        follows.reader.partitions(follows.at, end)
    follows.reader.stop()


def test_a_pin_is_held_for_long_only_when_a_batch_is_written_down(store: ebla.Database) -> None:
    def held() -> tuple[float, int]:
        (pin,) = engine_of(store).pins.all()
        assert pin.expires_microseconds is not None
        return (pin.expires_microseconds - time.time_ns() // 1000) / 1e6, pin.txn

    table = store.create_table("t" * 120, POINTS)
    txn = table.put({"k": "a", "n": 1})
    follows = Follows(store.path, table="t" * 120)
    end = follows.reader.latestOffset(follows.at, ReadAllAvailable())
    assert held()[0] <= 600
    follows.reader.partitions(follows.at, end)
    assert held()[0] > 600_000
    assert held()[1] == txn
    # Somebody let go of it before the first batch was done: it is held again, as far as it is needed.
    store.snapshot(*store.snapshots()).release()
    follows.restart()
    follows.reader.partitions(follows.at, end)
    assert held()[1] == txn
    follows.reader.stop()


def test_a_quiet_table_goes_on_with_the_store(store: ebla.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_table("t", POINTS)
    other = store.create_table("other", POINTS)
    other.put({"k": "a", "n": 0})
    follows = Follows(store.path, since="now")
    other.put({"k": "a", "n": 1})
    assert not follows.batch()
    monkeypatch.setattr("ebla.pipeline.streaming.change_stream.QUIET_SECONDS", -1.0)
    txn = other.put({"k": "a", "n": 2})
    assert follows.batch()
    assert follows.batches == [0]
    assert [*store.snapshots().values()] == [txn]
    follows.reader.stop()


def test_a_table_that_is_dropped_or_made_anew_ends_its_stream(store: ebla.Database) -> None:
    store.create_table("t", POINTS)
    follows = Follows(store.path)
    store.drop_table("t")
    with pytest.raises(UnknownTable, match="dropped"):
        follows.batch()
    store.create_table("t", POINTS).put({"k": "a", "n": 1})
    follows.restart()
    with pytest.raises(UnknownTable, match="made anew"):
        follows.batch()
    follows.reader.stop()


def test_a_table_that_is_altered_goes_on_after_a_restart(store: ebla.Database) -> None:
    table = store.create_table("t", POINTS)
    table.put({"k": "a", "n": 1, "s": "x"})
    follows = Follows(store.path)
    assert follows.batch()
    store.alter_table("t", add_columns={"b": {"more": "int32"}})
    table.put({"k": "b", "more": 7})
    with pytest.raises(SchemaChanged, match="start the query again"):
        follows.batch()
    follows.restart()
    assert follows.batch()
    assert follows.rows["b"] == {"k": "b", "n": None, "s": None, "more": 7}
    # The columns change between the plan of a batch and its tasks.
    table.put({"k": "c", "n": 1})
    follows.reader._stream._follower._rests_until = 0.0
    end = follows.reader.latestOffset(follows.at, ReadAllAvailable())
    parts = follows.reader.partitions(follows.at, end)
    store.alter_table("t", drop_columns=["more"])
    with pytest.raises(SchemaChanged):
        [*follows.reader.read(parts[0])]
    follows.reader.stop()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"since": "yesterday"}, "neither snapshot nor now"),
        ({"sincee": "now"}, "no option 'sincee'"),
        ({"max_rows": "0"}, "from 1 on"),
        ({"max_rows": "5", "max_bytes": "5"}, "one of them"),
        ({"before": "perhaps"}, "false or true"),
        ({"hold_seconds": "1"}, "60 seconds"),
        ({"hold_seconds": "long"}, "60 seconds"),
        ({"prefix": "a", "start": "b"}, "either"),
        ({"columns": "x"}, "x"),
        ({"table": "missing"}, "missing"),
        ({"as_of": "5"}, "no option 'as_of'"),
    ],
)
def test_options_that_cannot_be_are_refused(store: ebla.Database, options: dict[str, str], match: str) -> None:
    store.create_table("t", POINTS)
    with pytest.raises(RequestError, match=match):
        reader_of(store.path, **options)


def test_a_stream_must_say_where_it_begins(store: ebla.Database) -> None:
    with pytest.raises(RequestError, match="where does the stream begin"):
        StreamReadOptions.of({"root": str(store.path), "table": "t"})
    store.create_table("t", POINTS).put({"k": "a", "n": 1})
    with pytest.raises(RequestError, match="later than the newest"):
        reader_of(store.path, since="2999-01-01").initialOffset()
