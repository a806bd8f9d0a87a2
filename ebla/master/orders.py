"""What servers are told: tasks made of what METADATA says and they do not have, and the requests that tasks become.

    METADATA changed, by whomever --take_news--> tasks --due--> Requests, worked out from METADATA as it is then

The catalog keeps what was placed otherwise, deleted, brought back or altered since the last look; nothing here asks who
decided it. What a server lacks because it was away, its next full report shows (`heartbeats.py`).
"""

from __future__ import annotations

from ebla.master.catalog import Catalog
from ebla.master.cleaner import is_in_other_hands
from ebla.master.messages import (
    AlterTablet,
    CreateTablet,
    DeleteTablet,
    GiveUpTablet,
    HandOverTablet,
    ReplicateTablet,
    ReportedTablet,
    Request,
    Requests,
    TakeOutReplica,
    UpdateTablet,
)
from ebla.master.replicas import ReplicaCare
from ebla.master.reports import ALTER, CREATE, DELETE, GIVE_UP, HAND_OVER, REPLICATE, TAKE_OUT, UPDATE
from ebla.master.servers import Servers
from ebla.master.settings import MasterSettings
from ebla.master.table_info import TableInfo
from ebla.master.tasks import Tasks
from ebla.metadata.values.table_metadata import Replica, TabletMetadata

__all__ = ["Orders"]


class Orders:
    """The orders of a term."""

    def __init__(
        self,
        term: int,
        catalog: Catalog,
        servers: Servers,
        tasks: Tasks,
        settings: MasterSettings,
        care: ReplicaCare,
    ) -> None:
        self._term = term
        self._catalog = catalog
        self._servers = servers
        self._tasks = tasks
        self._settings = settings
        self._care = care

    # --- tasks -----------------------------------------------------------------------------------

    def take_news(self, now: float) -> None:
        """Make tasks of all that was placed otherwise, deleted, brought back or altered, by this master or another."""
        if not self._catalog.moved and not self._catalog.switched:
            return
        moved, self._catalog.moved = self._catalog.moved, []
        switched, self._catalog.switched = self._catalog.switched, {}
        for table_id in switched:
            if table_id in self._catalog.tables:
                self._tell_switched(self._catalog.tables[table_id], now)
        for before, after in moved:
            # Servers that split or join a tablet see to the old one themselves.
            if before is not None and before.id not in self._catalog.retired:
                for replica in before.assigned:
                    self._tell_removed(before.id, replica, now)
            if after is not None:
                self._tell_placed(after, now)

    def _tell_switched(self, info: TableInfo, now: float) -> None:
        version = info.metadata.schema.version
        for tablet in info.metadata.tablets:
            for replica in tablet.replicas:
                state = self._servers.reported(replica.server, tablet.id)
                if state is None:
                    continue  # when it comes, its report will show what it lacks
                if state.schema_version < version:
                    self._tasks.ensure(replica.server, tablet.id, ALTER, now)
                if (state.state == "stopped") != info.is_deleted:
                    self._tasks.ensure(replica.server, tablet.id, UPDATE, now)

    def _tell_placed(self, tablet: TabletMetadata, now: float) -> None:
        if tablet.target is not None and tablet.leader is not None:
            self._tasks.ensure(tablet.leader, tablet.id, HAND_OVER, now)
        for replica in tablet.assigned:
            server = self._servers.get(replica.server)
            if server is None:
                continue  # its full report will show what it lacks
            state = server.reported.get(tablet.id)
            if tablet.leader is None and replica == tablet.target:
                self._tasks.ensure(replica.server, tablet.id, CREATE, now)
            elif state is None:
                if server.is_whole:  # else the rest of its full report will show it
                    self._tasks.ensure(replica.server, tablet.id, CREATE, now)
            elif state.epoch < tablet.epoch:
                self._tasks.ensure(replica.server, tablet.id, UPDATE, now)

    def _tell_removed(self, tablet_id: str, replica: Replica, now: float) -> None:
        """Have a replica deleted that METADATA no longer names, if its server has said that it has it.

        Not before its tablet is in other hands: until then it may be the last.
        """
        info = self._catalog.tablet(tablet_id)
        server = self._servers.get(replica.server)
        is_assigned = info is not None and any(replica.key == one.key for one in info.tablet.assigned)
        if server is None or is_assigned:
            return
        state = server.reported.pop(tablet_id, None)
        if state is not None:
            table_id = self._catalog.gone.get(tablet_id, "") if info is None else info.table.id
            server.strays[tablet_id] = ReportedTablet(
                tablet_id, table_id, replica.assignment_id, "running", state.schema_version, state.epoch
            )
            if info is None or is_in_other_hands(info.tablet, replica.server, self._servers):
                self._tasks.ensure(replica.server, tablet_id, DELETE, now, replica.assignment_id)

    # --- requests --------------------------------------------------------------------------------

    def due(self, now: float, retained: dict[str, bool]) -> list[Requests]:
        """Return what is to be sent now; `retained` says which deleted tables can still be brought back."""
        found = []
        for server in self._servers:
            if now - server.heard_seconds > self._settings.silent_after_seconds or not self._tasks.of(server.uuid):
                continue

            def is_wanted(tablet: str, operation: str, assignment_id: str, uuid: str = server.uuid) -> bool:
                return self._request(uuid, tablet, operation, assignment_id, retained) is not None

            due = self._tasks.due(server.uuid, now, self._settings.requests_per_server_max, is_wanted)
            requests = [self._request(server.uuid, *task, retained) for task in due]
            if requests:
                found.append(Requests(self._term, server.uuid, tuple(one for one in requests if one is not None)))
        return found

    def _request(
        self, server: str, tablet_id: str, operation: str, assignment_id: str, retained: dict[str, bool]
    ) -> Request | None:
        """Return what a task says to its server now; None if there is nothing to say any more."""
        info = self._catalog.tablet(tablet_id)
        replica = None if info is None else _replica_on(info.tablet, server)
        if operation == DELETE:
            is_current = replica is not None and replica.assignment_id == assignment_id
            if is_current and info is not None and retained.get(info.table.id, True):
                return None  # it is not deleted (any more)
            return DeleteTablet(tablet_id, assignment_id)
        known = self._servers.get(server)
        if info is None or replica is None or known is None:
            return None
        if operation != CREATE and known.has_nothing_of(tablet_id):
            return None
        tablet, metadata = info.tablet, info.stored.metadata
        assert metadata is not None
        is_deleted = info.stored.config.is_deleted
        if operation == HAND_OVER:
            if tablet.leader != server or tablet.target is None:
                return None
            return HandOverTablet(tablet.id, replica.assignment_id, tablet.epoch, tablet.target)
        if operation == REPLICATE:
            wanted = self._care.to_replicate.get(metadata.table_id)
            if tablet.leader != server or wanted is None or tablet.is_replicated:
                return None
            return ReplicateTablet(tablet.id, replica.assignment_id, tablet.epoch, wanted)
        if operation in (GIVE_UP, TAKE_OUT):
            return self._asked_of_leader(operation, tablet, replica)
        if operation == CREATE:
            # Nobody leads it: it is for the one that it is offered to. Somebody does: that one has to resign first.
            is_target = replica == tablet.target
            if is_deleted or is_target != (tablet.leader is None):
                return None
            return CreateTablet(
                tablet.id,
                info.table.id,
                replica.assignment_id,
                tablet.first,
                tablet.last,
                metadata.schema,
                tablet.epoch,
                tablet.leader,
                tablet.replicas,
                tablet.number,
            )
        if operation == UPDATE:
            return UpdateTablet(
                tablet.id,
                replica.assignment_id,
                tablet.epoch,
                tablet.leader,
                tablet.replicas,
                is_deleted,
                tablet.number,
            )
        return AlterTablet(tablet.id, replica.assignment_id, metadata.schema)

    def _asked_of_leader(self, operation: str, tablet: TabletMetadata, replica: Replica) -> Request | None:
        """Return what the leader of a replicated tablet is asked, while it leads at that epoch and it is not done."""
        if tablet.leader != replica.server:
            return None
        if operation == GIVE_UP:
            epoch, successor = self._care.give_up.get(tablet.id, (0, None))
            if epoch != tablet.epoch:
                return None
            return GiveUpTablet(tablet.id, replica.assignment_id, epoch, successor)
        out = self._care.take_out.get(tablet.id)
        if out is None or out[0] != tablet.epoch or all(one.key != out[1].key for one in tablet.in_sync):
            return None
        return TakeOutReplica(tablet.id, replica.assignment_id, *out)


def _replica_on(tablet: TabletMetadata, server: str) -> Replica | None:
    # The target first: a server that had the tablet before may be offered it again.
    for replica in reversed(tablet.assigned):
        if replica.server == server:
            return replica
    return None
