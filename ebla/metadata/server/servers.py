"""Several metadata servers in one process, behind the interface of one: METADATA of a store on several disks.

    commit --> group of the table (group.py) --> any server that runs --> majority --> coordination service
    read   --> the file, from whichever directory has it whole (copies.py)

The servers of a table are started when the store is opened, with what their directories have: what is damaged or
missing there is fetched from the others before a server takes part again. A server whose directory is not there does
not run; the others go on while they are a majority, and refuse every change when they are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError, Unavailable
from ebla.metadata.server.copies import MetadataCopies
from ebla.metadata.server.group import MetadataGroup
from ebla.metadata.server.grouped import CommitRequest, GroupedMetadata
from ebla.retry import PATIENCE, Retries

__all__ = ["MetadataServers"]

# Without a majority a change is given up after so many pauses.
PATIENCE_TICKS = 20
# So long it is waited for servers that lack something: each of the others is asked in it.
CATCH_UP_TICKS = 8

_log = logging.getLogger(__name__)


class MetadataServers(GroupedMetadata):
    """Coordinates the METADATA transactions of all tables through servers of their own."""

    def __init__(
        self,
        coordination: CoordinationService,
        copies: MetadataCopies,
        clock: Clock,
        *,
        server_ids: Sequence[str],
        new_id: Callable[[], str],
        retries: Retries = PATIENCE,
    ) -> None:
        """`server_ids` are all servers, those included whose directories are not there."""
        super().__init__(coordination, copies, clock, server_id=server_ids[0], new_id=new_id, retries=retries)
        # Set once.
        self._server_ids = tuple(server_ids)
        self._copies = copies

    def _started(self, table_id: str) -> MetadataGroup:
        config, _ = self.directory.read(table_id)
        group = MetadataGroup(
            self._coordination,
            table_id,
            self._clock,
            new_id=self._new_id,
            snapshot_every=self._copies.snapshot_every,
            attempts_max=PATIENCE_TICKS,
            pause_seconds=self._retries.pause_seconds,
        )
        running = []
        for name, store in self._copies.stores.items():
            try:
                group.start(name, store)
                running.append(name)
            except (EblaError, OSError) as error:
                _log.warning("the metadata server %s does not run: %s", name, error)
        # The first to start found nobody to ask.
        for name in group.catch_up(CATCH_UP_TICKS):
            _log.warning("the metadata server %s of table %s lacks what is current", name, table_id)
        for name in running:
            if name not in config.metadata_servers:
                try:
                    group.join(name)
                except EblaError as error:  # it is tried again when the store is opened again
                    _log.warning("the metadata server %s is no server of table %s yet: %s", name, table_id, error)
        return group

    def _mend(self, table_id: str, group: MetadataGroup) -> None:
        """Let servers that were found to lack something look through their files."""
        for server in [name for name, table in self._copies.suspects if table == table_id]:
            self._copies.suspects.discard((server, table_id))
            try:
                group.scrub(server)
            except (EblaError, OSError, KeyError) as error:
                _log.warning("the metadata server %s could not be mended: %s", server, error)

    def _carry_out(self, table_id: str, requests: list[CommitRequest]) -> None:
        self._keep_valid_schema(table_id)
        group = self._group(table_id)
        if self._copies.suspects:
            self._mend(table_id, group)
        waiting = list(requests)
        refusal: EblaError | None = None
        for server in self._copies.stores:
            refused = self._commit_through(server, table_id, waiting)
            waiting = []
            for request, error in refused:
                if isinstance(error, Unavailable):
                    refusal = error
                    waiting.append(request)  # nothing was changed: another server may do it
                else:
                    request.fail(error)
            if not waiting:
                return
        raise Unavailable(f"METADATA of table {table_id} was not changed: {refusal}") from refusal

    def _keep_valid_schema(self, table_id: str) -> None:
        """If METADATA has a schema that cannot be, put the last valid one back before anybody builds upon it.

        No server of the table loads such METADATA, so it is not changed through them: what is kept is saved in a
        majority of the directories as a whole, and the servers are started anew with it.
        """
        for _ in range(self._retries.attempts_max):
            current = self._current.look(table_id, keep=True)
            if current.invalid is None:
                return
            metadata = current.metadata.with_txnid(self._new_id(), current.metadata.sequence + 1)
            self._store.save(current.metadata, metadata, (), whole=True)
            if self._switch(table_id, current, metadata):
                self._stop(table_id)
                return
        raise Unavailable(f"others changed table {table_id} faster each time: nothing was changed, try again")

    def reload(self, table_id: str) -> None:
        """Forget what is known of a table, and start its servers anew, with what is on their disks now."""
        super().reload(table_id)
        self._stop(table_id)
