"""What coordinates METADATA of a store: one server, or several where it is kept in several directories."""

from __future__ import annotations

from collections.abc import Callable

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.metadata.server.copies import MetadataCopies
from ebla.metadata.server.places import copy_names, recorded_places, stores_at
from ebla.metadata.server.servers import MetadataServers
from ebla.metadata.server.transaction import MetadataServer
from ebla.storage.files.files import Files
from ebla.tablet.recovery.identity import Identity, read_identity

__all__ = ["open_metadata"]


def open_metadata(
    coordination: CoordinationService,
    files: Files,
    clock: Clock,
    new_id: Callable[[], str],
    identity: Identity | None = None,
    snapshot_every: int = 32,
    *,
    read_only: bool = False,
    prune_in_background: bool = False,
) -> MetadataServer:
    """Return what coordinates METADATA of a store: one server, or several where there are further directories.

    For changes, the caller has the store for itself. Who lets old transactions be removed in the background waits for
    that (`finish_pruning`) before letting the store go.
    """
    identity = identity or read_identity(coordination)
    store = stores_at(coordination, files, identity.cluster, identity.server, snapshot_every)
    if read_only or not isinstance(store, MetadataCopies):
        return MetadataServer(
            coordination,
            store,
            clock,
            server_id=identity.server,
            new_id=new_id,
            prune_in_background=prune_in_background,
        )
    names = copy_names(identity.server, recorded_places(coordination))
    servers = MetadataServers(coordination, store, clock, server_ids=names, new_id=new_id)
    servers.start()
    return servers
