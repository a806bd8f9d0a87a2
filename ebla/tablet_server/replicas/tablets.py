"""The replicated tablets of a run, as METADATA and masters have them: learnt, led, given up, reported.

    METADATA of a table --> replicas learn it --> chosen: an epoch begins --> committed: served --> "running"
                                             `--> followed, or learning                         --> "running"
    give up        no longer led; masters are told in heartbeats until METADATA has another epoch
    take out       taken out of sync, if enough remain
    delete         a replica that left goes when the leader has confirmed that all members have what it has

For the run's worker alone, as everything that carries out what masters ask for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ebla.errors import EblaError, OutcomeUnknown, Unavailable, UnknownTable
from ebla.master.messages import (
    DeleteTablet,
    GiveUpTablet,
    ReplicateTablet,
    ReportedTablet,
    TabletReportState,
    TakeOutReplica,
)
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.tablet.engine import TabletStore
from ebla.tablet_server.replicas.here import ReplicasHere
from ebla.tablet_server.replicas.leading import TabletLeader
from ebla.tablet_server.reporter import Reporter

__all__ = ["ReplicatedTablets"]

_log = logging.getLogger(__name__)


class ReplicatedTablets:
    """Tablets with several replicas, one of which is here. For one thread; the reporter is used under its lock."""

    def __init__(
        self,
        store: TabletStore,
        replicas: ReplicasHere,
        leader: TabletLeader,
        server: str,
        tell: Callable[[Callable[[Reporter], None]], None],
    ) -> None:
        # Set once.
        self._store = store
        self._replicas = replicas
        self._leader = leader
        self._server = server
        self._tell = tell
        self.tables: set[str] = set()  # of which replicas are here, or were

    def look(self, found: TableMetadata) -> None:
        """Take in METADATA of a table, and report what is here of it."""
        own = [one for one in found.tablets if one.is_replicated and one.replica_on(self._server) is not None]
        if not own and found.table_id not in self.tables:
            return
        self.tables.add(found.table_id)
        chosen = self._replicas.learn(found)
        self._leader.let_go(found)
        try:
            self._switch(found.table_id)
            if chosen:
                self._leader.begin(found, chosen)
        except (Unavailable, OutcomeUnknown) as error:
            _log.warning("what METADATA says of table %s waits: %s", found.table_id, error)
        self.serve(found.table_id)
        self.report(found)

    def _switch(self, table_id: str) -> None:
        """Put the newest schema in force: what is led here of a table, and in memory, is flushed under the last one."""
        table = self._store.open_tables.find(table_id)
        if table is not None:
            self._store.late_schemas.switch(table)

    def look_at(self, table_id: str) -> None:
        """Read METADATA of a table and take it in."""
        try:
            found = self._store.metadata.refresh(table_id)
        except UnknownTable:
            self._forget(table_id)
            return
        table = self._store.open_tables.find(table_id)
        if table is not None and found.txnid != table.view.metadata.txnid:
            self._store.open_tables.use_metadata(table, found, self._store.server)
        self.look(found)

    def look_at_all(self) -> None:
        """Look at all tables of which replicas are here."""
        for table_id in sorted(self.tables):
            try:
                self.look_at(table_id)
            except EblaError as error:
                _log.warning("METADATA of table %s could not be taken in: %s", table_id, error)

    def settle_former(self) -> bool:
        """See to it that all that former runs logged and counts is in the log of this one; False if it is not yet."""
        for table_id in sorted(self._replicas.unclaimed_tables()):
            try:
                self.look(self._store.metadata.refresh(table_id))
            except UnknownTable:
                pass
            except EblaError as error:
                _log.warning("METADATA of table %s could not be taken in: %s", table_id, error)
                return False
            self._replicas.drop_unclaimed(table_id)
        return self._replicas.is_carried_over

    def serve(self, table_id: str) -> None:
        """Serve what has begun its epoch."""
        table = self._store.open_tables.find(table_id)
        if table is not None and table.led is not None:
            self._leader.serve(table)

    def serve_begun(self) -> None:
        """Serve and report what has begun its epoch since the last look."""
        for table_id in sorted(self.tables):
            table = self._store.open_tables.find(table_id)
            if table is not None and table.led is not None:
                before = table.led.ids
                self._leader.serve(table)
                if table.led.ids != before:
                    self.report(table.view.metadata)

    def give_up_all(self) -> list[tuple[str, str, int]]:
        """Lead nothing any more; return table, tablet and epoch of what was led."""
        given: list[tuple[str, str, int]] = []
        for table_id in sorted(self.tables):
            table = self._store.open_tables.find(table_id)
            if table is None or table.led is None:
                continue
            own = [one for one in table.view.metadata.tablets if one.is_replicated and one.id in table.led.ids]
            try:
                self._leader.give_up(table, [one.id for one in own])
                given += [(table_id, one.id, one.epoch) for one in own]
            except EblaError as error:
                _log.warning("tablets of %s are not handed over: %s", table.name, error)
        return given

    def are_led_by_others(self, given: Iterable[tuple[str, str, int]]) -> bool:
        """Tell whether METADATA has later epochs of tablets that were given up."""
        for table_id, tablet_id, epoch in given:
            try:
                tablet = self._store.metadata.refresh(table_id).by_id(tablet_id)
            except UnknownTable:
                continue
            if tablet is not None and tablet.epoch <= epoch:
                return False
        return True

    def _forget(self, table_id: str) -> None:
        self._replicas.forget_table(table_id)
        self.tables.discard(table_id)

        def tell(reporter: Reporter) -> None:
            for known in [one for one in reporter.replicas.values() if one.table == table_id]:
                reporter.removed(known.tablet, known.assignment_id)

        self._tell(tell)

    # --- requests --------------------------------------------------------------------------------

    def table_of(self, tablet: str) -> str | None:
        """Return the table of a tablet that has a replica here."""
        return next((table for table, one, _, _ in self._replicas.followed() if one == tablet), None)

    def give_up(self, request: GiveUpTablet) -> None:
        """Lead a tablet no more, if it is at the epoch that was asked for."""
        table_id = self.table_of(request.tablet)
        table = None if table_id is None else self._store.open_tables.find(table_id)
        if table_id is None:
            return
        if not self._replicas.is_serving(table_id, request.tablet, request.epoch):
            self._replicas.resign(
                table_id, request.tablet, self._store.txn_clock.last, request.successor, request.epoch
            )
        elif table is not None:
            self._leader.give_up(table, [request.tablet], request.successor)
        self.look_at(table_id)

    def replicate(self, request: ReplicateTablet) -> None:
        """Have a tablet that is led here alone want replicas."""
        for table in self._store.open_tables.all():
            tablet = table.view.metadata.by_id(request.tablet)
            if tablet is None or tablet.epoch != request.epoch or tablet.is_replicated:
                continue
            saved = self._leader.replicate(table, request.tablet, request.wanted, self._server)
            if saved is not None:
                self.look(saved)

    def take_out(self, request: TakeOutReplica) -> None:
        """Take a replica out of sync when that can be."""
        table_id = self.table_of(request.tablet)
        if table_id is not None:
            self._replicas.take_out(table_id, request.tablet, request.epoch, request.replica)

    def delete(self, request: DeleteTablet) -> bool:
        """Have a replica go; False if there is none of that assignment here."""
        for table_id, tablet, assignment_id, _ in self._replicas.followed():
            if tablet == request.tablet and assignment_id == request.assignment_id:
                self.look_at(table_id)
                self._replicas.drop_if_empty(table_id, tablet, assignment_id)
                return True
        return False

    # --- reports ---------------------------------------------------------------------------------

    def report(self, found: TableMetadata, tablets: Iterable[str] = ()) -> None:
        """Tell the reporter what is here of a table; some tablets again, changed or not."""
        here = {
            tablet: (assignment, epoch)
            for table, tablet, assignment, epoch in self._replicas.followed()
            if table == found.table_id
        }
        reports = []
        table = self._store.open_tables.find(found.table_id)
        in_force = found.schema.version if table is None else table.view.parts.version
        for tablet in found.tablets:
            if tablet.id not in here:
                continue
            assignment, epoch = here[tablet.id]
            is_led = tablet.log == self._store.server and tablet.replica_on(self._server) is not None
            is_ready = not is_led or self._is_served(found.table_id, tablet.id)
            state: TabletReportState = "running" if is_ready else "creating"
            version = in_force if is_led else found.schema.version
            if not is_ready and found.former:
                version = min(version, found.former[0].version)  # its log may have rows of it, in no file yet
            reports.append(ReportedTablet(tablet.id, found.table_id, assignment, state, version, epoch))

        def tell(reporter: Reporter) -> None:
            for one in reports:
                if reporter.replicas.get(one.tablet) != one or one.tablet in tablets:
                    reporter.has(one)
            for known in [one for one in reporter.replicas.values() if one.table == found.table_id]:
                is_replicated = any(one.id == known.tablet and one.is_replicated for one in found.tablets)
                if known.tablet not in here and is_replicated:
                    reporter.removed(known.tablet, known.assignment_id)

        self._tell(tell)

    def _is_served(self, table_id: str, tablet: str) -> bool:
        table = self._store.open_tables.find(table_id)
        return table is not None and table.led is not None and tablet in table.led.ids
