"""One table takes the name of another under lost and late replies: both change together, once, or neither ever does."""

from __future__ import annotations

import pytest

from ebla.coordination.memory import Fault
from ebla.errors import OutcomeUnknown, UnknownTable
from ebla.metadata.values.table_metadata import initial_metadata
from tests.metadata.metadata_world import SCHEMA, World


class Replacing:
    """A table t1 called users, and t2 to replace it."""

    def __init__(self) -> None:
        self.world = World()
        self.server = self.world.server()
        self.server.create_table("users", "t1", initial_metadata("t1", SCHEMA, ["a1"]))

    def replace(self) -> None:
        self.server.create_table("users", "t2", initial_metadata("t2", SCHEMA, ["a2"]), replacing="t1")

    def state(self) -> tuple[dict[str, str], list[str | None]]:
        directory = self.world.server().directory
        configs = [directory.config(table_id) for table_id in ("t1", "t2")]
        names = {entry.name: entry.table_id for entry in directory.list_tables()}
        return names, [None if config is None else config.state for config in configs]

    def fail_once(self, fault: Fault) -> None:
        faults = iter([fault])
        self.server.client.faults = lambda name, paths: next(faults, None) if name == "multi" else None


DONE: tuple[dict[str, str], list[str | None]] = ({"users": "t2"}, ["deleted", "running"])


@pytest.mark.parametrize("fault", [None, Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY], ids=str)
def test_it_is_done_once_whatever_becomes_of_its_request(fault: Fault | None) -> None:
    replacing = Replacing()
    if fault is not None:
        replacing.fail_once(fault)
    replacing.replace()
    assert replacing.state() == DONE
    replacing.world.nodes.deliver()  # what was delayed comes too late
    assert replacing.state() == DONE
    assert replacing.world.server().read("t2").tablets[0].id == "a2"
    with pytest.raises(UnknownTable):
        replacing.world.server().refresh("t1")


def test_a_table_that_is_gone_cannot_be_replaced() -> None:
    replacing = Replacing()
    replacing.world.server().drop_table("users")
    with pytest.raises(UnknownTable, match="look again"):
        replacing.replace()
    assert replacing.state() == ({}, ["deleted", None])


def test_a_request_that_was_delayed_does_not_land_after_a_refusal() -> None:
    replacing = Replacing()
    other = replacing.world.server()
    replacing.fail_once(Fault.DELAY)
    before = replacing.server.client.faults
    assert before is not None

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        fault = before(name, paths)
        if fault is not None:
            other.drop_table("users")
        return fault

    replacing.server.client.faults = faults
    with pytest.raises(UnknownTable):
        replacing.replace()
    assert replacing.world.nodes.deliver() == 0
    assert replacing.state() == ({}, ["deleted", None])


def test_unknown_for_good_is_said_to_be_unknown() -> None:
    replacing = Replacing()
    replacing.server.client.faults = lambda name, paths: Fault.LOSE_REQUEST if name == "multi" else None
    with pytest.raises(OutcomeUnknown):
        replacing.replace()
    assert replacing.state() == ({"users": "t1"}, ["running", None])
