"""What a store tells by `logging`, under names that begin with ``ebla``, and that requests tell nothing."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ebla
from ebla.settings import Settings
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.write_path import WritePath
from ebla.timing import QUIET_SECONDS, Timing, Warner
from tests.support.inside import abandon, engine_of

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"v": "int64"})
CALM = Settings(background_compaction=False, garbage_age_seconds=0.0)


def told(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    assert all(record.name.split(".")[0] == "ebla" for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def only(texts: list[str], pattern: str) -> str:
    found = [text for text in texts if re.fullmatch(pattern, text)]
    assert len(found) == 1, (pattern, texts)
    return found[0]


def test_a_library_is_silent_until_somebody_listens() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("ebla").handlers)
    assert logging.getLogger("ebla").level == logging.NOTSET


def test_the_life_of_a_store_is_told_with_sizes_and_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ebla")
    seconds = r"[\d.]+ s"
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        table = db.create_table("t", SCHEMA)
        table.put(pa.table({"k": range(100), "v": range(100)}))
        table.flush()
        table.put({"k": 1, "v": 2})
        table.compact()
        left, right = table.split((50,))
        table.join((10,), (60,))
        db.alter_table("t", add_columns={"w": "string"})
        db.unload_table("t")
        db.load_table("t")
        db.gc(dry_run=False)
        db.gc(dry_run=False)
        db.rename_table("t", "u")
        db.create_table("gone", SCHEMA)
        db.drop_table("gone")
    texts = told(caplog)
    only(texts, rf"opened .*/s for writing: 0 tables, in {seconds}")
    only(texts, r"created table t, id \S+, 1 tablets")
    assert re.fullmatch(
        rf"flushed \d+ bytes of t to fragments/\S+, 100 records, \d+ bytes in {seconds}",
        next(text for text in texts if text.startswith("flushed")),
    )
    only(
        texts,
        r"compacted t \(default\), manual: 2 files, \d+ bytes, 101 records to 2 files, \d+ bytes, 101 records "
        rf"in {seconds}",
    )
    only(texts, rf"split tablet \S+ of t in {seconds}")
    only(texts, rf"joined tablets {left} and {right} of t in {seconds}")
    only(texts, r"altered table t, schema version 2")
    only(texts, r"took table t offline")
    only(texts, r"brought table t back online")
    only(texts, rf"removed 2 files that nobody names, \d+ bytes, in {seconds}")
    only(texts, r"renamed table t to u")
    only(texts, r"dropped table gone, id \S+")
    only(texts, rf"closed .*/s in {seconds}")
    assert not told(caplog, logging.WARNING)


def test_a_recovery_is_told_with_what_it_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    db = ebla.open(tmp_path / "s", settings=CALM)
    db.create_table("t", SCHEMA).put({"k": 1, "v": 1})
    abandon(db)
    caplog.set_level(logging.INFO, "ebla")
    ebla.open(tmp_path / "s", settings=CALM).close()
    only(told(caplog), r"recovered from 1 log segments: 1 entries, \d+ bytes, 0 flushes on the way, in [\d.]+ s")


def test_requests_are_not_logged_at_any_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        table = db.create_table("t", SCHEMA)
        table.put({"k": 0, "v": 0})
        caplog.set_level(logging.DEBUG, "ebla")
        table.put({"k": 1, "v": 1})
        table.put(pa.table({"k": [2, 3], "v": [2, 3]}))
        table.erase(3)
        table.increment(2, "v")
        assert (table.get(1), table.get(9)) == ({"k": 1, "v": 1}, None)
        assert (table.get_many([1, 2]).num_rows, table.scan().count(), len(list(table.scan()))) == (2, 3, 3)
        assert not caplog.records


def test_writers_that_are_made_to_wait_are_told_of_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, wait = threading.Event(), WritePath._wait_for_room

    def noticed(path: WritePath, log: Any) -> None:
        waits.set()
        wait(path, log)

    monkeypatch.setattr(WritePath, "_wait_for_room", noticed)
    with ebla.open(tmp_path / "s", settings=Settings(memory_bytes_max=1, flush_bytes=1)) as db:
        table = db.create_table("t", SCHEMA)
        with engine_of(db).flusher._flush_lock:  # so that nothing is flushed before the second one comes
            table.put({"k": 1, "v": 1})
            writer = threading.Thread(target=table.put, args=({"k": 2, "v": 2},))
            writer.start()
            assert waits.wait(60)
        writer.join()
        assert table.scan().count() == 2
        assert db.stats()["throttled"]["count"] >= 1
    texts = told(caplog, logging.WARNING)
    only(texts, r"writers are made to wait: \d+ bytes are not flushed yet \(1 are allowed\), .*")


def test_a_slow_disk_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ebla.open(tmp_path / "s", settings=Settings(slow_seconds=1e-9)) as db:
        table = db.create_table("t", SCHEMA)
        table.put({"k": 1, "v": 1})
        table.split((1,))
    texts = told(caplog, logging.WARNING)
    only(texts, r"slow: writing and syncing an entry of the log took [\d.]+ s.*")
    assert any(re.match(r"slow: a METADATA transaction took", text) for text in texts)
    assert any(re.match(r"slow: holding the writers of tablets, .* took", text) for text in texts)


def test_a_log_that_failed_is_an_error_and_a_flush_that_fails_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = ebla.open(tmp_path / "s", settings=CALM)
    table = db.create_table("t", SCHEMA)
    table.put({"k": 1, "v": 1})

    def full(*arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalFiles, "create", full)
    engine_of(db).flusher._failed(ebla.StoreError("cannot write a fragment"))
    monkeypatch.setattr("ebla.storage.log.log_writer.LogWriter.sync", lambda self: full())
    with pytest.raises((ebla.StoreError, OSError)):
        table.put({"k": 2, "v": 2})
    monkeypatch.undo()
    abandon(db)
    only(told(caplog, logging.WARNING), r"a flush failed and is tried again, .*: cannot write a fragment")
    assert len(told(caplog, logging.ERROR)) == 1
    assert told(caplog, logging.ERROR)[0].startswith("nothing more is written: ")


def test_a_warning_is_repeated_once_in_a_while_with_how_many_were_kept_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("ebla.timing.now_seconds", lambda: now)
    warner = Warner(logging.getLogger("ebla.test"))
    for at in (0.0, 1.0, 2.0, QUIET_SECONDS):
        now = at
        warner.warn("the %s is full", "disk")
    assert told(caplog, logging.WARNING) == [
        "the disk is full",
        "the disk is full (2 more of these since the last one was told)",
    ]


def test_what_takes_time_is_counted_and_told_only_if_it_was_slow(caplog: pytest.LogCaptureFixture) -> None:
    timing = Timing(logging.getLogger("ebla.test"), "a flush", slow_seconds=1.0)
    timing.add(0.25)
    assert not caplog.records
    timing.add(1.5)
    assert (timing.count, timing.seconds) == (2, 1.75)
    assert told(caplog, logging.WARNING) == ["slow: a flush took 1.500 s"]
    Timing(logging.getLogger("ebla.test"), "a flush").add(100.0)
    assert len(caplog.records) == 1
