"""What is particular to the coordination service in a SQLite file: processes, damage, full disks, readers."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from ebla.clock import ManualClock, SystemClock
from ebla.coordination import sqlite_file
from ebla.coordination.service import CompareAndSet, CoordinationFailed, NodeExists, VersionConflict
from ebla.coordination.sqlite import FILE_NAME, SqliteCoordination
from ebla.coordination.sqlite_nodes import apply
from ebla.errors import Closed, Corruption, FormatTooNew, OutcomeUnknown, StoreNotFound, TimedOut

PATIENCE_SECONDS = 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def opened(file: Path, **options: object) -> SqliteCoordination:
    return SqliteCoordination(file, ManualClock(), **options)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


# --- several processes ---------------------------------------------------------------------------


def _count(file: Path, times: int) -> int:
    with SqliteCoordination(file, SystemClock()) as service:
        for _ in range(times):
            while True:
                node = service.read("counter")
                try:
                    service.compare_and_set("counter", str(int(node.value) + 1).encode(), node.version)
                    break
                except VersionConflict:
                    continue
    return times


def _create(file: Path) -> bool:
    with SqliteCoordination(file, SystemClock()) as service:
        try:
            service.create("first", str(os.getpid()).encode())
        except NodeExists:
            return False
        return True


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_of_processes_that_compare_and_set_none_loses_an_update(file: Path, processes: ProcessPoolExecutor) -> None:
    with opened(file) as service:
        service.create("counter", b"0")
        assert sum(processes.map(_count, [file] * 3, [40] * 3)) == 120
        assert service.read("counter").value == b"120"
        assert service.read("counter").version == 121


def test_processes_that_make_the_file_at_once_share_one_file(file: Path, processes: ProcessPoolExecutor) -> None:
    assert sum(processes.map(_create, [file] * 3)) == 1
    # Of processes that close at the same moment each may take another for the one that clears SQLite's log away.
    with opened(file) as service:
        assert service.read("first") is not None
    assert names(file.parent) == [FILE_NAME]


def test_a_watch_hears_of_a_change_in_another_process(file: Path, processes: ProcessPoolExecutor) -> None:
    with opened(file, poll_seconds=0.005) as service:
        heard = threading.Event()
        service.watch("first", lambda path: heard.set())
        processes.submit(_create, file).result()
        assert heard.wait(PATIENCE_SECONDS)


KILLED = """
import os, signal, sys
from ebla.clock import SystemClock
from ebla.coordination.sqlite import SqliteCoordination
service = SqliteCoordination(sys.argv[1], SystemClock())
service.create("acknowledged", b"1")
service._writer.execute("BEGIN IMMEDIATE")
service._writer.execute("INSERT INTO changes (path) VALUES ('never committed')")
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_writer(file: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.parametrize("read_only", [True, False])
def test_after_a_killed_writer_everything_acknowledged_is_there(file: Path, read_only: bool) -> None:
    kill_a_writer(file)
    with opened(file, read_only=read_only) as service:
        assert service.list("") == ["acknowledged"]
        assert service.read("acknowledged").value == b"1"


def test_writers_that_wait_too_long_get_a_retryable_error(file: Path) -> None:
    with opened(file) as one, opened(file, busy_seconds=0.01) as two:
        one._writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimedOut, match="try again"):
            two.create("a", b"")
        one._writer.execute("ROLLBACK")
        two.create("a", b"")


def test_a_write_that_waited_for_another_is_checked_against_what_that_one_left(file: Path) -> None:
    with opened(file) as one, opened(file) as two, ThreadPoolExecutor(1) as pool:
        version = one.create("a", b"1")
        one._writer.execute("BEGIN IMMEDIATE")
        apply(one._writer, file, CompareAndSet("a", b"3", version))
        waits = threading.Event()
        two._writer.set_trace_callback(lambda sql: waits.set() if sql.startswith(("BEGIN IMM", "UPDATE")) else None)
        late = pool.submit(two.compare_and_set, "a", b"2", version)
        assert waits.wait(PATIENCE_SECONDS)
        one._writer.execute("COMMIT")
        with pytest.raises(VersionConflict):
            late.result(PATIENCE_SECONDS)


# --- reading beside a writer ---------------------------------------------------------------------


def test_a_reader_of_a_file_at_rest_makes_no_file(file: Path) -> None:
    with opened(file) as writer:
        writer.create("a", b"1")
    assert names(file.parent) == [FILE_NAME]
    before = file.stat().st_mtime_ns
    with opened(file, read_only=True) as reader:
        assert reader.read("a").value == b"1"
        assert names(file.parent) == [FILE_NAME]
    assert (names(file.parent), file.stat().st_mtime_ns) == ([FILE_NAME], before)


def test_a_reader_follows_writers_that_come_and_go(file: Path) -> None:
    opened(file).close()
    with opened(file, read_only=True) as reader:
        assert reader.list("") == []
        for turn in range(3):
            with opened(file) as writer:
                writer.create(f"n{turn}", b"")
                assert len(reader.list("")) == turn + 1
            assert len(reader.list("")) == turn + 1


def test_a_reader_that_saw_no_writer_sees_what_later_ones_wrote(file: Path) -> None:
    with opened(file) as writer:
        version = writer.create("a", b"1")
    with opened(file, read_only=True) as reader:
        assert reader.read("a").value == b"1"
        with opened(file) as writer:
            writer.compare_and_set("a", b"2", version)
        assert reader.read("a").value == b"2"


def test_a_reader_reads_again_if_a_writer_came_and_went_meanwhile(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(file) as writer:
        version = writer.create("a", b"1")
    with opened(file, read_only=True) as reader:
        turns = iter(range(100))

        def connect(file: Path, busy_seconds: float, parameters: str) -> sqlite3.Connection:
            connection = sqlite_file_connect(file, busy_seconds, parameters)
            if "immutable" in parameters and next(turns) == 0:
                connection.execute("SELECT * FROM nodes").fetchall()
                with opened(file) as writer:
                    writer.compare_and_set("a", b"2", version)
            return connection

        sqlite_file_connect = sqlite_file.connect
        monkeypatch.setattr(sqlite_file, "connect", connect)
        assert reader.read("a").value == b"2"


def test_a_reader_reads_during_a_write_transaction_and_does_not_hold_it_up(file: Path) -> None:
    with opened(file) as writer, opened(file, read_only=True) as reader:
        version = writer.create("a", b"1")
        writer._writer.execute("BEGIN IMMEDIATE")
        assert reader.read("a").value == b"1"
        writer._writer.execute("ROLLBACK")
        writer.compare_and_set("a", b"2", version)
        assert reader.read("a").value == b"2"


def test_a_reader_of_an_empty_log_without_shared_memory_makes_no_file(file: Path) -> None:
    opened(file).close()
    Path(f"{file}-wal").touch()
    with opened(file, read_only=True) as reader:
        assert reader.list("") == []
    assert names(file.parent) == [FILE_NAME, f"{FILE_NAME}-wal"]


# --- watches -------------------------------------------------------------------------------------


def test_a_watch_that_fell_far_behind_fires_all_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebla.coordination.sqlite._CHANGES_KEPT", 4)
    monkeypatch.setattr("ebla.coordination.sqlite._CHANGES_TRIM_EVERY", 4)
    with opened(file, poll_seconds=0.005) as watcher, opened(file) as writer:
        busy, go_on, heard = threading.Event(), threading.Event(), threading.Event()

        def keep_busy(path: str) -> None:
            busy.set()
            assert go_on.wait(PATIENCE_SECONDS)

        watcher.watch("busy", keep_busy)
        watcher.watch("missed", lambda path: heard.set())
        writer.create("busy", b"")
        assert busy.wait(PATIENCE_SECONDS)
        writer.create("missed", b"")
        version = writer.create("noise", b"")
        for _ in range(20):
            version = writer.compare_and_set("noise", b"", version)
        ((oldest,),) = writer._reader.query("SELECT min(revision) FROM changes")
        assert oldest > 2  # the change of `missed` is no longer listed
        assert not heard.is_set()
        go_on.set()
        assert heard.wait(PATIENCE_SECONDS)


def test_the_list_of_changes_stays_short(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebla.coordination.sqlite._CHANGES_KEPT", 8)
    monkeypatch.setattr("ebla.coordination.sqlite._CHANGES_TRIM_EVERY", 4)
    with opened(file) as service:
        version = service.create("a", b"")
        for _ in range(50):
            version = service.compare_and_set("a", b"", version)
        ((count,),) = service._reader.query("SELECT count(*) FROM changes")
        assert count <= 8 + 4


def test_a_service_can_be_closed_by_its_own_watch(file: Path) -> None:
    service = opened(file)
    closed = threading.Event()

    def close(path: str) -> None:
        service.close()
        closed.set()

    service.watch("a", close)
    service.create("a", b"")
    assert closed.wait(PATIENCE_SECONDS)
    with pytest.raises(Closed):
        service.read("a")


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    "content", [b"", b"x", random.Random(16).randbytes(16), b"\xff" * 5000, b"SQLite format 3\0" + b"\xa5" * 8000]
)
def test_a_file_that_is_no_coordination_file_is_corruption_that_names_it(
    file: Path, content: bytes, read_only: bool
) -> None:
    file.write_bytes(content)
    with pytest.raises(Corruption, match=FILE_NAME):
        opened(file, read_only=read_only)
    assert file.read_bytes() == content


@pytest.mark.parametrize("read_only", [True, False])
def test_a_foreign_sqlite_file_is_refused(file: Path, read_only: bool) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE nodes (path)")
    connection.close()
    with pytest.raises(Corruption, match="not a coordination file"):
        opened(file, read_only=read_only)


def test_a_file_without_its_tables_is_corruption(file: Path) -> None:
    opened(file).close()
    with sqlite3.connect(file) as connection:
        connection.execute("DROP TABLE nodes")
    connection.close()
    with pytest.raises(Corruption, match="nodes"):
        opened(file)


def test_a_newer_format_is_refused(file: Path) -> None:
    opened(file).close()
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(FormatTooNew):
        opened(file)


def test_a_flipped_bit_in_a_value_is_found(file: Path) -> None:
    with opened(file) as service:
        service.create("a", b"a value that is easy to find")
    content = file.read_bytes()
    assert content.count(b"easy to find") == 1
    file.write_bytes(content.replace(b"easy to find", b"easy to fine"))
    with opened(file) as service, pytest.raises(Corruption, match="checksum of node 'a'"):
        service.read("a")


@pytest.mark.parametrize("options", [{"read_only": True}, {"create": False}])
def test_a_missing_file_is_not_made_unasked(file: Path, options: dict[str, bool]) -> None:
    with pytest.raises(StoreNotFound, match="no store"):
        opened(file, **options)
    assert names(file.parent) == []


def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        opened(tmp_path / "missing" / FILE_NAME)


def test_a_file_name_may_hold_any_character(tmp_path: Path) -> None:
    directory = tmp_path / "a?b#c%20d é"
    directory.mkdir()
    with opened(directory / FILE_NAME) as writer, opened(directory / FILE_NAME, read_only=True) as reader:
        writer.create("a", b"1")
        assert reader.read("a").value == b"1"
    assert FILE_NAME in names(directory)


# --- disks that fail -----------------------------------------------------------------------------


def test_a_full_disk_is_a_clear_error_changes_nothing_and_passes(file: Path) -> None:
    with opened(file) as service:
        service.create("a", b"1")
        ((pages,),) = service._writer.execute("PRAGMA page_count").fetchall()
        service._writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(CoordinationFailed, match="no space left") as raised:
            service.create("b", bytes(100_000))
        assert FILE_NAME in str(raised.value)
        assert service.list("") == ["a"]
        service._writer.execute("PRAGMA max_page_count = 1000000")
        service.create("b", bytes(100_000))
        assert service.list("") == ["a", "b"]


class FailingCommit:
    """A connection whose COMMIT goes wrong, before or after it took effect."""

    def __init__(self, connection: sqlite3.Connection, code: int, *, happens: bool) -> None:
        self._connection = connection
        self._code = code
        self._happens = happens

    def execute(self, sql: str, *rest: object) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return self._connection.execute(sql, *rest)
        if self._happens:
            self._connection.execute("COMMIT")
        error = sqlite3.OperationalError("planted")
        error.sqlite_errorcode = self._code
        raise error

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


@pytest.mark.parametrize("happens", [True, False])
def test_a_commit_that_ends_in_an_input_output_error_is_unknown_until_the_file_is_opened_again(
    file: Path, happens: bool
) -> None:
    with opened(file) as service:
        service.create("a", b"1")
        service._writer = FailingCommit(service._writer, sqlite3.SQLITE_IOERR_FSYNC, happens=happens)
        with pytest.raises(OutcomeUnknown):
            service.create("b", b"2")
        # What this process would read now may not be what is found after a crash: it does not answer at all.
        for use in (lambda: service.read("b"), lambda: service.list(""), lambda: service.create("c", b"")):
            with pytest.raises(CoordinationFailed, match="open the store again"):
                use()
    with opened(file) as service:
        assert service.list("") == (["a", "b"] if happens else ["a"])


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY])
def test_a_commit_that_certainly_did_not_happen_can_be_repeated(file: Path, code: int) -> None:
    with opened(file) as service:
        writer = service._writer
        service._writer = FailingCommit(writer, code, happens=False)
        with pytest.raises((CoordinationFailed, TimedOut)):
            service.create("b", b"2")
        service._writer = writer
        service.create("b", b"2")
