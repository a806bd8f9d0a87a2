"""A store that is opened twice in a process is one store, and stays open until the last one closes it."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

import ebla
from ebla.client.embedded import opened
from ebla.client.embedded.opening import open_alone
from tests.client.test_fork import told_by_a_child
from tests.support.inside import abandon, engine_of

PEOPLE = ebla.Schema(key={"user": "string"}, columns={"n": "int64"})


@pytest.fixture(autouse=True)
def _nothing_stays_shared() -> object:
    before = dict(opened._registry)
    yield
    assert opened._registry == before


def test_what_one_handle_writes_the_other_reads_and_the_last_one_closes(tmp_path: Path) -> None:
    first = ebla.open(tmp_path / "data")
    second = ebla.open(tmp_path / "data")
    people = first.create_table("people", PEOPLE)
    people.put({"user": "ada", "n": 1})
    assert second.table("people").get("ada") == {"user": "ada", "n": 1}
    first.close()
    first.close()
    with pytest.raises(ebla.Closed):
        first.tables()
    assert second.tables() == ["people"]
    people.put({"user": "bob", "n": 2})
    with pytest.raises(ebla.StoreLocked):
        open_alone(tmp_path / "data")
    second.close()
    with pytest.raises(ebla.Closed):
        people.put({"user": "eve", "n": 3})
    with open_alone(tmp_path / "data") as alone:
        assert alone.table("people").count() == 2


def test_all_ways_to_a_directory_lead_to_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    ways = ["data", "./data", str(tmp_path / "data"), Path("data"), "link", "data/../data/", tmp_path / "link"]
    with ebla.open("data") as db:
        db.create_table("people", PEOPLE)
        for way in ways:
            with ebla.open(way) as same:
                assert engine_of(same) is engine_of(db)
        assert db.tables() == ["people"]


def test_readers_are_not_shared_and_each_sees_what_was_durable_when_it_opened(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as db:
        people = db.create_table("people", PEOPLE)
        people.put({"user": "ada", "n": 1})
        with ebla.open(tmp_path, read_only=True) as early:
            people.put({"user": "bob", "n": 2})
            with ebla.open(tmp_path, read_only=True) as late:
                assert (early.table("people").count(), late.table("people").count()) == (1, 2)
    with ebla.open(tmp_path, read_only=True) as reader, ebla.open(tmp_path) as writer:
        assert reader.read_only
        assert not writer.read_only


def test_another_way_to_open_it_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    given = ebla.Settings(flush_bytes=1 << 20)
    with ebla.open(tmp_path / "s", settings=given) as db:
        with ebla.open(tmp_path / "s", settings=ebla.Settings(flush_bytes=1 << 20)) as same:
            assert engine_of(same) is engine_of(db)
        with pytest.raises(ebla.RequestError, match=r"open already, with other settings \(flush_bytes\)"):
            ebla.open(tmp_path / "s", settings=ebla.Settings())
        with pytest.raises(ebla.RequestError, match="another coordination service"):
            ebla.open(tmp_path / "s", coordination="zk://localhost:2181/ebla")
        with pytest.raises(ebla.RequestError, match="other directories for METADATA"):
            ebla.open(tmp_path / "s", metadata=[tmp_path / "m"])
        with pytest.raises(ebla.RequestError, match=r"settings is an ebla\.Settings"):
            ebla.open(tmp_path / "s", settings={"flush_bytes": 5})
        assert db.tables() == []


def test_further_directories_that_are_the_same_are_taken(tmp_path: Path) -> None:
    places = [tmp_path / "m1", tmp_path / "m2"]
    with ebla.open(tmp_path / "s", metadata=places) as db, ebla.open(tmp_path / "s", metadata=places[::-1]) as same:
        assert engine_of(same) is engine_of(db)


def test_threads_that_open_and_close_at_the_same_time_share_one_store_at_any_time(tmp_path: Path) -> None:
    begin, failures = threading.Barrier(6), []
    with ebla.open(tmp_path) as db:
        db.create_table("people", PEOPLE)

    def work(number: int) -> None:
        begin.wait()
        try:
            for turn in range(8):
                with ebla.open(tmp_path) as db:
                    db.table("people").put({"user": f"{number}-{turn}", "n": turn}, wait="logged")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with ebla.open(tmp_path) as db:
        assert db.table("people").count() == 48


def test_a_handle_that_two_threads_close_counts_once(tmp_path: Path) -> None:
    with ebla.open(tmp_path) as stays:
        for _ in range(20):
            handle, begin = ebla.open(tmp_path), threading.Barrier(2)

            def close(handle: ebla.Database = handle, begin: threading.Barrier = begin) -> None:
                begin.wait()
                handle.close()

            threads = [threading.Thread(target=close) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert stays.tables() == []


def test_a_directory_that_was_made_anew_is_another_store(tmp_path: Path) -> None:
    lost = ebla.open(tmp_path / "s")
    lost.create_table("people", PEOPLE)
    shutil.move(tmp_path / "s", tmp_path / "moved")
    with ebla.open(tmp_path / "s") as fresh:
        assert fresh.tables() == []
        with ebla.open(tmp_path / "s") as same:
            assert engine_of(same) is engine_of(fresh)
        abandon(lost)
        assert fresh.tables() == []


def test_a_store_that_could_not_be_opened_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ebla.StoreNotFound):
        ebla.open(tmp_path / "nowhere", create=False)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ebla.StoreError):
        ebla.open(tmp_path / "file")
    with ebla.open(tmp_path / "nowhere") as db:
        assert db.tables() == []


def test_a_listener_is_heard_and_removed_through_any_handle(tmp_path: Path) -> None:
    listener = ebla.TabletListener()
    with ebla.open(tmp_path) as first, ebla.open(tmp_path) as second:
        first.add_listener(listener)
        second.remove_listener(listener)
        with pytest.raises(ebla.RequestError):
            first.remove_listener(listener)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_shares_nothing_with_its_parent(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "mine") as db:
        told = told_by_a_child(lambda: ebla.open(tmp_path / "mine"))
        assert told.startswith("StoreLocked"), told
        assert told_by_a_child(lambda: ebla.open(tmp_path / "other").close()) == "no error"
        with opened._registry_lock:  # held by a thread that a child does not have
            assert told_by_a_child(lambda: ebla.open(tmp_path / "other").close()) == "no error"
        assert db.tables() == []
    assert os.path.isdir(tmp_path / "other")
