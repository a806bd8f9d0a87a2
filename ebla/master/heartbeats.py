"""Handling a heartbeat: message in, at most one write, message out.

    1  cluster id         another cluster: refused before anything else is looked at
    2  instance           an older run: refused; a newer one: it registers and sends a full report
    3  registration       taken, if there is one
    4  not registered     "needs register", and nothing else of the message counts
    5  heard              the server is alive
    6  report             older than one that was taken: ignored
                          a chunk that does not follow: "needs full report"
                          else judged, tablet by tablet; one write for all that it started
    7  reply              which report was taken; "needs full report" until one was complete

What the report asks for is done through tasks, after the write. A report that was not written is not acknowledged, and
comes again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebla.master.catalog import Catalog
from ebla.master.cleaner import is_in_other_hands
from ebla.master.messages import Heartbeat, HeartbeatReply, Refusal, ReportedTablet, TabletReport
from ebla.master.refresh import refresh_tables
from ebla.master.reports import ALTER, CREATE, DELETE, FAILED, HAND_OVER, REFRESH, START, UNKNOWN, UPDATE, judge
from ebla.master.servers import Server, Servers, StaleInstance
from ebla.master.settings import MasterSettings
from ebla.master.tasks import Tasks
from ebla.master.writes import ChangeTable, ChangeTables, Operation
from ebla.metadata.values.assigning import StartTablets
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata

__all__ = ["HeartbeatHandler"]

_REPORT_ENDS = (CREATE, UPDATE, ALTER)


@dataclass(slots=True)
class _Findings:
    """What a report asks for, before anything is done about it."""

    starts: dict[str, list[TabletAt]] = field(default_factory=dict)  # by table
    refresh: dict[str, None] = field(default_factory=dict)  # tables to look at again
    again: list[ReportedTablet] = field(default_factory=list)  # to be judged once more after that


class HeartbeatHandler:
    """Takes the heartbeats of a term."""

    def __init__(
        self,
        cluster_id: str,
        term: int,
        catalog: Catalog,
        servers: Servers,
        tasks: Tasks,
        settings: MasterSettings,
    ) -> None:
        self._cluster_id = cluster_id
        self._term = term
        self._catalog = catalog
        self._servers = servers
        self._tasks = tasks
        self._settings = settings

    def handle(self, heartbeat: Heartbeat, now: float, retained: dict[str, bool]) -> Operation[HeartbeatReply]:
        """Take a heartbeat at a time, and return the reply."""
        if heartbeat.cluster_id != self._cluster_id:
            return self._refuse("wrong_cluster", f"this is the cluster {self._cluster_id}: start with its address")
        try:
            server = self._server(heartbeat, now)
        except StaleInstance:
            return self._refuse("old_instance", f"{heartbeat.instance.uuid} was started again since: stop")
        if server is None:
            return HeartbeatReply(self._term, needs_register=True)
        self._servers.heard(server, now)
        if heartbeat.oldest_file_microseconds is not None:
            server.oldest_file_microseconds = heartbeat.oldest_file_microseconds
        server.lags = heartbeat.lags
        self._servers.told(server, heartbeat.resigned, heartbeat.stuck)
        report = heartbeat.report
        if report is None or report.sequence <= server.sequence:
            return HeartbeatReply(self._term, needs_full_report=not server.is_whole)
        if len(report.tablets) > self._settings.report_tablets_max:
            return self._refuse("invalid", f"a report has {self._settings.report_tablets_max} tablets at most: cut it")
        if not self._follows(server, report):
            return HeartbeatReply(self._term, needs_full_report=True)
        yield from self._take(server, report, now, retained)
        server.sequence = max(server.sequence, report.sequence)
        return HeartbeatReply(self._term, needs_full_report=not server.is_whole, acknowledged=report.sequence)

    def _refuse(self, code: str, message: str) -> HeartbeatReply:
        return HeartbeatReply(self._term, refusal=Refusal(code, message))  # type: ignore[arg-type]

    def _server(self, heartbeat: Heartbeat, now: float) -> Server | None:
        if heartbeat.registration is None:
            return self._servers.of(heartbeat.instance)
        known = self._servers.get(heartbeat.instance.uuid)
        server = self._servers.register(heartbeat.instance, heartbeat.registration, now)
        if server is not known:
            self._tasks.drop_server(server.uuid)
        return server

    def _follows(self, server: Server, report: TabletReport) -> bool:
        """Whether a report continues what was received; the first chunk of a full report always does."""
        full = report.full
        if full is None:
            return server.is_whole
        if full.chunk == 0:
            server.full_number, server.full_chunk, server.full_seen = full.number, 0, {}
            return True
        # The one before may come again: its acknowledgement was lost.
        return full.number == server.full_number and full.chunk in (server.full_chunk, server.full_chunk - 1)

    # --- the report ------------------------------------------------------------------------------

    def _take(self, server: Server, report: TabletReport, now: float, retained: dict[str, bool]) -> Operation[None]:
        findings = _Findings()
        for removed in report.removed:
            self._removed(server, removed.tablet, removed.assignment_id, now)
        for replica in report.tablets:
            self._judge(server, replica, findings, now, retained)
        if findings.refresh:
            yield from refresh_tables(self._catalog, tuple(findings.refresh))
            again, findings.again = findings.again, []
            for replica in again:
                self._judge(server, replica, findings, now, retained, is_second=True)
        if findings.starts:
            changes = [
                ChangeTable(table_id, (StartTablets(tuple(tablets)),)) for table_id, tablets in findings.starts.items()
            ]
            answers = yield ChangeTables(tuple(changes))
            for answer in answers:
                if isinstance(answer, TableMetadata):
                    self._catalog.install_metadata(answer)
        full = report.full
        if full is not None:
            server.full_seen.update((replica.tablet, None) for replica in report.tablets)
            server.full_chunk = full.chunk + 1
            if full.is_last:
                self._complete(server, now)

    def _judge(
        self,
        server: Server,
        replica: ReportedTablet,
        findings: _Findings,
        now: float,
        retained: dict[str, bool],
        is_second: bool = False,
    ) -> None:
        uuid = server.instance.uuid
        tablet, actions = judge(self._catalog, uuid, replica, retained, self._is_in_other_hands)
        self._note(server, replica, tablet)
        tasks = self._tasks
        if tablet is not None:
            tasks.done_but(uuid, replica.tablet, _REPORT_ENDS, actions)
        elif UNKNOWN not in actions:
            self._want(server, replica.tablet, now)  # it has it by an older assignment, and may be to have it anew
        for action in actions:
            if action == FAILED:
                self._servers.failed[replica.tablet] = uuid
            elif action == START:
                table_id = self._catalog.tablets[replica.tablet].id
                findings.starts.setdefault(table_id, []).append(TabletAt(replica.tablet, replica.epoch))
            elif action in (REFRESH, UNKNOWN) and not is_second and replica.table in self._catalog.tables:
                findings.refresh[replica.table] = None
                findings.again.append(replica)
            elif action == UNKNOWN:
                server.unknown[replica.tablet] = replica
            elif action in (CREATE, HAND_OVER):
                tasks.ensure(uuid, replica.tablet, action, now)
            elif action in (ALTER, UPDATE, DELETE):
                tasks.ensure(uuid, replica.tablet, action, now, replica.assignment_id)

    def _is_in_other_hands(self, tablet: TabletMetadata, server: str) -> bool:
        return is_in_other_hands(tablet, server, self._servers)

    def _note(self, server: Server, replica: ReportedTablet, tablet: TabletMetadata | None) -> None:
        if self._servers.failed.get(replica.tablet) == server.uuid:
            del self._servers.failed[replica.tablet]  # unless this report says so again
        if tablet is not None:
            state = self._servers.shared(replica.epoch, replica.schema_version, replica.state)
            server.reported[tablet.id] = state  # the catalog's copy of the id
            if server.strays or server.unknown:
                server.strays.pop(replica.tablet, None)
                server.unknown.pop(replica.tablet, None)
        else:
            server.reported.pop(replica.tablet, None)
            server.strays[replica.tablet] = replica

    def _removed(self, server: Server, tablet_id: str, assignment_id: str, now: float) -> None:
        self._tasks.done(server.uuid, tablet_id, DELETE)
        stray = server.strays.get(tablet_id)
        if stray is not None and stray.assignment_id == assignment_id:
            del server.strays[tablet_id]
            server.unknown.pop(tablet_id, None)
        info = self._catalog.tablet(tablet_id)
        if info is None:
            server.reported.pop(tablet_id, None)
            return
        if all(replica.assignment_id != assignment_id for replica in info.tablet.assigned):
            return  # of an older assignment: what the server is to have is something else
        server.reported.pop(tablet_id, None)
        self._want(server, tablet_id, now)

    def _complete(self, server: Server, now: float) -> None:
        """Of a server that is known whole, what is not reported is not there."""
        seen = server.full_seen
        for known in (server.reported, server.strays, server.unknown):
            for tablet_id in [tablet_id for tablet_id in known if tablet_id not in seen]:
                del known[tablet_id]
                self._tasks.done(server.uuid, tablet_id, DELETE)
        server.is_whole, server.full_number, server.full_seen = True, None, {}
        for tablet_id in self._catalog.placed_on(server.uuid):
            if tablet_id not in server.reported:
                self._want(server, tablet_id, now)

    def _want(self, server: Server, tablet_id: str, now: float) -> None:
        """Ask a server for a replica that it is to have and does not."""
        info = self._catalog.tablet(tablet_id)
        if info is None or not info.table.is_visible:
            return
        for replica in info.tablet.assigned:
            if replica.server == server.uuid:
                self._tasks.ensure(server.uuid, tablet_id, CREATE, now)
