"""One run of a tablet server, in its process: the engine, what it has, and the threads that keep it going.

    lease        renewed every second                                         coordination/server_lease.py
    heartbeat    every second, and at once when there is news                 reporter.py
    work         requests of masters, METADATA that others changed            tablets_here.py
                 logs of former runs that no tablet needs                     old_logs.py
    service      answers clients                                              led_service.py

The run is over when its lease is: nothing is acknowledged or answered from then on, and the server begins another one.
A clean end flushes, gives everything up, and releases the lease, so that nobody has to wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ebla.clock import Clock
from ebla.coordination.server_lease import ServerLease
from ebla.coordination.service import CoordinationService, Watch
from ebla.errors import EblaError, OutcomeUnknown, Unavailable
from ebla.master.messages import Heartbeat, HeartbeatReply, Instance, Refusal, Registration, Request, Requests
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.table_config import config_path
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.tablet.lead.giving_up import TabletGiver
from ebla.tablet.lead.run import open_run
from ebla.tablet.lead.taking_over import TabletTaker
from ebla.tablet_server.led_service import LedService
from ebla.tablet_server.old_logs import OldLogs
from ebla.tablet_server.reporter import Reporter
from ebla.tablet_server.tablets_here import TabletsHere
from ebla.threads.worker import Worker
from ebla.timing import Warner

__all__ = ["ServerParts", "ServerRun"]

# METADATA is looked at this often even if no notice came.
LOOK_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerParts:
    """What the runs of one server have in common."""

    files: Files
    coordination: CoordinationService
    metadata: MetadataAccess
    clock: Clock
    settings: Settings
    cluster: str
    server: str
    owner: str
    registration: Registration
    new_id: Callable[[], str]
    send: Callable[[Heartbeat], HeartbeatReply]
    """Sends a heartbeat to the master that leads; raises if none answers."""


class ServerRun:
    """A run, from the taking of the lease to its end."""

    def __init__(self, parts: ServerParts, start: int, on_over: Callable[[Refusal | None], None]) -> None:
        """Take the lease and begin; `on_over` is called from another thread when the run cannot go on.

        It is told of a master's refusal, if that is why: then another run would be refused as well.
        """
        # Set once.
        self._parts = parts
        self._on_over = on_over
        self.start = start
        self.lease = ServerLease(parts.coordination, parts.server, parts.owner, self._lost)
        try:
            self.engine = open_run(
                files=parts.files,
                coordination=parts.coordination,
                metadata=parts.metadata,
                clock=parts.clock,
                settings=parts.settings,
                server=parts.server,
                start=start,
                new_id=parts.new_id,
                fence=self.lease.check_commit,
            )
        except BaseException:
            self.lease.release()
            raise
        self.service = LedService(self.engine, parts.coordination, parts.clock, parts.new_id, self.lease)
        self._here = TabletsHere(
            self.engine,
            TabletTaker(self.engine, parts.coordination),
            TabletGiver(self.engine, parts.clock),
            self._tell,
        )
        self._work = Worker("ebla-tablets-here", self._work_round, self._failed, doing="carrying out requests")
        self._beat = Worker("ebla-heartbeat", self._beat_round, self._failed, doing="a heartbeat")
        # Guarded by _lock.
        self._lock = threading.Lock()
        self._reporter = Reporter(parts.cluster, Instance(parts.server, start), parts.registration)
        self._queue: dict[tuple[type, str], Request] = {}  # the newest of each kind for each tablet
        self._changed: set[str] = set()  # tables of which METADATA may be news
        self._term = 0
        self._failing = Warner(_log)
        # The worker's own.
        self._old_logs = OldLogs(parts.files, parts.coordination, parts.metadata, parts.clock, parts.server, start)
        self._watches: dict[str, Watch] = {}  # by table
        self._looked_at = parts.clock.monotonic_seconds()
        self._has_begun = False

    def begin(self) -> None:
        """Take own tablets, and begin to report and to do as masters ask."""
        self._work.start()
        self._work.wake()

    # --- requests and reports ---

    def take_requests(self, requests: Requests) -> None:
        """Queue what a master asks for; what comes from an older master than was heard of is passed over."""
        with self._lock:
            if requests.server != self._parts.server or requests.term < max(self._term, self._reporter.term):
                return
            self._term = requests.term
            for request in requests.requests:
                self._queue[type(request), request.tablet] = request
        self._work.wake()

    def _tell(self, told: Callable[[Reporter], None]) -> None:
        with self._lock:
            told(self._reporter)
            has_news = self._reporter.has_news
        if has_news:
            self._beat.wake()

    def _watch_tables(self) -> None:
        """Have changes noticed of every table that is open here."""
        for table in self.engine.open_tables.all():
            if table.id not in self._watches:
                self._watches[table.id] = self._parts.coordination.watch(
                    config_path(table.id), partial(self._noticed, table.id)
                )
        for gone in [one for one in self._watches if self.engine.open_tables.find(one) is None]:
            self._watches.pop(gone).cancel()

    def _noticed(self, table_id: str, path: str) -> None:
        with self._lock:
            self._changed.add(table_id)
        self._work.wake()

    # --- rounds ---

    def _work_round(self, is_idle: bool) -> None:
        if not self._has_begun:
            self._here.take_own()
            self._has_begun = True
            self._beat.start()
            self._beat.wake()
        with self._lock:
            requests, self._queue = list(self._queue.values()), {}
            changed, self._changed = self._changed, set()
        if requests:
            self._here.carry_out(requests)
        now = self._parts.clock.monotonic_seconds()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._here.look_at_all()
        else:
            for table_id in changed:
                self._here.look_at(table_id)
        self._watch_tables()
        self._old_logs.sweep_if_due()

    def _beat_round(self, is_idle: bool) -> None:
        while True:
            with self._lock:
                heartbeat = self._reporter.heartbeat()
            reply = self._parts.send(heartbeat)
            with self._lock:
                self._reporter.take_reply(heartbeat, reply)
                is_going_on = reply.acknowledged is not None and self._reporter.is_full_under_way
                has_more = is_going_on or (reply.needs_register and heartbeat.registration is None)
            if reply.refusal is not None:
                _log.error("a master refuses this server: %s", reply.refusal.message)
                self._on_over(reply.refusal)
                return
            if not has_more or self._beat.is_stopping:
                return

    def _failed(self, error: EblaError) -> None:
        self._failing.warn("%s", error)

    # --- the end ---

    def _lost(self) -> None:
        self._on_over(None)

    def end(self) -> None:
        """End a run whose lease is over: as a crash would, nothing more is written or acknowledged."""
        self.engine.stop_writing(
            OutcomeUnknown("the lease of this server is over: whoever leads the tablet now has the commit, or not")
        )
        self._stop_threads()
        self.lease.abandon()
        self.engine.abandon()

    def close(self) -> None:
        """Flush, give up all tablets, and let go. What cannot be given up is replayed by whoever is next."""
        self._stop_threads()
        giver = TabletGiver(self.engine, self._parts.clock)
        for table in self.engine.open_tables.all():
            assert table.led is not None
            try:
                giver.give_up(table, table.led.ids)
            except (Unavailable, OutcomeUnknown) as error:
                _log.warning("nothing more is handed over, for METADATA cannot be changed now: %s", error)
                break  # nor could that of the other tables
            except EblaError as error:
                _log.warning("tablets of %s are not handed over: %s", table.name, error)
        try:
            self.engine.close()
        except EblaError as error:
            _log.warning("the engine was closed with an error: %s", error)
        finally:
            self.lease.release()

    def _stop_threads(self) -> None:
        self._beat.stop()
        self._work.stop()
        for watch in self._watches.values():
            watch.cancel()

    def led(self) -> dict[str, Sequence[str]]:
        """Return the tablets that are led here, by table."""
        tables = self.engine.open_tables.all()
        return {table.name: sorted(table.led.ids) for table in tables if table.led is not None}
