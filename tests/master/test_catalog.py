"""The catalog: what is found by which key, and that its maps follow every change, whoever made it."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ebla.errors import UnknownTable
from ebla.master.catalog import Catalog
from ebla.master.writes import ChangeTable, ChangeTables, RenameTable, StoredTable
from ebla.metadata.values.assigning import (
    Assignment,
    AssignTablets,
    PlaceTablets,
    Replacement,
    ReplaceTablets,
    StartTablets,
)
from ebla.metadata.values.changes import Change, update
from ebla.metadata.values.recutting import BeginJoin, BeginSplit, FinishJoin, FinishSplit
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import Replica, TableMetadata, initial_metadata
from ebla.model.schema_change import Alteration
from tests.master.master_world import SCHEMA, MasterWorld, moved_to


def stored(metadata: TableMetadata, name: str = "users", state: str = "running") -> StoredTable:
    return StoredTable(metadata.table_id, TableConfig(name, state, metadata.txnid, ()), metadata)  # type: ignore[arg-type]


def check(catalog: Catalog) -> None:
    """Compare every map with what the tables say."""
    tablets = {tablet.id: info for info in catalog.tables.values() for tablet in info.metadata.tablets}
    assert catalog.tablets == tablets
    placed = Counter(
        replica.server
        for info in catalog.tables.values()
        for tablet in info.metadata.tablets
        for replica in tablet.replicas
    )
    leads = Counter(
        tablet.leader for info in catalog.tables.values() for tablet in info.metadata.tablets if tablet.leader
    )
    servers = [f"s{number}" for number in range(5)]
    assert {server: catalog.replicas_on(server) for server in servers if catalog.replicas_on(server)} == placed
    assert {server: catalog.leaders_on(server) for server in servers if catalog.leaders_on(server)} == leads
    assert [*catalog.pending] == [*dict.fromkeys(catalog.pending)]
    assert set(catalog.pending) == {
        tablet.id
        for info in catalog.tables.values()
        if info.is_visible
        for tablet in info.metadata.tablets
        if tablet.state in ("preparing", "creating")
    }
    for info in catalog.tables.values():
        assert (catalog.names.get(info.name) is info) == info.is_visible


def _random_change(metadata: TableMetadata, random: Random, new_id: int) -> Change | None:
    at = random.randrange(len(metadata.tablets))
    tablet = metadata.tablets[at]
    servers = random.sample([f"s{number}" for number in range(5)], 2)
    replicas = tuple(Replica(server, f"x{new_id}-{server}") for server in servers)
    named = TabletAt(tablet.id, tablet.epoch)
    match tablet.state:
        case "preparing":
            return AssignTablets((Assignment(tablet.id, tablet.epoch, servers[0], replicas),))
        case "creating":
            if random.random() < 0.3:
                return ReplaceTablets((Replacement(tablet.id, tablet.epoch, f"n{new_id}"),))
            return StartTablets((named,))
    if random.random() < 0.4:
        return PlaceTablets((Assignment(tablet.id, tablet.epoch, tablet.replicas[0].server, tablet.replicas),))
    return None


@pytest.mark.parametrize("seed", range(15))
def test_maps_follow_every_change_of_metadata(seed: int) -> None:
    random = Random(seed)
    catalog = Catalog()
    metadata = initial_metadata("t1", SCHEMA, ["a", "b", "c"], [b"g", b"p"], state="preparing")
    catalog.load([stored(metadata)])
    for number in range(40):
        change = _random_change(metadata, random, number)
        tablet = random.choice(metadata.tablets)
        changes: list[Change] = [change] if change is not None else []
        row = tablet.first + b"m"
        if not changes and tablet.state == "running" and tablet.range.contains(row):
            at = TabletAt(tablet.id, tablet.epoch)
            changes = [BeginSplit(at, row, (f"l{number}", f"r{number}")), FinishSplit(at, number, 0)]
        metadata = update(metadata, changes).with_txnid(f"x{number}", metadata.sequence + 1)
        catalog.install_metadata(metadata)
        check(catalog)
        found = catalog.locate("users", b"h")
        assert found.tablet.range.contains(b"h")
        assert catalog.tablet(found.tablet.id) == found
    catalog.install(stored(metadata, state="deleted"))
    check(catalog)
    catalog.install(stored(metadata))
    check(catalog)
    catalog.install(StoredTable("t1", TableConfig("users", "deleted", "", ()), None))
    check(catalog)
    assert not catalog.tables
    assert not catalog.gone
    assert "t1" in catalog.tombstones


def test_join_is_followed_too() -> None:
    catalog = Catalog()
    metadata = initial_metadata("t1", SCHEMA, ["a", "b"], [b"g"])
    catalog.load([stored(metadata)])
    left, right = TabletAt("a", 1), TabletAt("b", 1)
    joined = update(metadata, [BeginJoin(left, right, "c"), FinishJoin(left, right, 1, 0)]).with_txnid("x", 1)
    catalog.install_metadata(joined)
    check(catalog)
    assert catalog.locate("users", b"z").tablet.id == "c"
    assert catalog.gone == {"a": "t1", "b": "t1"}


def test_older_news_changes_nothing() -> None:
    catalog = Catalog()
    metadata = initial_metadata("t1", SCHEMA, ["a"]).with_txnid("x5", 5)
    catalog.load([stored(metadata)])
    catalog.install_metadata(metadata.with_txnid("x4", 4))
    assert catalog.table("users").metadata.txnid == "x5"
    catalog.install(stored(metadata.with_txnid("x4", 4), name="people"))
    assert catalog.table("people").metadata.txnid == "x5", "its name is news, its METADATA is not"
    with pytest.raises(UnknownTable):
        catalog.table("users")


# --- what others changed -------------------------------------------------------------------------


def _behind_its_back(world: MasterWorld, *changes: Change) -> None:
    world.durable.write(ChangeTables((ChangeTable(world.metadata().table_id, changes),)))


def test_refresh_brings_what_another_master_did_and_servers_are_told() -> None:
    world = MasterWorld()
    created = world.create("users")
    world.join("s1", "s2")
    world.settle("users", ["s1", "s2"])
    world.requests()
    (tablet,) = world.metadata().tablets
    other = next(server for server in ("s1", "s2") if server != tablet.leader)
    _behind_its_back(world, *moved_to(other, tablet))
    world.durable.write(RenameTable(created.table_id, "people"))
    assert world.requests() == []
    world.run(world.master.refresh([created.table_id]))
    assert world.metadata("people").tablets[0].leader == other
    ((server, request),) = world.requests()
    assert (server, type(request).__name__) == (other, "CreateTablet"), "the old one stays until the new one is there"


def test_table_that_appears_behind_its_back_is_found_by_a_refresh() -> None:
    world = MasterWorld()
    old = world.master
    world.restart()
    created = world.create("users")
    with pytest.raises(UnknownTable):
        old.locate("users", b"a")
    world.run(old.refresh([created.table_id, "nothing of that id"]))
    assert old.locate("users", b"a").tablet.id == created.tablets[0].id


def test_refresh_during_an_operation_is_done_again_afterwards() -> None:
    world = MasterWorld()
    created = world.create("users")
    world.durable.write(RenameTable(created.table_id, "people"))
    rename = world.master.rename_table("users", "persons")
    write = next(rename)
    world.run(world.master.refresh([created.table_id]))
    assert [info.name for info in world.master.catalog.named()] == ["users"], "the operation is about to decide"
    rename.close()
    world.round()
    assert [info.name for info in world.master.catalog.named()] == ["people"]
    assert write == RenameTable(created.table_id, "persons")


def test_alteration_by_another_master_reaches_the_servers() -> None:
    world = MasterWorld()
    created = world.create("users")
    world.join("s1")
    world.settle()
    world.requests()
    first = world.master
    servers = first.servers
    world.restart()
    world.run(world.master.alter_table("users", Alteration(add_columns={"city": "string"})))
    world.run(first.refresh([created.table_id]))
    assert [type(request).__name__ for batch in first.requests() for request in batch.requests] == ["AlterTablet"]
    assert servers is first.servers
