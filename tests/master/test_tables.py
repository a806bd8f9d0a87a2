"""Operations on tables as a whole: what they refuse, and what two of them at the same time cannot both have."""

from __future__ import annotations

from typing import Any

import pytest

from ebla.coordination.memory import Fault
from ebla.errors import EblaError, OutcomeUnknown, RequestError, SchemaError, TableExists, Unavailable, UnknownTable
from ebla.master.master import MasterStopped
from ebla.master.messages import DeleteTablet
from ebla.master.settings import MasterSettings
from ebla.metadata.values.clone import cloned
from ebla.model.declaration import Group, Schema
from ebla.model.schema_change import Alteration
from tests.master.master_world import SCHEMA, DurableOfTests, MasterWorld, real_durable, spread_durable
from tests.metadata.metadata_world import World
from tests.support.simulated_files import FaultPlan

TWO_COLUMNS = Schema(
    key={"user": "string", "day": "int32"}, groups=[Group("profile", columns={"name": "string"})]
).number()


@pytest.fixture(params=["memory", "real", "three servers"])
def world(request: pytest.FixtureRequest) -> MasterWorld:
    """The same facts hold over the twin, and over METADATA with the coordination service and one server or several."""
    durable = {"memory": lambda: None, "real": lambda: real_durable(World()), "three servers": spread_durable}[
        request.param
    ]()
    return MasterWorld(durable, MasterSettings(retention_seconds=10.0))


def names(world: MasterWorld) -> list[str]:
    return [info.name for info in world.master.catalog.named()]


# --- life ----------------------------------------------------------------------------------------


def test_created_table_covers_the_key_space_and_survives_a_restart(world: MasterWorld) -> None:
    world.create("users", [b"g", b"p"])
    world.restart()
    found = [world.master.locate("users", row).tablet for row in (b"", b"g", b"oz", b"p", b"zz")]
    assert [tablet.first for tablet in found] == [b"", b"g", b"g", b"p", b"p"]
    assert {tablet.state for tablet in found} == {"preparing"}
    world.metadata().check()


def test_renamed_table_keeps_its_tablets_and_frees_its_name(world: MasterWorld) -> None:
    created = world.create("users", [b"m"])
    world.run(world.master.rename_table("users", "people"))
    assert names(world) == ["people"]
    other = world.create("users")
    world.restart()
    assert world.metadata("people").table_id == created.table_id
    assert world.metadata("users").table_id == other.table_id


def test_rename_to_the_same_name_changes_nothing(world: MasterWorld) -> None:
    world.create("users")
    world.run(world.master.rename_table("users", "users"))
    assert names(world) == ["users"]


def test_deleted_name_is_free_at_once_and_the_table_comes_back_within_the_retention(world: MasterWorld) -> None:
    first = world.create("users")
    world.run(world.master.delete_table("users"))
    with pytest.raises(UnknownTable):
        world.master.locate("users", b"a")
    world.create("users")
    with pytest.raises(TableExists):
        world.run(world.master.undelete_table("users"))
    world.clock.advance(9)
    world.restart()
    world.run(world.master.undelete_table("users", "users-again"))
    assert world.metadata("users-again").table_id == first.table_id
    world.restart()
    assert names(world) == ["users", "users-again"]


def test_table_cannot_come_back_when_the_retention_is_over(world: MasterWorld) -> None:
    world.create("users")
    world.run(world.master.delete_table("users"))
    world.clock.advance(11)
    with pytest.raises(UnknownTable, match="retention"):
        world.run(world.master.undelete_table("users"))


def test_of_two_deleted_tables_of_one_name_the_later_one_comes_back(world: MasterWorld) -> None:
    for _ in range(2):
        last = world.create("users")
        world.run(world.master.delete_table("users"))
        world.clock.advance(1)
    world.run(world.master.undelete_table("users"))
    assert world.metadata().table_id == last.table_id


def test_purged_table_leaves_nothing_but_its_id(world: MasterWorld) -> None:
    table_id = world.create("users").table_id
    world.run(world.master.delete_table("users"))
    world.clock.advance(11)
    world.round()
    with pytest.raises(UnknownTable):
        world.run(world.master.undelete_table("users"))
    world.restart()
    assert not world.master.catalog.tables
    assert table_id in world.master.catalog.tombstones
    if isinstance(world.durable, DurableOfTests):
        assert not any(disk.list(f"metadata/{table_id}") for disk in world.durable.disks.values())
    else:
        assert not world.durable.metadata


@pytest.mark.parametrize("operation", ["rename_table", "delete_table", "undelete_table"])
def test_operations_on_a_table_that_is_not_there_say_so(world: MasterWorld, operation: str) -> None:
    arguments = ("nobody", "other") if operation == "rename_table" else ("nobody",)
    with pytest.raises(UnknownTable):
        world.run(getattr(world.master, operation)(*arguments))


# --- two at a time -------------------------------------------------------------------------------


def _begin(operation: Any) -> Any:
    """Let an operation run up to its write."""
    return operation, next(operation)


def test_readers_see_the_table_as_it_was_until_the_write_is_done() -> None:
    world = MasterWorld()
    operation, write = _begin(world.master.create_table("users", SCHEMA))
    assert names(world) == []
    with pytest.raises(UnknownTable):
        world.master.locate("users", b"a")
    (preparing,) = world.master.catalog.tables.values()
    assert preparing.stored is None
    assert preparing.dirty is not None
    with pytest.raises(StopIteration):
        operation.send(world.durable.write(write))
    assert names(world) == ["users"]
    assert preparing.dirty is None

    rename, write = _begin(world.master.rename_table("users", "people"))
    assert world.master.locate("users", b"a").table is preparing
    answer = world.durable.write(write)
    assert names(world) == ["users"]
    with pytest.raises(StopIteration):
        rename.send(answer)
    assert names(world) == ["people"]


@pytest.mark.parametrize("second", ["create", "rename", "undelete"])
@pytest.mark.parametrize("first", ["create", "rename", "undelete"])
def test_two_operations_never_win_the_same_name(first: str, second: str) -> None:
    world = MasterWorld()
    for name in ("a", "b", "wanted"):
        world.create(name)
    world.run(world.master.delete_table("wanted"))
    world.create("wanted")
    world.run(world.master.delete_table("wanted"))  # two deleted tables of that name

    def wanting(kind: str, other: str) -> Any:
        match kind:
            case "create":
                return world.master.create_table("wanted", SCHEMA)
            case "rename":
                return world.master.rename_table(other, "wanted")
        return world.master.undelete_table("wanted")

    operation, write = _begin(wanting(first, "a"))
    with pytest.raises((TableExists, Unavailable)):
        world.run(wanting(second, "b"))
    with pytest.raises(StopIteration):
        operation.send(world.durable.write(write))
    with pytest.raises((TableExists, Unavailable)):
        world.run(wanting(second, "b"))
    assert names(world).count("wanted") == 1


def test_failed_operation_gives_its_name_and_its_table_back() -> None:
    world = MasterWorld()
    world.create("a")
    operation, _ = _begin(world.master.rename_table("a", "b"))
    with pytest.raises(EblaError):
        operation.throw(Unavailable("the disk is full"))
    world.create("b")
    world.run(world.master.rename_table("a", "c"))
    assert names(world) == ["b", "c"]


def test_second_operation_on_a_table_waits_for_the_first() -> None:
    world = MasterWorld()
    world.create("a")
    operation, write = _begin(world.master.delete_table("a"))
    with pytest.raises(Unavailable, match="its deletion is under way"):
        world.run(world.master.rename_table("a", "b"))
    with pytest.raises(StopIteration):
        operation.send(world.durable.write(write))


@pytest.mark.parametrize("operation", ["create", "rename", "delete"])
def test_write_of_unknown_outcome_stops_the_master(operation: str) -> None:
    world = MasterWorld()
    world.create("a")
    master = world.master
    begun = {
        "create": lambda: master.create_table("b", SCHEMA),
        "rename": lambda: master.rename_table("a", "b"),
        "delete": lambda: master.delete_table("a"),
    }[operation]()
    other, write = _begin(master.create_table("c", SCHEMA))
    next(begun)
    with pytest.raises(MasterStopped):
        begun.throw(OutcomeUnknown("the reply was lost"))
    with pytest.raises(MasterStopped):  # also what was under way at the time
        other.send(world.durable.write(write))
    with pytest.raises(MasterStopped):
        world.run(master.create_table("d", SCHEMA))
    assert master.requests() == []
    world.restart()
    assert "c" in names(world)


@pytest.mark.parametrize("operation", ["create", "rename", "delete", "assign"])
def test_silent_coordination_service_stops_the_master_and_the_next_one_goes_on(operation: str) -> None:
    disk = World()
    world = MasterWorld(real_durable(disk))
    world.create("a")
    world.join("s1")
    client = world.durable.metadata_server.client
    reads = {"left": 40}

    def silent(name: str, paths: tuple[str, ...]) -> Fault | None:
        """Writes get no reply, and after a while nothing does: then it cannot be found out what became of them."""
        reads["left"] -= 1
        return Fault.LOSE_REQUEST if name not in ("read", "list") else Fault.FAIL_BEFORE if reads["left"] < 0 else None

    client.faults = silent
    master = world.master
    with pytest.raises(MasterStopped):
        world.run(
            {
                "create": lambda: master.create_table("b", SCHEMA),
                "rename": lambda: master.rename_table("a", "b"),
                "delete": lambda: master.delete_table("a"),
                "assign": master.round,
            }[operation]()
        )
    assert master.stopped is not None
    client.faults = None
    world.restart()
    assert names(world) == ["a"]
    world.create("c")


def test_master_goes_on_with_one_metadata_server_lost_and_changes_nothing_with_two() -> None:
    world = MasterWorld(spread_durable())
    world.create("users")
    disks = world.durable.disks
    disks["m1"].plan = FaultPlan.fail_when(lambda operation: True)
    world.create("more")
    world.run(world.master.alter_table("users", Alteration(add_columns={"size": "int32"})))
    disks["m2"].plan = FaultPlan.fail_when(lambda operation: True)
    with pytest.raises(EblaError, match="majority"):
        world.create("never")
    with pytest.raises(EblaError):
        world.run(world.master.alter_table("users", Alteration(add_columns={"other": "int32"})))
    world.restart()
    assert names(world) == ["more", "users"]
    assert world.master.catalog.table("users").metadata.schema.version == 2
    for disk in disks.values():
        disk.plan = FaultPlan()
    world.create("later")
    assert names(world) == ["later", "more", "users"]


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", "x" * 129, "META", "sys.tables", "a b", "a/b", "ü", "a\n", ".", "..", None, 7, b"users"],
    ids=repr,
)
def test_bad_names_are_refused_and_leave_nothing(name: Any) -> None:
    world = MasterWorld()
    world.create("users")
    world.create("gone")
    world.run(world.master.delete_table("gone"))
    operations = [
        world.master.create_table(name, SCHEMA),
        world.master.rename_table("users", name),
        world.master.bring_table(name, cloned(world.metadata("users"), "copy", iter("ab").__next__)),
    ]
    if name is not None:
        operations.append(world.master.undelete_table("gone", name))
    for operation in operations:
        with pytest.raises(SchemaError):
            world.run(operation)
    assert names(world) == ["users"]
    assert len(world.master.catalog.tables) == 2


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 128, "meta", "system", "-"])
def test_good_names_are_taken(name: str) -> None:
    world = MasterWorld()
    world.create(name)
    assert names(world) == [name]


@pytest.mark.parametrize(
    ("schema", "splits"),
    [
        (SCHEMA, [b"m", b"g"]),
        (SCHEMA, [b"g", b"g"]),
        (SCHEMA, [b"", b"g"]),
        (SCHEMA, [b"g", "m"]),
        (SCHEMA, [b"g", None]),
        (SCHEMA, [b"\xff\xfe"]),  # no UTF-8
        (TWO_COLUMNS, [b"ada"]),  # neither a key nor the prefix of one: the string has no end
        (TWO_COLUMNS, [b"ada\0\0\x80\0"]),  # half a number
        (TWO_COLUMNS, [b"ada\0\0\x80\0\0\1more"]),
    ],
    ids=lambda value: str(value) if isinstance(value, list) else "",
)
def test_bad_splits_are_refused(schema: Any, splits: Any) -> None:
    world = MasterWorld()
    with pytest.raises(RequestError):
        world.run(world.master.create_table("users", schema, splits))
    assert not world.master.catalog.tables


def test_splits_may_be_keys_and_prefixes_of_keys() -> None:
    from ebla.model.keys import KeyCodec

    codec = KeyCodec(TWO_COLUMNS.key)
    splits = [codec.bound(("ada",)), codec.encode(("ada", 7)), codec.bound(("bob",))]
    world = MasterWorld()
    world.run(world.master.create_table("users", TWO_COLUMNS, splits))
    assert len(world.metadata().tablets) == 4


def test_more_tablets_than_allowed_are_refused() -> None:
    world = MasterWorld(settings=MasterSettings(tablets_per_table_max=3))
    world.create("users", [b"a", b"b"])
    with pytest.raises(RequestError, match="more than 3 tablets"):
        world.create("more", [b"a", b"b", b"c"])


def test_nothing_of_a_table_goes_while_it_is_being_brought_back() -> None:
    """It was retained when that was decided; the retention ends while the write is under way."""
    world = MasterWorld(settings=MasterSettings(retention_seconds=10.0, silent_after_seconds=100.0))
    world.create("users")
    world.join("s1")
    world.settle()
    reported = world.reported("users", "s1", "stopped")
    world.run(world.master.delete_table("users"))
    world.requests()
    operation = world.master.undelete_table("users")
    write = next(operation)
    world.clock.advance(11)
    world.beat("s1", reported)
    world.round()
    assert not [request for _, request in world.requests() if isinstance(request, DeleteTablet)]
    with pytest.raises(StopIteration):
        operation.send(world.durable.write(write))
    assert world.metadata().tablets[0].leader == "s1"


def test_a_deposed_master_cannot_bring_back_a_table_whose_replicas_are_being_removed(world: MasterWorld) -> None:
    """It decided within the retention; its write lands when the next master has told servers to delete."""
    world.create("users")
    world.join("s1")
    world.settle()
    reported = world.reported("users", "s1", "stopped")
    world.run(world.master.delete_table("users"))
    late = next(world.master.undelete_table("users"))
    world.clock.advance(11)
    world.restart()
    world.beat("s1", reported, host="host-s1", full=True)
    world.round()
    assert [request for _, request in world.requests() if isinstance(request, DeleteTablet)]
    with pytest.raises(UnknownTable, match="retention"):
        world.durable.write(late)
    world.restart()
    assert names(world) == []
