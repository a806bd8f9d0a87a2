"""Several metadata servers behind the interface of one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from ebla.clock import ManualClock
from ebla.coordination.memory import MemoryCoordination, MemoryStore
from ebla.metadata.server.copies import MetadataCopies
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.servers import MetadataServers
from ebla.metadata.values.changes import RecordJob
from tests.metadata.metadata_world import TABLE, table
from tests.support.simulated_files import SimulatedFiles


def _replace(servers: MetadataServers) -> None:
    servers.create_table("users", "other", msgspec.structs.replace(table(), table_id="other"), replacing=TABLE)


def _purge(servers: MetadataServers) -> None:
    servers.unlink_table("users", 1, 2)
    servers.purge_table(TABLE)


@pytest.mark.parametrize("end", [_replace, _purge, lambda servers: servers.drop_table("users")])
def test_the_servers_of_a_table_that_is_gone_do_not_run_on(end: Callable[[MetadataServers], object]) -> None:
    clock, numbers = ManualClock(), itertools.count()
    copies = MetadataCopies({f"m{n}": MetadataStore(SimulatedFiles(), 4) for n in range(3)}, 3, 4)
    coordination = MemoryCoordination(MemoryStore(), clock)
    servers = MetadataServers(
        coordination, copies, clock, server_ids=tuple(copies.stores), new_id=lambda: f"x{next(numbers)}"
    )
    servers.create_table("users", TABLE, table())
    servers.commit(TABLE, [RecordJob("j", 1)])
    assert TABLE in servers._groups
    end(servers)
    assert TABLE not in servers._groups
