"""A schema that others have changed while rows of the last one are in memory."""

from __future__ import annotations

import pytest

from ebla.errors import SchemaChanged
from ebla.metadata.values.changes import AlterSchema, FlushedTablet
from ebla.model.schema_change import Alteration, altered
from ebla.service.requests import Put
from ebla.tablet.serve.local_table import LocalTable
from ebla.tablet.tables.table_state import TableState
from tests.tablet.lead.world import Run, World


@pytest.fixture
def world() -> World:
    return World()


def led(world: World) -> Run:
    """Return a run that leads two tablets, with a flushed row and one in memory in each."""
    world.create()
    run = world.start("A")
    world.give(run, "t0", "t1")
    put(run, 1, 101)
    run.store.flush(run.store.table("t"))
    put(run, 2, 102)
    return run


def put(run: Run, *keys: int) -> None:
    run.table().write(Put([{"k": key, "v": str(key), "n": key} for key in keys]))


def alter(world: World, **request: object) -> None:
    metadata = world.read()
    schema = altered(metadata.schema, Alteration(**request))  # type: ignore[arg-type]
    tablets = tuple(FlushedTablet(one.id, one.epoch, 0) for one in metadata.tablets)
    world.metadata.commit(world.table_id, [AlterSchema(metadata.schema.version, schema, tablets, is_late=True)])


def notice(world: World, run: Run) -> TableState:
    table = run.store.table("t")
    run.store.open_tables.use_metadata(table, world.read(), run.store.server)
    return table


def rows(table: LocalTable) -> list[object]:
    return [table.get((key,)) for key in (1, 2, 101, 102)]


def test_until_the_switch_readers_see_all_under_the_old_schema(world: World) -> None:
    run = led(world)
    alter(world, drop_columns=["n"])
    table = notice(world, run)
    assert table.later is not None
    assert rows(run.table()) == [{"k": key, "v": str(key), "n": key} for key in (1, 2, 101, 102)]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"drop_columns": ["n"]}, lambda key: {"k": key, "v": str(key)}),
        ({"move": {"n": "g"}}, lambda key: {"k": key, "v": str(key), "n": key}),
        ({"rename": {"v": "w"}}, lambda key: {"k": key, "w": str(key), "n": key}),
    ],
)
def test_after_the_switch_all_is_there_under_the_new_schema(
    world: World, request_: dict[str, object], expected: object
) -> None:
    run = led(world)
    alter(world, **request_)
    table = notice(world, run)
    run.store.late_schemas.switch(table)
    assert table.later is None
    assert table.view.parts.version == 2
    assert table.memory_bytes == 0
    assert rows(run.table()) == [expected(key) for key in (1, 2, 101, 102)]  # type: ignore[operator]


def test_a_write_switches_the_table_first_and_is_made_again(world: World) -> None:
    run = led(world)
    alter(world, add_columns={"g": {"w": "string"}})
    notice(world, run)
    run.table().write(Put({"k": 3, "v": "3"}))
    assert run.table().get((3,)) == {"k": 3, "v": "3", "n": None, "w": None}
    with pytest.raises(SchemaChanged):
        run.table().write(Put({"k": 3, "v": "3"}, schema_version=1))


def test_a_flush_that_meets_the_new_schema_loses_nothing(world: World) -> None:
    """It was under way when the schema was changed: METADATA counts its file for the new schema."""
    run = led(world)
    alter(world, move={"n": "g"})
    table = run.store.table("t")
    run.store.flusher.flush_table(table)
    assert table.later is not None
    assert rows(run.table()) == [{"k": key, "v": str(key), "n": key} for key in (1, 2, 101, 102)]
    run.store.late_schemas.switch(table)
    assert rows(run.table()) == [{"k": key, "v": str(key), "n": key} for key in (1, 2, 101, 102)]


def test_a_tablet_can_be_given_up_while_the_schema_changes(world: World) -> None:
    run, other = led(world), world.start("B")
    alter(world, move={"n": "g"})
    table = notice(world, run)
    run.giver.give_up(table, ["t1"])
    world.give(other, "t1")
    assert other.table().get((102,)) == {"k": 102, "v": "102", "n": 102}


@pytest.mark.parametrize("request_", [{"move": {"n": "g"}}, {"rename": {"v": "w"}}, {"drop_columns": ["v"]}])
def test_what_a_dead_leader_wrote_under_the_old_schema_is_taken_over_under_the_new_one(
    world: World, request_: dict[str, object]
) -> None:
    run, other = led(world), world.start("B")
    alter(world, **request_)
    put(run, 3, 103)  # it has not noticed
    run.store.abandon()
    world.bury(run)
    world.give(other, "t0", "t1")
    for key in (1, 2, 3, 101, 102, 103):
        row = other.table().get((key,))
        assert row is not None
        assert row["n"] == key
        assert set(row) - {"k", "n"} == ({"w"} if "rename" in request_ else {"v"} if "move" in request_ else set())
