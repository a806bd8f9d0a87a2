"""Changes as JSON lines, followed in this process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ebla
from ebla.pipeline.streaming import printing
from ebla.pipeline.streaming.printing import print_changes

POINTS = ebla.Schema(key={"k": "string"}, columns={"n": "int64"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "data") as db:
        db.create_table("t", POINTS)
        yield db


class Stopped(Exception):
    """What ends a stream that is followed, in place of Ctrl-C."""


def follow(
    store: ebla.Database, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, each: Callable[[int], object]
) -> Iterator[str]:
    """Follow the table, and call `each` in place of waiting when nothing is new; yield the keys that were printed."""
    lines: list[str] = []
    quiet = itertools.count(1)
    monkeypatch.setattr("ebla.direct.following.REST_FACTOR", 0.0)
    monkeypatch.setattr("ebla.pipeline.streaming.printing.time.sleep", lambda seconds: each(next(quiet)))
    try:
        print_changes(str(store.path), "t", lines.append, since="now", checkpoint=checkpoint, follow=True, spark=False)
    except Stopped:
        yield from (json.loads(line)["k"] for line in lines)


def printed(store: ebla.Database, checkpoint: Path, since: str | None = None) -> list[tuple[str, str]]:
    lines: list[str] = []
    print_changes(str(store.path), "t", lines.append, since=since, checkpoint=checkpoint, spark=False)
    return [(row["k"], row["_change"]) for row in map(json.loads, lines)]


def test_what_is_put_while_it_is_followed_is_printed(
    store: ebla.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.table("t")
    table.put({"k": "old", "n": 0})

    def put(quiet: int) -> None:
        if quiet > 3:
            raise Stopped
        table.put([{"k": f"new-{quiet}", "n": n} for n in range(2)])

    assert [*follow(store, tmp_path / "seen", monkeypatch, put)] == ["new-1", "new-2", "new-3"]
    assert printed(store, tmp_path / "seen") == []
    table.put({"k": "later", "n": 1})
    assert printed(store, tmp_path / "seen") == [("later", "insert")]


def test_large_tables_are_printed_a_batch_at_a_time(
    store: ebla.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "BATCH_ROWS", 7)
    store.table("t").put([{"k": f"{n:03}", "n": n} for n in range(50)])
    told: list[str] = []
    lines: list[str] = []
    print_changes(
        str(store.path),
        "t",
        lines.append,
        since="snapshot",
        checkpoint=tmp_path / "seen",
        spark=False,
        progress=lambda now: told.append(now.phase),
    )
    assert [json.loads(line)["n"] for line in lines] == [*range(50)]
    assert told[-1] == "8 batches, 50 rows"


def test_a_batch_that_was_not_printed_to_its_end_is_printed_again(store: ebla.Database, tmp_path: Path) -> None:
    store.table("t").put([{"k": key, "n": 0} for key in "abc"])
    seen: list[str] = []

    def write(line: str) -> None:
        seen.append(json.loads(line)["k"])
        if len(seen) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        print_changes(str(store.path), "t", write, since="snapshot", checkpoint=tmp_path / "seen", spark=False)
    store.table("t").erase("b")
    store.table("t").put({"k": "d", "n": 0})
    # Since when is not asked again: it goes on from its checkpoint, and the batch ends at what there is now.
    assert printed(store, tmp_path / "seen", "now") == [("a", "insert"), ("c", "insert"), ("d", "insert")]


def test_the_history_that_the_next_call_needs_is_held(store: ebla.Database, tmp_path: Path) -> None:
    txn = store.table("t").put({"k": "a", "n": 0})
    printed(store, tmp_path / "seen", "snapshot")
    assert [*store.snapshots().values()] == [txn]
    store.table("t").put({"k": "a", "n": 1})
    assert printed(store, tmp_path / "seen") == [("a", "update")]
    (held,) = store.snapshots().values()
    assert held > txn


def test_a_stream_of_this_process_ends_where_the_table_is_another(
    store: ebla.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alter(quiet: int) -> None:
        assert quiet == 1
        store.alter_table("t", add_columns={"default": {"more": "int32"}})

    with pytest.raises(ebla.SchemaChanged, match="start it again"):
        [*follow(store, tmp_path / "seen", monkeypatch, alter)]
    store.table("t").put({"k": "a", "more": 1})
    assert printed(store, tmp_path / "seen") == [("a", "insert")]
    store.drop_table("t")
    store.create_table("t", POINTS)
    with pytest.raises(ebla.UnknownTable, match="another checkpoint"):
        printed(store, tmp_path / "seen")
