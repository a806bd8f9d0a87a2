"""Opening a store again: the torn end of the log is cut, its damaged middle is refused, and nothing happens twice."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.client.database import Database
from ebla.client.embedded.coordination_place import COORDINATION_FILE
from ebla.client.embedded.opening import wire
from ebla.clock import ManualClock
from ebla.coordination.sqlite import SqliteCoordination
from ebla.rows.rows import to_put_batch
from ebla.settings import KIB, Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.log.log_reader import read_segment
from tests.support.inside import abandon, engine_of
from tests.support.logs import without_reserved

SCHEMA = ebla.Schema(
    key={"k": "string"},
    groups=[
        ebla.Group("typed", columns={"n": "int64", "text": "string"}, max_versions="all"),
        ebla.Group("cells", families=["c"]),
    ],
)
ROLLING = Settings(log_segment_bytes=4 * KIB, recent_row_slots=1 << 8)


def written(path: Path, count: int = 6, settings: Settings | None = None) -> Path:
    """Make a store with commits that are only in its log, as a killed process leaves it; return the last segment."""
    db = ebla.open(path, settings=settings)
    table = db.create_table("t", SCHEMA, ["m"])
    for n in range(count):
        table.put([{"k": f"a{n:02d}", "n": n, "text": "x" * 100}, {"k": "z", "n": n, "c:n": b"%d" % n}])
    abandon(db)
    last = segments(path)[-1]
    without_reserved(last)
    return last


def segments(path: Path) -> list[Path]:
    return sorted((path / "log").rglob("*.log"))


def offsets(segment: Path) -> list[int]:
    """Return where the entries of a segment begin."""
    files = LocalFiles(segment.parent)
    return [offset for offset, _ in read_segment(files, segment.name)]


def rows(db: Database) -> list[dict[str, Any]]:
    return [dict(row) for row in db.table("t").scan()]


def check_first(db: Database, count: int) -> None:
    """Assert that exactly the first `count` commits are there."""
    assert [row["k"] for row in rows(db)] == [*(f"a{n:02d}" for n in range(count)), "z"]
    assert db.table("t").get("z") == {"k": "z", "n": count - 1, "text": None, "c:n": b"%d" % (count - 1)}


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\xebLE\x01" + bytes(60), b"garbage" * 30, b"\xeb"])
def test_a_torn_tail_is_cut(tmp_path: Path, tail: bytes) -> None:
    segment = written(tmp_path / "s")
    whole = segment.read_bytes()
    segment.write_bytes(whole + tail)
    with ebla.open(tmp_path / "s", read_only=True) as db:
        check_first(db, 6)
    assert segment.read_bytes() == whole + tail, "only the one who holds the lock cuts"
    with ebla.open(tmp_path / "s") as db:
        check_first(db, 6)
        assert segment.read_bytes() == whole
        db.table("t").put({"k": "a06", "n": 6})
    with ebla.open(tmp_path / "s") as db:
        assert db.table("t").get("a06")["n"] == 6


def test_an_entry_cut_anywhere_is_gone_as_a_whole_and_all_before_it_is_there(tmp_path: Path) -> None:
    segment = written(tmp_path / "s")
    whole, last = segment.read_bytes(), offsets(segment)[-1]
    shutil.rmtree(tmp_path / "s/log-reach")  # a power cut may leave an older one, or none; a kill leaves whole entries
    for size in range(last, len(whole), 97):
        segment.write_bytes(whole[:size])
        with ebla.open(tmp_path / "s", read_only=True) as db:
            check_first(db, 5)


def test_damage_in_the_middle_of_the_log_is_refused_naming_file_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "s"
    segment = written(path)
    whole = segment.read_bytes()
    starts = offsets(segment)
    for entry in (0, 2, 4):
        for within in (3, 20, 40, 200):
            place = starts[entry] + within
            segment.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
            for read_only in (False, True):
                with pytest.raises(ebla.Corruption) as caught:
                    ebla.open(path, read_only=read_only)
                assert caught.value.file.endswith(segment.name)
                assert caught.value.offset == starts[entry]
                assert str(starts[entry]) in str(caught.value)
                assert segment.name in str(caught.value)
            assert len(segment.read_bytes()) == len(whole), "a refusal changes nothing"
    segment.write_bytes(whole)  # repaired: all is there, and the lock was let go
    with ebla.open(path) as db:
        check_first(db, 6)


def test_damage_at_the_end_of_a_finished_segment_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "s"
    written(path, 30, ROLLING)
    first, *others = segments(path)
    assert len(others) > 1
    whole = first.read_bytes()
    for broken in (whole[:-1], whole[:-40], whole + b"\0", whole[:-5] + b"\xff" + whole[-4:]):
        first.write_bytes(broken)
        with pytest.raises(ebla.Corruption, match=first.name):
            ebla.open(path, settings=ROLLING)
    first.unlink()
    first.touch()
    with pytest.raises(ebla.StoreError, match=first.name):
        ebla.open(path, settings=ROLLING)
    first.write_bytes(whole)
    with ebla.open(path, settings=ROLLING) as db:
        check_first(db, 30)


def test_a_segment_that_is_missing_in_the_middle_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s"
    written(path, 30, ROLLING)
    middle = segments(path)[1]
    kept = middle.read_bytes()
    middle.unlink()
    with pytest.raises(ebla.MissingFile, match=middle.name):
        ebla.open(path)
    middle.write_bytes(kept)
    with ebla.open(path) as db:
        check_first(db, 30)


def test_segments_that_changed_places_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    written(path, 30, ROLLING)
    one, two, *_ = segments(path)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(ebla.Corruption, match=r"segment \d+ of the log"):
        ebla.open(path)


# --- closing in order ----------------------------------------------------------------------------


def test_after_a_clean_close_nothing_is_replayed(tmp_path: Path) -> None:
    settings = Settings(close_flush_bytes=0)
    with ebla.open(tmp_path / "s", settings=settings) as db:
        table = db.create_table("t", SCHEMA, ["m"])
        table.put([{"k": f"{n:04d}", "n": n, "c:n": b"1"} for n in range(500)])
        table.put({"k": "none", "n": 1}, wait="none")
    with ebla.open(tmp_path / "s", settings=settings) as db:
        assert db.stats()["memory_bytes"] == 0
        assert len(rows(db)) == 501
        assert all(group["memory_records"] == 0 for group in db.table("t").stats()["groups"].values())


def test_a_little_may_stay_in_the_log_over_a_close_and_is_not_lost(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "s") as db:
        db.create_table("t", SCHEMA).put({"k": "a", "n": 1}, wait="none")
    assert not list((tmp_path / "s" / "fragments").rglob("*.parquet"))
    with ebla.open(tmp_path / "s") as db:
        assert db.table("t").get("a")["n"] == 1


def test_a_second_close_and_a_use_after_it_are_told(tmp_path: Path) -> None:
    db = ebla.open(tmp_path / "s")
    table = db.create_table("t", SCHEMA)
    db.close()
    db.close()
    with pytest.raises(ebla.Closed):
        db.table("t")
    with pytest.raises(ebla.Closed):
        table.put({"k": "a"})


@pytest.mark.parametrize("end", ["close", "crash", "drop_table"])
def test_writers_that_are_at_it_when_the_store_or_table_goes_are_told_and_lose_nothing(
    tmp_path: Path, end: str
) -> None:
    db = ebla.open(tmp_path / "s", settings=ROLLING)
    table = db.create_table("t", SCHEMA, ["m"])
    kept = db.create_table("kept", SCHEMA)
    acked: dict[int, int] = {}
    told: list[Exception] = []
    begun = threading.Barrier(5)

    def write(thread: int) -> None:
        one = kept if thread % 2 else table
        try:
            for n in range(100_000):
                one.put({"k": f"{thread}", "n": n, "c:n": b"%d" % n}, wait="durable" if n % 3 else "logged")
                acked[thread] = n
                if n == 5:
                    begun.wait(60)
        except ebla.EblaError as error:
            told.append(error)

    threads = [threading.Thread(target=write, args=(thread,), daemon=True) for thread in range(4)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    if end == "drop_table":
        db.drop_table("t")
        for thread in threads[::2]:
            thread.join(60)
        assert [type(error) for error in told] == [ebla.UnknownTable] * 2
        db.close()
    else:
        abandon(db) if end == "crash" else db.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a writer hangs"
    assert all(isinstance(error, (ebla.Closed, ebla.UnknownTable)) for error in told)
    with ebla.open(tmp_path / "s", settings=ROLLING) as db:
        for thread, n in acked.items():
            name = "kept" if thread % 2 else "t"
            if name in db.tables():
                found = db.table(name).get(f"{thread}")
                assert found["n"] in (n, n + 1)
                assert found["c:n"] == b"%d" % found["n"]
        assert ("t" in db.tables()) == (end != "drop_table")


# --- time ----------------------------------------------------------------------------------------


def opened_at(path: Path, clock: ManualClock) -> Database:
    path.mkdir(exist_ok=True)
    coordination = SqliteCoordination(path / COORDINATION_FILE, clock)
    return wire(path, LocalFiles(path), coordination, clock, Settings(), None)


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_txns_never_go_back_over_restarts_even_if_the_clock_does(tmp_path: Path, is_killed: bool) -> None:
    clock = ManualClock()
    db = opened_at(tmp_path / "s", clock)
    table = db.create_table("t", SCHEMA)
    last = table.put({"k": "a", "n": 0})
    for n in range(1, 6):
        if is_killed:
            abandon(db)
        else:
            db.close()
        clock.set_microseconds(clock.microseconds() - 3_600_000_000)
        db = opened_at(tmp_path / "s", clock)
        table = db.table("t")
        assert table.get("a").txn >= last
        txn = table.put({"k": "a", "n": n})
        assert txn > last
        last = txn
    assert [version.value for version in next(iter(table.scan(versions=9)))["n"]] == [5, 4, 3, 2, 1, 0]
    db.close()


# --- requests that come twice --------------------------------------------------------------------


def apply(db: Database, row: dict[str, Any], request: tuple[str, int]) -> int:
    """Put a row as a client does that numbers its requests."""
    state = engine_of(db).table("t")
    mutation = state.admission.put(to_put_batch(row, state.view.schema))
    return engine_of(db).apply(state, mutation, request=request)


def test_a_request_that_is_repeated_after_a_reopening_is_answered_and_not_applied_again(tmp_path: Path) -> None:
    db = ebla.open(tmp_path / "s")
    db.create_table("t", SCHEMA)
    first = apply(db, {"k": "a", "n": 1}, ("client", 7))
    other = apply(db, {"k": "a", "n": 2}, ("somebody else", 7))
    assert apply(db, {"k": "a", "n": 1}, ("client", 7)) == first
    abandon(db)
    for _ in range(2):
        db = ebla.open(tmp_path / "s")
        assert apply(db, {"k": "a", "n": 1}, ("client", 7)) == first
        assert apply(db, {"k": "a", "n": 2}, ("somebody else", 7)) == other
        assert [v.value for v in next(iter(db.table("t").scan(versions=9)))["n"]] == [2, 1]
        db.close()
    db = ebla.open(tmp_path / "s")
    assert apply(db, {"k": "a", "n": 3}, ("client", 8)) > other
    assert db.table("t").get("a")["n"] == 3
    db.close()


def test_replies_are_remembered_when_what_they_answer_was_flushed_and_its_log_deleted(tmp_path: Path) -> None:
    settings = Settings(log_segment_bytes=2 * KIB, close_flush_bytes=0)
    db = ebla.open(tmp_path / "s", settings=settings)
    table = db.create_table("t", SCHEMA)
    first = apply(db, {"k": "a", "n": 1}, ("client", 7))
    for n in range(20):
        table.put({"k": "b", "n": n, "text": "x" * 500})
    before = segments(tmp_path / "s")
    table.flush()
    table.put({"k": "b", "n": 100})
    assert len(segments(tmp_path / "s")) < len(before), "the log with the reply in it is gone"
    db.close()
    with ebla.open(tmp_path / "s", settings=settings) as db:
        assert apply(db, {"k": "a", "n": 1}, ("client", 7)) == first
        assert [v.value for v in next(iter(db.table("t").scan(versions=9)))["n"]] == [1]


def test_versions_written_right_after_a_crash_keep_their_own_timestamps(tmp_path: Path) -> None:
    schema = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("c", families=["f"])])
    db = ebla.open(tmp_path)
    db.create_table("t", schema).put({"k": "a", "f:x": b"0"})
    abandon(db)
    with ebla.open(tmp_path) as db:
        table = db.table("t")
        for number in (1, 2, 3):
            table.put({"k": "a", "f:x": b"%d" % number})
        (row,) = table.scan(versions=9)
        assert [version.value for version in row["f:x"]] == [b"3", b"2", b"1", b"0"]


def test_closing_lets_go_of_the_log_that_it_flushed(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=Settings(log_segment_bytes=4 * KIB, close_flush_bytes=0)) as db:
        table = db.create_table("t", ebla.Schema(columns={"v": "string"}))
        for number in range(20):
            table.put([{"row": b"%d" % number, "v": "x" * 2_000}])
        assert db.stats()["log_segments"] > 5
    assert len(list(tmp_path.glob("log/*/*.log"))) <= 2


def test_a_close_that_leaves_nothing_to_replay_leaves_a_short_log_that_goes_on(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=ROLLING) as db:
        table = db.create_table("t", SCHEMA, ["m"])
        for n in range(40):
            table.put([{"k": f"a{n:02d}", "n": n, "text": "x" * 200}])
        told = apply(db, {"k": "c", "n": 7}, ("ada", 7))
        table.flush()
        before = segments(tmp_path)
    assert sum(path.stat().st_size for path in before if path.exists()) == 0
    (rest,) = segments(tmp_path)
    assert rest.name > before[-1].name
    assert rest.stat().st_size < 1 * KIB
    with ebla.open(tmp_path, read_only=True) as db:
        assert len(rows(db)) == 41
        assert db.snapshot().txn >= told
    with ebla.open(tmp_path, settings=ROLLING) as db:
        assert apply(db, {"k": "c", "n": 8}, ("ada", 7)) == told
        db.table("t").put([{"k": "b", "n": 1}])
        assert len(rows(db)) == 42
        abandon(db)
    assert segments(tmp_path) == [rest]
    with ebla.open(tmp_path, settings=ROLLING) as db:
        assert len(rows(db)) == 42


def test_a_close_that_leaves_something_to_replay_keeps_the_log(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as db:
        table = db.create_table("t", SCHEMA, ["m"])
        table.put([{"k": "a", "n": 1, "text": "x" * 50_000}])
        table.flush()
        table.put([{"k": "b", "n": 2}])
        before = [(path.name, without_reserved(path)) for path in segments(tmp_path)]
    (kept,) = segments(tmp_path)
    assert [(kept.name, kept.stat().st_size)] == before
    with ebla.open(tmp_path) as db:
        assert [row["k"] for row in rows(db)] == ["a", "b"]
