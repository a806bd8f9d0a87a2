"""The tablets of one run: requests of masters carried out, METADATA taken over, and all of it told to the reporter.

    create, nobody leads it     taken over: its last leader's log is replayed (tablet/lead/taking_over.py)
    create, led by this server  a new tablet: METADATA gets this run's log for it
    hand over                   flushed and given up (tablet/lead/giving_up.py)
    update                      stopped with its table, or back with it; else METADATA tells
    alter                       METADATA is looked at: what is in memory is flushed under the old schema first
    delete                      forgotten
    METADATA changed            by others: noticed, and looked at now and then

What is asked for is done by one thread, in the order in which it came. A request that cannot be carried out leaves the
tablet reported as failed, or as it was; the master asks again, or asks another server.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from ebla.errors import EblaError, SchemaError, UnknownTable
from ebla.master.messages import (
    AlterTablet,
    CreateTablet,
    DeleteTablet,
    GiveUpTablet,
    HandOverTablet,
    ReplicateTablet,
    ReportedTablet,
    Request,
    TabletReportState,
    TakeOutReplica,
    UpdateTablet,
)
from ebla.metadata.values.changes import TakeLog
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.tablet.engine import TabletStore
from ebla.tablet.lead.giving_up import TabletGiver
from ebla.tablet.lead.run import server_of_run
from ebla.tablet.lead.taking_over import Offered, TabletTaker
from ebla.tablet.tables.table_state import TableState
from ebla.tablet_server.replicas.tablets import ReplicatedTablets
from ebla.tablet_server.reporter import Reporter

__all__ = ["TabletsHere"]

_log = logging.getLogger(__name__)


class TabletsHere:
    """What one run has, and how that changes. For one thread; the reporter is used under its lock."""

    def __init__(
        self,
        store: TabletStore,
        taker: TabletTaker,
        giver: TabletGiver,
        replicated: ReplicatedTablets,
        tell: Callable[[Callable[[Reporter], None]], None],
    ) -> None:
        """`tell` lets something be told to the reporter, which other threads use as well."""
        # Set once.
        self._store = store
        self._taker = taker
        self._giver = giver
        self._replicated = replicated
        self._tell = tell
        self._run = store.server
        self._server = server_of_run(store.server)
        # Tablets of deleted tables, kept and not served.
        self._stopped: set[str] = set()

    # --- at the start ---

    def take_own(self) -> None:
        """Take over what METADATA says this server leads: its former runs did.

        Tables that are to be loaded first come first, then fixed ones.
        """
        metadata = self._store.metadata
        names = {entry.table_id: entry.name for entry in metadata.list_tables()}
        tables: list[TableMetadata] = []
        for table_id, name in names.items():
            try:
                tables.append(metadata.refresh(table_id))
            except EblaError as error:
                _log.warning("table %s cannot be looked at: %s", name, error)
        first = self._store.settings.load_first
        for found in sorted(
            tables, key=lambda one: (names[one.table_id] not in first, not one.is_fixed, names[one.table_id])
        ):
            table_id = found.table_id
            self._replicated.look(found)
            own = [one for one in found.tablets if one.leader == self._server and not one.is_replicated]
            self.take([Offered(table_id, one.id, _own_assignment(one, self._server)) for one in own if _is_served(one)])
            self._take_log(found, [one for one in own if not _is_served(one)])

    # --- requests ---

    def carry_out(self, requests: Sequence[Request]) -> None:
        """Do what a master asks for. What fails is told, and asked for again."""
        offers = []
        created: dict[str, list[str]] = defaultdict(list)
        for request in requests:
            try:
                match request:
                    case CreateTablet(leader=None):
                        offers.append(Offered(request.table, request.tablet, request.assignment_id))
                    case CreateTablet():
                        created[request.table].append(request.tablet)
                    case HandOverTablet():
                        self._hand_over(request)
                    case UpdateTablet():
                        self._update(request)
                    case AlterTablet():
                        self._look_at_tablet(request.tablet)
                    case GiveUpTablet():
                        self._replicated.give_up(request)
                    case ReplicateTablet():
                        self._replicated.replicate(request)
                    case TakeOutReplica():
                        self._replicated.take_out(request)
                    case DeleteTablet():
                        self._delete(request)
            except EblaError as error:
                _log.warning("%s of tablet %s failed: %s", type(request).__name__, request.tablet, error)
        for table_id, tablets in created.items():
            try:
                self._create(table_id, tablets)
            except EblaError as error:
                _log.warning("tablets of table %s were not created: %s", table_id, error)
        self.take(offers)

    def take(self, offers: Sequence[Offered]) -> None:
        """Take over what is offered, and report what came of it."""
        if not offers:
            return
        failed = self._taker.take(offers)
        for table_id in dict.fromkeys(offer.table for offer in offers):
            table = self._store.open_tables.find(table_id)
            if table is not None:
                self._report(table)
        for offer in failed:
            self._report_failed(offer)

    def _report_failed(self, offer: Offered) -> None:
        try:
            metadata = self._store.metadata.refresh(offer.table)
        except EblaError:
            return
        tablet = metadata.by_id(offer.tablet)
        own = None if tablet is None else _assignment(tablet, self._server)
        if tablet is not None and own == offer.assignment_id and tablet.log != self._run:
            version = metadata.schema.version
            failed = ReportedTablet(tablet.id, offer.table, own, "failed", version, tablet.epoch)
            self._tell(lambda reporter: reporter.has(failed))

    def _create(self, table_id: str, tablets: Sequence[str]) -> None:
        metadata = self._store.metadata.refresh(table_id)
        found = [metadata.by_id(one) for one in tablets]
        self._replicated.look(metadata)
        self._replicated.report(metadata, [one.id for one in found if one is not None and one.is_replicated])
        own = [one for one in found if one is not None and one.leader == self._server and not one.is_replicated]
        new = [one for one in own if one.log is None or not _is_served(one)]
        self._take_log(metadata, [one for one in new if one.log != self._run])
        self.take(
            [
                Offered(table_id, one.id, _own_assignment(one, self._server))
                for one in own
                if one not in new and one.log != self._run
            ]
        )
        table = self._store.open_tables.find(table_id)
        if table is not None:
            self._report(table)
            self._repeat(tablets)

    def _take_log(self, metadata: TableMetadata, tablets: Sequence[TabletMetadata]) -> None:
        """Lead new tablets: nothing was ever written to them."""
        if not tablets:
            return
        by_log: dict[str | None, list[TabletMetadata]] = defaultdict(list)
        for one in tablets:
            by_log[one.log].append(one)
        changes = [
            TakeLog(tuple(TabletAt(one.id, one.epoch) for one in several), self._server, self._run, log)
            for log, several in by_log.items()
        ]
        self._store.txn_clock.pass_by(metadata.created_txn)
        with self._store.passing.passing() as pass_txn:
            pass_txn()  # the newest moment here is not before the tablets were made
        saved = self._store.metadata.commit(metadata.table_id, changes)
        table = self._store.open_tables.find(metadata.table_id)
        if table is None:
            table = self._store.add_table(self._store.metadata.name_of(metadata.table_id), saved)
        self._use(table, saved)

    def _hand_over(self, request: HandOverTablet) -> None:
        table = self._table_of(request.tablet)
        if table is None:
            return
        tablet = table.view.metadata.by_id(request.tablet)
        if tablet is not None and tablet.epoch == request.epoch:
            self._giver.give_up(table, [request.tablet])
        self._look_at(table)
        self._repeat([request.tablet])

    def _update(self, request: UpdateTablet) -> None:
        followed = self._replicated.table_of(request.tablet)
        if followed is not None and not request.is_stopped:
            self._replicated.look_at(followed)
        table = self._table_of(request.tablet)
        if table is None or table.led is None:
            return
        if request.is_stopped:
            self._stopped.add(request.tablet)
            with self._store.open_tables.lock:
                table.led.resign([request.tablet])
        elif request.tablet in self._stopped:
            self._stopped.discard(request.tablet)
            with self._store.open_tables.lock:
                table.led.thaw([request.tablet])
        self._look_at(table)
        self._repeat([request.tablet])

    def _delete(self, request: DeleteTablet) -> None:
        if self._replicated.delete(request):
            return
        table = self._table_of(request.tablet)
        if table is not None and table.led is not None:
            tablet = table.view.metadata.by_id(request.tablet)
            own = None if tablet is None else _assignment(tablet, self._server)
            if own in (None, request.assignment_id):
                with self._store.open_tables.lock:
                    table.led.resign([request.tablet])
        self._stopped.discard(request.tablet)
        self._tell(lambda reporter: reporter.removed(request.tablet, request.assignment_id))

    # --- METADATA ---

    def look_at_all(self) -> None:
        """Take over what others have changed."""
        self._replicated.look_at_all()
        for table in self._store.open_tables.all():
            try:
                self._look_at(table)
            except EblaError as error:
                _log.warning("METADATA of %s could not be taken over: %s", table.name, error)

    def look_at(self, table_id: str) -> None:
        """Take over METADATA of one table, if it is open here."""
        table = self._store.open_tables.find(table_id)
        if table is not None:
            self._look_at(table)
        elif table_id in self._replicated.tables:
            self._replicated.look_at(table_id)

    def _look_at_tablet(self, tablet: str) -> None:
        table = self._table_of(tablet)
        if table is not None:
            self._look_at(table)
        elif (followed := self._replicated.table_of(tablet)) is not None:
            self._replicated.look_at(followed)
        self._repeat([tablet])

    def _look_at(self, table: TableState) -> None:
        try:
            found = self._store.metadata.refresh(table.id)
            name = self._store.metadata.name_of(table.id)
        except UnknownTable:
            self._forget(table)
            return
        except SchemaError as error:
            table.invalid_schema = error  # the last one that could be stays in force
            _log.warning("table %s: its schema is ignored: %s", table.name, error)
            return
        if name != table.name:
            self._store.open_tables.rename(table, name)
        if found.txnid != table.view.metadata.txnid:
            self._store.open_tables.use_metadata(table, found, self._run)
        self._replicated.look(found)  # first: what waits for replicas may go on by it
        self._store.late_schemas.switch(table)
        self._report(table)

    def _use(self, table: TableState, metadata: TableMetadata) -> None:
        self._store.open_tables.use_metadata(table, metadata, self._run)
        self._store.late_schemas.switch(table)  # if it has another schema, and rows of the last one are in memory

    def _forget(self, table: TableState) -> None:
        self._store.open_tables.purge(table.id)
        self._store.open_tables.unlink(table)
        self._tell(lambda reporter: _forget_all(reporter, table.id))

    # --- reports ---

    def _report(self, table: TableState) -> None:
        """Tell the reporter what is led of a table, and what is not there any more."""
        assert table.led is not None
        metadata, version, ids = table.view.metadata, table.view.parts.version, table.led.ids
        led = []
        for tablet in metadata.tablets:
            own = _assignment(tablet, self._server)
            if tablet.is_replicated:
                continue
            if own is not None and (tablet.id in ids or tablet.id in self._stopped):
                state: TabletReportState = "stopped" if tablet.id in self._stopped else "running"
                led.append(ReportedTablet(tablet.id, table.id, own, state, version, tablet.epoch))

        def tell(reporter: Reporter) -> None:
            for one in led:
                if reporter.replicas.get(one.tablet) != one:
                    reporter.has(one)
            for known in [one for one in reporter.replicas.values() if one.table == table.id]:
                tablet = metadata.by_id(known.tablet)
                if tablet is None:
                    reporter.removed(known.tablet, known.assignment_id)  # split or joined
                elif tablet.id not in ids and known.state == "running" and not tablet.is_replicated:
                    reporter.change(tablet.id, epoch=max(known.epoch, tablet.epoch))  # given up: until it is deleted

        self._tell(tell)

    def _repeat(self, tablets: Iterable[str]) -> None:
        def tell(reporter: Reporter) -> None:
            for one in tablets:
                reporter.repeat(one)

        self._tell(tell)

    def _table_of(self, tablet_id: str) -> TableState | None:
        for table in self._store.open_tables.all():
            if table.view.metadata.by_id(tablet_id) is not None:
                return table
        return None


def _is_served(tablet: TabletMetadata) -> bool:
    """Whether a tablet has come so far that somebody may have written to it."""
    return tablet.state not in ("preparing", "creating")


def _assignment(tablet: TabletMetadata, server: str) -> str | None:
    """Return by which assignment a server has a tablet, or is to have it."""
    return next((one.assignment_id for one in reversed(tablet.assigned) if one.server == server), None)


def _own_assignment(tablet: TabletMetadata, server: str) -> str:
    return next((one.assignment_id for one in tablet.replicas if one.server == server), "")


def _forget_all(reporter: Reporter, table_id: str) -> None:
    for known in [one for one in reporter.replicas.values() if one.table == table_id]:
        reporter.removed(known.tablet, known.assignment_id)
