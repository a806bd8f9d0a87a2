"""Renaming, deleting and bringing back under lost and late replies: it happened, or it never will."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebla.coordination.memory import Fault
from ebla.errors import Conflict, OutcomeUnknown, TableExists, UnknownTable
from ebla.metadata.server.naming import TableNaming
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import initial_metadata
from ebla.retry import Retries
from tests.metadata.metadata_world import SCHEMA, World


class Named:
    """Tables t1 (users) and t2 (others), t3 (gone) deleted."""

    def __init__(self) -> None:
        self.world = World()
        self.server = self.world.server()
        for number, name in enumerate(("users", "others", "gone"), 1):
            self.server.create_table(name, f"t{number}", initial_metadata(f"t{number}", SCHEMA, [f"a{number}"]))
        self.naming = TableNaming(self.server.client, self.world.clock, retries=Retries(6, 0.05))
        self.naming.delete("t3", 5)

    def names(self) -> dict[str, str]:
        return {entry.name: entry.table_id for entry in self.world.server().list_tables()}

    def config(self, table_id: str) -> TableConfig:
        config = self.world.server().directory.config(table_id)
        assert config is not None
        return config

    def fail_once(self, fault: Fault) -> None:
        faults = iter([fault])
        self.server.client.faults = lambda name, paths: next(faults, None) if name not in ("read", "list") else None


OPERATIONS: dict[str, tuple[Callable[[TableNaming], TableConfig], dict[str, str]]] = {
    "rename": (lambda naming: naming.rename("t1", "people"), {"others": "t2", "people": "t1"}),
    "delete": (lambda naming: naming.delete("t1", 7), {"others": "t2"}),
    "undelete": (lambda naming: naming.undelete("t3", "gone"), {"gone": "t3", "others": "t2", "users": "t1"}),
    "purge": (lambda naming: naming.purge("t3"), {"others": "t2", "users": "t1"}),
}


@pytest.mark.parametrize("fault", [None, Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_done_once_whatever_becomes_of_its_request(operation: str, fault: Fault | None) -> None:
    named = Named()
    if fault is not None:
        named.fail_once(fault)
    operate, expected = OPERATIONS[operation]
    config = operate(named.naming)
    assert named.names() == expected
    named.world.nodes.deliver()  # what was delayed comes too late
    assert named.names() == expected
    assert config in [named.config(f"t{number}") for number in (1, 2, 3)]


def test_failed_rename_cannot_land_later() -> None:
    """It was delayed, then the name was found taken: when the name becomes free, it stays free."""
    named = Named()
    named.fail_once(Fault.DELAY)
    with pytest.raises(TableExists):
        named.naming.rename("t1", "others")
    named.naming.rename("t2", "elsewhere")
    assert named.world.nodes.deliver() == 0
    assert named.names() == {"users": "t1", "elsewhere": "t2"}


def test_unknown_for_good_is_said_to_be_unknown() -> None:
    named = Named()
    named.server.client.faults = lambda name, paths: Fault.LOSE_REQUEST if name not in ("read", "list") else None
    with pytest.raises(OutcomeUnknown):
        named.naming.rename("t1", "people")


def test_what_does_not_fit_is_refused() -> None:
    named = Named()
    with pytest.raises(TableExists):
        named.naming.rename("t1", "others")
    with pytest.raises(TableExists):
        named.naming.undelete("t3", "users")
    with pytest.raises(UnknownTable):
        named.naming.rename("t3", "people")
    with pytest.raises(UnknownTable):
        named.naming.delete("t3", 9)
    with pytest.raises(Conflict):
        named.naming.undelete("t1", "people")
    with pytest.raises(Conflict):
        named.naming.purge("t1")
    with pytest.raises(UnknownTable):
        named.naming.delete("nobody", 9)
    named.naming.purge("t3")
    with pytest.raises(UnknownTable, match="purged"):
        named.naming.undelete("t3", "gone")
    assert named.names() == {"users": "t1", "others": "t2"}


def test_metadata_transaction_meanwhile_does_not_undo_a_rename() -> None:
    named = Named()
    stale = named.world.server()
    stale.read("t1")
    named.naming.rename("t1", "people")
    from ebla.metadata.values.changes import TabletAt, TakeLog

    stale.commit("t1", [TakeLog((TabletAt("a1", 1),), "s", "s")])
    assert named.config("t1").name == "people"
