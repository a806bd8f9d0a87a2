"""An embedded store that is coordinated by ZooKeeper."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import ebla
from ebla.client.embedded.coordination_place import ADDRESS_FILE
from ebla.client.embedded.opening import open_alone
from ebla.client.embedded.ownership import OWNER_NODE
from ebla.clock import SystemClock
from ebla.coordination.address import connect, parse_address
from ebla.coordination.service import CoordinationService
from ebla.direct.held_pins import begin, end
from ebla.direct.place import Place
from tests.support.inside import abandon, coordination_of, engine_of
from tests.support.zookeeper import ZooKeeperServer

SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"v": "int32"})])


@pytest.fixture
def address(zookeeper_server: ZooKeeperServer) -> str:
    return f"zk://{zookeeper_server.address}/stores/{uuid.uuid4()}"


def test_a_store_is_made_crashes_and_is_found_again_without_the_address(tmp_path: Path, address: str) -> None:
    database = ebla.open(tmp_path, coordination=address)
    table = database.create_table("t", SCHEMA)
    table.put([{"k": f"{number:03d}", "v": number} for number in range(100)])
    table.flush()
    table.put({"k": "last", "v": 7})
    abandon(database)
    with ebla.open(tmp_path) as again:  # by the address in the directory, and over the lease of the crashed one
        assert again.table("t").scan().to_arrow().num_rows == 101
        again.table("t").put({"k": "more", "v": 1})
        with ebla.open(tmp_path, read_only=True) as reader:
            assert reader.table("t").get("more") == {"k": "more", "v": 1}
            with pytest.raises(ebla.ReadOnly):
                reader.table("t").put({"k": "x", "v": 1})
        with pytest.raises(ebla.StoreLocked):
            open_alone(tmp_path)
        with ebla.open(tmp_path) as same:
            assert same.table("t").get("more") == {"k": "more", "v": 1}
        held = begin(str(tmp_path), "scan", "t", 5, ["a file"])
        assert (again.snapshots(), engine_of(again).pins.files()) == ({held.name: 5}, {"a file"})
        end(held)
        assert [*coordination_of(again).list("pins"), *coordination_of(again).list("held")] == []
    assert not (tmp_path / "coordination.sqlite").exists()
    assert Place.of(tmp_path).metadata("t") is not None


def test_a_store_whose_lease_was_stolen_writes_no_more_and_the_thief_sees_everything(
    tmp_path: Path, address: str
) -> None:
    settings = ebla.Settings(owner_lease_seconds=2.0)
    database = ebla.open(tmp_path, coordination=address, settings=settings)
    table = database.create_table("t", SCHEMA)
    with connect(parse_address(address), SystemClock()) as thief:
        owner = thief.read(OWNER_NODE)
        assert owner is not None
        _steal(thief)
        acknowledged: list[int] = []
        with pytest.raises(ebla.LogFailed, match="no longer owns the store"):
            _put_for_ever(table, acknowledged)
        # Reads go on; the last one may be there or not.
        assert table.scan().to_arrow().num_rows - len(acknowledged) in (0, 1)
        with pytest.raises(ebla.LogFailed):
            table.put({"k": "x", "v": 1})
    abandon(database)
    with ebla.open(tmp_path) as again:
        assert again.table("t").scan().to_arrow().num_rows >= len(acknowledged)


def _put_for_ever(table: ebla.Table, acknowledged: list[int]) -> None:
    while True:
        table.put({"k": f"{len(acknowledged):06d}", "v": 1})
        acknowledged.append(1)


def _steal(thief: CoordinationService) -> None:
    """As a process on the same host would that got hold of the directory's lock."""
    import msgspec

    owner = msgspec.json.decode(thief.read(OWNER_NODE).value)["owner"]
    thief.lease(OWNER_NODE, owner, 0.5)


def test_a_store_that_another_host_owns_is_locked(tmp_path: Path, address: str) -> None:
    ebla.open(tmp_path, coordination=address).close()
    with connect(parse_address(address), SystemClock()) as other:
        lease = other.lease(OWNER_NODE, "elsewhere:/data", 60)
        with pytest.raises(ebla.StoreLocked, match="elsewhere:/data"):
            ebla.open(tmp_path)
        with ebla.open(tmp_path, read_only=True) as reader:
            assert reader.tables() == []
        lease.release()
        ebla.open(tmp_path).close()


def test_a_znode_that_belongs_to_another_store_is_refused(tmp_path: Path, address: str) -> None:
    ebla.open(tmp_path / "one", coordination=address).close()
    with pytest.raises(ebla.StoreError, match="belongs to another store"):
        ebla.open(tmp_path / "two", coordination=address)
    with pytest.raises(ebla.StoreNotFound):
        ebla.open(tmp_path / "two", read_only=True)


def test_a_store_that_zookeeper_knows_nothing_of_is_not_made_anew(tmp_path: Path, address: str) -> None:
    with ebla.open(tmp_path, coordination=address) as database:
        database.create_table("t", SCHEMA).put({"k": "a", "v": 1})
    with pytest.raises(ebla.MissingFile, match="knows nothing of the store"):
        ebla.open(tmp_path, coordination=f"{address}-other")
    (tmp_path / ADDRESS_FILE).rename(tmp_path / "elsewhere")
    for coordination in (None, address):
        with pytest.raises(ebla.MissingFile):
            ebla.open(tmp_path, coordination=coordination)
    (tmp_path / "elsewhere").rename(tmp_path / ADDRESS_FILE)
    with ebla.open(tmp_path) as database:
        assert database.table("t").get("a") == {"k": "a", "v": 1}


def test_a_store_keeps_its_kind_of_coordination(tmp_path: Path, address: str) -> None:
    ebla.open(tmp_path).close()
    with pytest.raises(ebla.RequestError, match="without `coordination`"):
        ebla.open(tmp_path, coordination=address)


@pytest.mark.parametrize("content", ["", "nonsense", "zk://", "\udcff"])
def test_a_damaged_address_is_noticed(tmp_path: Path, content: str) -> None:
    (tmp_path / ADDRESS_FILE).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ebla.Corruption, match=ADDRESS_FILE):
        ebla.open(tmp_path)


@pytest.mark.parametrize("coordination", ["nonsense", "zk://", "sqlite://x", 7])
def test_an_address_that_cannot_be_is_refused_and_nothing_is_made(tmp_path: Path, coordination: str) -> None:
    with pytest.raises(ebla.RequestError):
        ebla.open(tmp_path / "new", coordination=coordination)
    assert not (tmp_path / "new").exists()
