"""METADATA kept by several masters over RPC, and changed by tablet servers through any of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebla.coordination.memory import MemoryCoordination
from ebla.errors import EblaError, RequestError, Unavailable, UnknownTable
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.assigning import Assignment, AssignTablets, StartTablets
from ebla.metadata.values.changes import JOBS_MAX, RecordJob, RequirementFailed, TabletAt, TakeLog
from ebla.metadata.values.replicating import ChangeInSync
from ebla.metadata.values.table_metadata import Replica, initial_metadata
from ebla.metadata_rpc.remote_metadata import RemoteMetadata
from tests.metadata.metadata_world import SCHEMA
from tests.metadata_rpc.masters_of_tests import MastersOfTests


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[MastersOfTests]:
    with MastersOfTests(tmp_path, 3) as world:
        yield world


def create(world: MastersOfTests, name: str = "users", master: str = "m0") -> str:
    table_id = f"id-{name}"
    world.kept[master].create_table(name, table_id, initial_metadata(table_id, SCHEMA, ["x"], state="preparing"))
    return table_id


def jobs(metadata: MetadataAccess, table_id: str) -> list[str]:
    return [job for job, _ in metadata.refresh(table_id).jobs]


def test_a_table_that_one_master_makes_is_kept_by_all(masters: MastersOfTests) -> None:
    table_id = create(masters)
    for kept in masters.kept.values():
        assert kept.refresh(table_id).tablets[0].id == "x"
    config = masters.kept["m1"].directory.config(table_id)
    assert config is not None
    assert config.metadata_servers == ("m0", "m1", "m2")


def test_a_change_through_any_master_is_seen_through_all(masters: MastersOfTests) -> None:
    table_id = create(masters)
    for number, kept in enumerate(masters.kept.values()):
        kept.commit(table_id, [RecordJob(f"job{number}", number + 1)])
    for kept in masters.kept.values():
        assert jobs(kept, table_id) == ["job0", "job1", "job2"]


def test_changes_go_on_while_a_majority_is_there_and_are_refused_when_it_is_not(masters: MastersOfTests) -> None:
    table_id = create(masters)
    masters.stop("m2")
    masters.kept["m0"].commit(table_id, [RecordJob("two", 1)])
    masters.stop("m1")
    with pytest.raises(Unavailable):
        masters.kept["m0"].commit(table_id, [RecordJob("one", 2)])
    with pytest.raises(Unavailable, match="no majority"):
        create(masters, "more")
    masters.start("m1")
    masters.kept["m1"].commit(table_id, [RecordJob("again", 3)])
    assert jobs(masters.kept["m0"], table_id) == ["two", "again"]


def test_a_master_that_was_away_fetches_what_it_lacks_before_it_answers(masters: MastersOfTests) -> None:
    table_id = create(masters)
    masters.stop("m2")
    for number in range(40):  # beyond a snapshot
        masters.kept["m0"].commit(table_id, [RecordJob(f"job{number}", number + 1)])
    masters.start("m2")
    assert len(jobs(masters.kept["m2"], table_id)) == 40


def test_a_master_whose_copy_is_still_being_written_answers_with_what_is_current(
    masters: MastersOfTests, tmp_path: Path
) -> None:
    table_id = create(masters)
    masters.kept["m1"].refresh(table_id)
    txnid = masters.kept["m0"].commit(table_id, [RecordJob("newest", 1)]).txnid
    copy = tmp_path / "m1" / "metadata" / table_id / f"{txnid}.meta"
    for _ in range(100):  # a majority has it; this one may be a moment later
        if copy.exists() and copy.stat().st_size:
            break
        threading.Event().wait(0.05)
    copy.write_bytes(b"")
    assert masters.kept["m1"].refresh(table_id).txnid == txnid


def test_a_new_master_joins(masters: MastersOfTests) -> None:
    table_id = create(masters)
    masters.names.append("m3")
    masters.start("m3")
    for _ in range(100):
        config = masters.kept["m0"].directory.config(table_id)
        assert config is not None
        if "m3" in config.metadata_servers:
            break
        threading.Event().wait(0.05)
    assert "m3" in config.metadata_servers
    masters.stop("m0")
    masters.kept["m3"].commit(table_id, [RecordJob("with the new one", 1)])


# --- tablet servers ------------------------------------------------------------------------------


def lead(world: MastersOfTests, table_id: str, leader: str) -> None:
    replicas = (Replica(leader, "a1"),)
    world.kept["m0"].commit(table_id, [AssignTablets((Assignment("x", 1, leader, replicas),))])
    world.kept["m0"].commit(table_id, [StartTablets((TabletAt("x", 2),))])


def test_a_tablet_server_reads_and_changes_metadata_through_the_masters(masters: MastersOfTests) -> None:
    table_id = create(masters)
    lead(masters, table_id, "A")
    remote = masters.remote("A")
    assert remote.read(table_id).tablets[0].leader == "A"
    after = remote.commit(table_id, [TakeLog((TabletAt("x", 2),), "A", "A/1")])
    assert after.tablets[0].log == "A/1"
    assert remote.read(table_id) is after
    masters.kept["m1"].commit(table_id, [RecordJob("of another", 1)])
    assert jobs(remote, table_id) == ["of another"]
    assert [name for name, _ in remote.list_tables()] == ["users"]
    assert remote.name_of(table_id) == "users"
    assert remote.read_named("users", table_id).table_id == table_id


def test_a_tablet_server_is_refused_what_it_does_not_lead(masters: MastersOfTests) -> None:
    table_id = create(masters)
    lead(masters, table_id, "A")
    with pytest.raises(RequirementFailed) as refused:
        masters.remote("B").commit(table_id, [TakeLog((TabletAt("x", 2),), "B", "B/1")])
    assert refused.value.code == "other_leader"
    with pytest.raises(RequirementFailed) as refused:
        masters.remote("A").commit(table_id, [TakeLog((TabletAt("x", 1),), "A", "A/1")])
    assert refused.value.code == "stale_epoch"
    with pytest.raises(RequestError, match="masters"):
        masters.remote("A").commit(table_id, [StartTablets((TabletAt("x", 2),))])


def lead_with_learner(world: MastersOfTests, table_id: str) -> None:
    """Have A lead a tablet that B keeps in sync, and C learns."""
    kept = world.kept["m0"]
    replicas = tuple(Replica(server, f"a-{server}", f"log-{server}", True) for server in "ABC")
    kept.commit(table_id, [AssignTablets((Assignment("x", 1, "A", replicas, "A/1"),))])
    kept.commit(table_id, [StartTablets((TabletAt("x", 2),))])
    number = kept.refresh(table_id).tablets[0].number
    kept.commit(table_id, [ChangeInSync("x", 2, number, out=Replica("C", "a-C"))])


@pytest.mark.parametrize("master", ["m0", "m1", "m2"])
def test_a_replica_whose_server_was_started_again_since_is_not_put_in_sync_whichever_master_is_asked(
    masters: MastersOfTests, master: str
) -> None:
    table_id = create(masters)
    lead_with_learner(masters, table_id)
    coordination = MemoryCoordination(masters.store, masters.clock)
    for run in ("C/9", "C/10", "B/99"):
        coordination.create(f"logs/{run}", b"")
    remote = masters.remote("A", through=master)
    before = remote.refresh(table_id).tablets[0]
    put, out = Replica("C", "a-C", "log-C", True), Replica("B", "a-B")
    after = remote.commit(table_id, [ChangeInSync("x", 2, before.number, put, 9, out)]).tablets[0]
    assert [one.server for one in after.in_sync] == ["A", "B"]
    assert after.number == before.number + 1, "its leader knows that it will not come through later"
    after = remote.commit(table_id, [ChangeInSync("x", 2, after.number, put, 10, out)]).tablets[0]
    assert [one.server for one in after.in_sync] == ["A", "C"]


def test_a_replica_is_not_put_in_sync_while_nobody_can_tell_which_run_its_server_is_in(
    masters: MastersOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_id = create(masters)
    lead_with_learner(masters, table_id)
    number = masters.kept["m0"].refresh(table_id).tablets[0].number
    listed = MemoryCoordination.list

    def is_away(coordination: MemoryCoordination, path: str) -> list[str]:
        if path == "logs/C":
            raise Unavailable("the coordination service does not answer")
        return listed(coordination, path)

    put = ChangeInSync("x", 2, number, Replica("C", "a-C", "log-C", True), 9)
    remote = masters.remote("A")
    monkeypatch.setattr(MemoryCoordination, "list", is_away)
    with pytest.raises(Unavailable):
        remote.commit(table_id, [put])
    monkeypatch.undo()
    assert [one.server for one in remote.refresh(table_id).tablets[0].in_sync] == ["A", "B"]
    assert [one.server for one in remote.commit(table_id, [put]).tablets[0].in_sync] == ["A", "B", "C"]


def test_a_tablet_server_goes_on_while_masters_come_and_go(masters: MastersOfTests) -> None:
    table_id = create(masters)
    lead(masters, table_id, "A")
    remote = masters.remote("A")
    done: list[str] = []
    failures: list[EblaError] = []

    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            job = f"job{len(done)}"
            try:
                remote.commit(table_id, [RecordJob(job, len(done) + 1)])
            except EblaError as error:
                failures.append(error)
                return
            done.append(job)

    thread = threading.Thread(target=change)
    thread.start()
    for name in ("m1", "m2", "m0"):
        masters.stop(name)
        threading.Event().wait(0.3)
        masters.start(name)
    over.set()
    thread.join(60)
    assert not failures
    assert done
    assert jobs(remote, table_id) == done[-JOBS_MAX:], "each once, in order"


def test_what_a_lost_reply_was_about_is_done_once(masters: MastersOfTests, monkeypatch: pytest.MonkeyPatch) -> None:
    table_id = create(masters)
    remote = masters.remote("A")
    asked = RemoteMetadata._ask
    lost: list[str] = []

    def losing(self: RemoteMetadata, table: str, request: object) -> object:
        reply = asked(self, table, request)  # type: ignore[arg-type]
        if len(lost) < 3:
            lost.append(reply.outcome)
            self._turn += 1
            return type(reply)(reply.request_id, "unknown", reason="the reply was lost")
        return reply

    remote.read(table_id)
    monkeypatch.setattr(RemoteMetadata, "_ask", losing)
    remote.commit(table_id, [RecordJob("once", 1)])
    assert lost == ["committed"] * 3, "by three masters"
    assert jobs(remote, table_id) == ["once"]


def test_a_table_that_is_gone_is_told_as_such(masters: MastersOfTests) -> None:
    table_id = create(masters)
    remote = masters.remote("A")
    remote.read(table_id)
    masters.kept["m1"].drop_table("users")
    with pytest.raises(UnknownTable):
        remote.refresh(table_id)
    with pytest.raises(UnknownTable):
        remote.commit(table_id, [RecordJob("late", 1)])


def test_tables_are_made_by_masters_alone(masters: MastersOfTests) -> None:
    remote = masters.remote("A")
    for attempt in (
        lambda: remote.create_table("t", "id", initial_metadata("id", SCHEMA, ["x"])),
        lambda: remote.drop_table("t"),
        lambda: remote.rename_table("id", "u"),
    ):
        with pytest.raises(RequestError, match="ask a master"):
            attempt()


def test_remote_metadata_is_what_an_engine_uses(masters: MastersOfTests) -> None:
    access: MetadataAccess = masters.remote("A")
    assert access.list_tables() == []
