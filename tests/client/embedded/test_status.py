"""How a store is can be told by anybody, without its lock: open, closed, or left behind by a process that died."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ebla
from ebla.client.embedded import publishing
from ebla.client.embedded.ownership import OWNER_NODE
from ebla.client.embedded.owning import owning
from ebla.client.embedded.publishing import PUBLISH_SECONDS, STATUS_FILE
from ebla.client.embedded.status import _is_leased
from ebla.clock import ManualClock
from ebla.coordination.sqlite import SqliteCoordination
from ebla.settings import Settings
from tests.client.damages import make_store
from tests.support.inside import abandon, engine_of, publisher_of

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"v": "int64"})
CALM = Settings(background_compaction=False)


def test_an_open_store_tells_who_has_it_and_how_it_is(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        table = db.create_table("t", SCHEMA)
        table.put([{"k": k, "v": k} for k in range(10)])
        table.flush()
        publisher_of(db)._publish(is_closed=False)
        found = ebla.status(tmp_path / "s")
        assert (found.state, found.format_version, found.problems) == ("open", 1, ())
        assert found.owner is not None
        assert (found.owner.pid, found.owner.host) == (os.getpid(), socket.gethostname())
        assert before <= found.owner.opened <= found.owner.told <= datetime.now(UTC)
        assert found.owner.version == ebla.__version__
        assert found.owner.counters.commits_total == 1
        assert [(one.name, one.tablets, one.fragments) for one in found.tables] == [("t", 1, 1)]
        assert found.fragment_bytes == found.tables[0].fragment_bytes > 0
        assert found.log_segments == 1
        assert found.log_bytes > 0
        assert found.metadata_bytes > 0
    found = ebla.status(tmp_path / "s")
    assert (found.state, found.tables[0].name) == ("closed", "t")


def test_a_store_whose_process_was_killed_is_told_from_one_that_was_closed(tmp_path: Path) -> None:
    code = (
        "import ebla, os, sys; db = ebla.open(sys.argv[1]); print(os.getpid(), flush=True); "
        "sys.stdin.read(); os._exit(9)"
    )
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "s")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        pid = int(process.stdout.readline())
        found = ebla.status(tmp_path / "s")
        assert found.owner is not None
        assert (found.state, found.owner.pid) == ("open", pid)
        process.stdin.close()
        process.wait(60)
    assert ebla.status(tmp_path / "s").state == "died"
    ebla.open(tmp_path / "s").close()
    assert ebla.status(tmp_path / "s").state == "closed"


def test_where_the_kernel_lists_no_locks_the_process_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "LOCKS", tmp_path / "nothing")
    db = ebla.open(tmp_path / "s", settings=CALM)
    assert ebla.status(tmp_path / "s").state == "open"
    db.close()
    assert ebla.status(tmp_path / "s").state == "closed"
    db = ebla.open(tmp_path / "s", settings=CALM)
    abandon(db)
    monkeypatch.setattr(publishing, "_runs", lambda pid: False)
    assert ebla.status(tmp_path / "s").state == "died"


def test_asking_does_not_keep_anybody_from_opening_the_store(tmp_path: Path) -> None:
    ebla.open(tmp_path / "s", settings=CALM).close()
    listed = sorted(path.name for path in (tmp_path / "s").iterdir())
    ebla.status(tmp_path / "s")
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == listed
    with ebla.open(tmp_path / "s", settings=CALM):
        ebla.status(tmp_path / "s")
        with pytest.raises(ebla.StoreLocked), owning(tmp_path / "s"):
            pass  # the owner still has the lock


def test_damage_is_told_and_keeps_the_rest_from_nothing(tmp_path: Path) -> None:
    make_store(tmp_path / "s")
    with ebla.open(tmp_path / "s", read_only=True) as db:
        damaged, whole = db.tables()[0], db.tables()[1:]
        table_id = db.table(damaged).stats()["id"]
    for file in (tmp_path / "s" / "metadata" / table_id).glob("*.meta"):
        file.write_bytes(b"nonsense" + file.read_bytes()[8:])
    found = ebla.status(tmp_path / "s")
    assert [bool(one.damage) for one in found.tables] == [True] + [False] * len(whole)
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"{damaged}: ")


def test_a_store_without_a_status_or_with_one_of_another_version_is_told_of_all_the_same(tmp_path: Path) -> None:
    ebla.open(tmp_path / "s", settings=CALM).close()
    for content in (b"{}", b"\xff", None):
        (tmp_path / "s" / STATUS_FILE).unlink()
        if content is not None:
            (tmp_path / "s" / STATUS_FILE).write_bytes(content)
        found = ebla.status(tmp_path / "s")
        assert (found.state, found.owner) == ("closed", None)
        (tmp_path / "s" / STATUS_FILE).touch()
    with pytest.raises(ebla.StoreNotFound):
        ebla.status(tmp_path / "elsewhere")


def test_the_status_is_written_anew_now_and_then_and_a_full_disk_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        file = tmp_path / "s" / STATUS_FILE
        first = file.read_bytes()
        publisher = publisher_of(db)
        publisher.publish()
        assert file.read_bytes() == first
        publisher._written_seconds -= PUBLISH_SECONDS
        publisher.publish()
        assert file.read_bytes() != first

        def full(path: Path, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            publisher._written_seconds -= PUBLISH_SECONDS
            publisher.publish()
        db.create_table("t", SCHEMA).put({"k": 1, "v": 1})


def test_what_the_owner_cannot_do_is_told(tmp_path: Path) -> None:
    db = ebla.open(tmp_path / "s", settings=CALM)
    db.create_table("t", SCHEMA).put({"k": 1, "v": 1})
    engine_of(db).stop_writing(ebla.LogFailed("no space left on the disk"))
    publisher_of(db)._publish(is_closed=False)
    assert ebla.status(tmp_path / "s").problems == ("the log takes no more writes: no space left on the disk",)
    abandon(db)


def test_a_store_that_hosts_share_is_open_while_its_lease_is_held(tmp_path: Path) -> None:
    ebla.open(tmp_path / "s", settings=CALM).close()
    clock = ManualClock()
    with SqliteCoordination(tmp_path / "s" / "coordination.sqlite", clock) as coordination:
        assert not _is_leased(tmp_path / "s", coordination, clock)
        (tmp_path / "s" / "coordination.address").write_text("zk://one:2181/s\n")
        assert not _is_leased(tmp_path / "s", coordination, clock)
        lease = coordination.lease(OWNER_NODE, "another host", 10.0)
        assert _is_leased(tmp_path / "s", coordination, clock)
        lease.release()
        assert not _is_leased(tmp_path / "s", coordination, clock)
        coordination.lease(OWNER_NODE, "another host", 10.0)
        clock.advance(11.0)
        assert not _is_leased(tmp_path / "s", coordination, clock)


def test_an_interrupt_while_the_status_is_first_told_leaves_the_store_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publishing.Publisher, "_publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ebla.open(tmp_path / "s", settings=CALM)
    with owning(tmp_path / "s"):
        pass  # nobody has the lock
    with ebla.open(tmp_path / "s", settings=CALM) as db:
        db.create_table("t", SCHEMA).put({"k": 1, "v": 1})


def test_a_store_that_is_opened_twice_in_a_process_is_closed_when_both_are(tmp_path: Path) -> None:
    first, second = ebla.open(tmp_path / "s", settings=CALM), ebla.open(tmp_path / "s", settings=CALM)
    first.close()
    assert ebla.status(tmp_path / "s").state == "open"
    second.close()
    assert ebla.status(tmp_path / "s").state == "closed"
