"""Changes of who is in sync, asked for one by one: what goes wrong with one does not keep the next from being made."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.changes import Change
from ebla.metadata.values.table_metadata import TableMetadata, initial_metadata
from ebla.replication.changes import ChangeInSync
from ebla.tablet_server.replicas.asking import ChangeAsker
from tests.tablet_server.servers import SCHEMA, wait_until

WANTED = ChangeInSync("table/t0", 2, 7)


class Metadata:
    """METADATA that notes what it is asked for, and fails as it is told."""

    def __init__(self) -> None:
        self.asked: list[Change] = []
        self.commit_fails: list[Exception] = []
        self.read_fails: list[Exception] = []
        self.may_go_on = threading.Event()

    def commit(self, table_id: str, changes: Sequence[Change]) -> TableMetadata:
        assert self.may_go_on.wait(20)
        self.asked += changes
        if self.commit_fails:
            raise self.commit_fails.pop()
        return self.refresh(table_id)

    def refresh(self, table_id: str) -> TableMetadata:
        if self.read_fails:
            raise self.read_fails.pop()
        return initial_metadata(table_id, SCHEMA, ["t0"], [])


class World:
    def __init__(self) -> None:
        self.metadata = Metadata()
        self.learned: list[TableMetadata] = []
        self.looked: list[str] = []
        self.asker = ChangeAsker(cast(MetadataAccess, self.metadata), self.learned.append, self.looked.append)


@pytest.fixture
def world() -> Any:
    made = World()
    yield made
    made.metadata.may_go_on.set()
    made.asker.close()


def test_one_change_of_a_tablet_is_under_way_at_a_time(world: World) -> None:
    world.asker.ask("table", WANTED)
    world.asker.ask("table", WANTED)
    world.metadata.may_go_on.set()
    wait_until(lambda: world.looked == ["table"])
    assert (len(world.metadata.asked), len(world.learned)) == (1, 1)
    world.asker.ask("table", WANTED)
    wait_until(lambda: len(world.looked) == 2)
    assert len(world.metadata.asked) == 2


@pytest.mark.parametrize("fails", ["commit_fails", "read_fails"])
def test_a_change_that_ends_with_an_error_nobody_expected_is_logged_and_the_next_one_is_asked_for(
    world: World, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    getattr(world.metadata, fails).append(ValueError("a mistake"))
    world.metadata.may_go_on.set()
    world.asker.ask("table", WANTED)
    wait_until(lambda: len(world.metadata.asked) == 1)

    def is_learned() -> bool:
        world.asker.ask("table", WANTED)
        return bool(world.learned)

    wait_until(is_learned)
    assert "a mistake" in caplog.text
    assert "who is in sync for tablet table/t0 was not changed, which is tried again" in caplog.text
