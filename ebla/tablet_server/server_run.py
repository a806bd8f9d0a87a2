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

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from ebla.access.credentials import NOTHING, Credentials
from ebla.clock import Clock
from ebla.coordination.server_lease import ServerLease
from ebla.coordination.service import CoordinationService, Watch
from ebla.errors import EblaError, OutcomeUnknown, StaleRoute, StoreError, Unavailable
from ebla.master.calls import UnloadHere
from ebla.master.messages import Heartbeat, HeartbeatReply, Instance, Refusal, Registration, Request, Requests
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.table_config import config_path
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.tablet.garbage.file_floor import FileFloor
from ebla.tablet.lead.giving_up import TabletGiver
from ebla.tablet.lead.old_logs import OldLogs
from ebla.tablet.lead.run import open_run
from ebla.tablet.lead.taking_over import TabletTaker
from ebla.tablet_server.gates import BulkGates
from ebla.tablet_server.led_service import LedService
from ebla.tablet_server.replicas.asking import ChangeAsker
from ebla.tablet_server.replicas.former_logs import read_former_logs
from ebla.tablet_server.replicas.here import ReplicasHere
from ebla.tablet_server.replicas.leading import TabletLeader
from ebla.tablet_server.replicas.peers import Peers, announce, read_address
from ebla.tablet_server.replicas.tablets import ReplicatedTablets
from ebla.tablet_server.reporter import Reporter
from ebla.tablet_server.tablets_here import TabletsHere
from ebla.threads.ticker import Ticker
from ebla.threads.worker import Worker
from ebla.timing import Warner

__all__ = ["ServerParts", "ServerRun"]

# METADATA is looked at this often even if no notice came.
LOOK_SECONDS = 5.0
# Replicas are spoken of this often while something of them is under way.
TICK_SECONDS = 0.1
# A clean end waits so long for others to lead what was led here.
HAND_OVER_SECONDS = 5.0

# So much room there must be for a log, or no run begins.
PROBE_BYTES = 1 << 20

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
    credentials: Credentials = NOTHING
    """What this server shows others."""
    log_files: Files | None = None
    """Where its logs are, if not among `files`: on a disk of its own."""

    @property
    def logs(self) -> Files:
        """Where the logs of this server are."""
        return self.files if self.log_files is None else self.log_files


class ServerRun:
    """A run, from the taking of the lease to its end."""

    def __init__(self, parts: ServerParts, start: int, on_over: Callable[[Refusal | None], None]) -> None:
        """Take the lease and begin; `on_over` is called from another thread when the run cannot go on.

        It is told of a master's refusal, if that is why: then another run would be refused as well.
        """
        check_disk(parts.logs, parts.server)  # else it would take its tablets back, and lose them with the first write
        # Set once.
        self._parts = parts
        self._on_over = on_over
        self.start = start
        self.lease = ServerLease(parts.coordination, parts.server, parts.owner, self._lost)
        self._asker = ChangeAsker(parts.metadata, lambda found: self.replicas.learn(found), self.notice)
        self._peers = Peers(
            parts.server,
            partial(read_address, parts.coordination),
            lambda server, messages: self.replicas.receive(server, messages),
            parts.credentials,
        )
        # Guarded by _lock.
        self._lock = threading.Lock()
        self._changed: set[str] = set()  # tables of which METADATA may be news
        self._has_begun_epochs = False
        self._work = Worker("ebla-tablets-here", self._work_round, self._failed, doing="carrying out requests")
        self._beat = Worker("ebla-heartbeat", self._beat_round, self._failed, doing="a heartbeat")
        self._ticks = Ticker("ebla-replicas", TICK_SECONDS, self._tick)
        try:
            former = read_former_logs(parts.logs, parts.coordination, parts.server, start, parts.new_id)
            self.replicas = ReplicasHere(
                parts.server,
                start,
                former.log_id,
                is_held=lambda: self.lease.is_held,
                now=parts.clock.monotonic_seconds,
                send=self._peers.send,
                flush=self._peers.flush,
                change=self._asker.ask,
                look=self.notice,
                found=former.found,
            )
            announce(parts.coordination, parts.server, parts.registration.address)
            self.engine = open_run(
                files=parts.files,
                log_files=parts.logs,
                coordination=parts.coordination,
                metadata=parts.metadata,
                clock=parts.clock,
                settings=parts.settings,
                server=parts.server,
                start=start,
                new_id=parts.new_id,
                fence=self.lease.check_commit,
                replicas=self.replicas,
            )
        except BaseException:
            self.lease.release()
            self._peers.close()
            self._asker.close()
            raise
        self.replicas.begin(self.engine.state.writable_log())
        self.service = LedService(self.engine, parts.coordination, parts.clock, parts.new_id, self.lease)
        self.gates = BulkGates(self.engine, parts.clock)
        leader = TabletLeader(self.engine, self.replicas, self._begun_epoch)
        self._replicated = ReplicatedTablets(self.engine, self.replicas, leader, parts.server, self._tell)
        self._here = TabletsHere(
            self.engine,
            TabletTaker(self.engine, parts.coordination, parts.logs),
            TabletGiver(self.engine, parts.clock),
            self._replicated,
            self._tell,
        )
        # Guarded by _lock.
        registration = msgspec.structs.replace(parts.registration, log_id=former.log_id)
        self._reporter = Reporter(parts.cluster, Instance(parts.server, start), registration)
        self._queue: dict[tuple[type, str], Request] = {}  # the newest of each kind for each tablet
        self._term = 0
        self._failing = Warner(_log)
        # The worker's own.
        self._old_logs = OldLogs(parts.logs, parts.coordination, parts.metadata, parts.clock, parts.server, start)
        self._watches: dict[str, Watch] = {}  # by table
        self._looked_at = parts.clock.monotonic_seconds()
        self._has_begun = False

    def begin(self) -> None:
        """Take own tablets, and begin to report and to do as masters ask."""
        self._work.start()
        self._work.wake()
        self._ticks.start()

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

    def unload(self, request: UnloadHere) -> None:
        """Give tablets up so that they are offline; `StaleRoute` if one of them is not led here (any more)."""
        table = self.engine.open_tables.find(request.table)
        known = {} if table is None else {one.id: one.epoch for one in table.view.metadata.tablets}
        ids = frozenset(at.tablet for at in request.tablets)
        if table is None or table.led is None or not ids <= table.led.ids:
            raise StaleRoute("not all of the tablets are led here: look them up again")
        if any(known.get(at.tablet) != at.epoch for at in request.tablets):
            raise StaleRoute("a tablet has changed hands meanwhile: look it up again")
        TabletGiver(self.engine, self._parts.clock).give_up(table, ids, is_unloaded=True)
        self._noticed(table.id, "")

    def _tell(self, told: Callable[[Reporter], None]) -> None:
        with self._lock:
            told(self._reporter)
            has_news = self._reporter.has_news
        if has_news:
            self._beat.wake()

    def _watch_tables(self) -> None:
        """Have changes noticed of every table that is open here."""
        there = self._replicated.tables | {table.id for table in self.engine.open_tables.all()}
        for table_id in there - self._watches.keys():
            self._watches[table_id] = self._parts.coordination.watch(
                config_path(table_id), partial(self._noticed, table_id)
            )
        for gone in [one for one in self._watches if one not in there]:
            self._watches.pop(gone).cancel()

    def _noticed(self, table_id: str, path: str) -> None:
        self.notice(table_id)

    def notice(self, table_id: str) -> None:
        """Have METADATA of a table looked at. Does not wait."""
        with self._lock:
            self._changed.add(table_id)
        self._work.wake()

    def _begun_epoch(self) -> None:
        with self._lock:
            self._has_begun_epochs = True
        self._work.wake()

    def _tick(self) -> None:
        self.replicas.tick()
        if self.replicas.begins_to_serve:
            self.replicas.begins_to_serve = False
            self._begun_epoch()
        if self.replicas.has_news:
            self._beat.wake()

    # --- rounds ---

    def _work_round(self, is_idle: bool) -> None:
        if not self._has_begun:
            self._pass_floor()
            self._here.take_own()
            self._has_begun = True
            self._beat.start()
            self._beat.wake()
        with self._lock:
            requests, self._queue = list(self._queue.values()), {}
            changed, self._changed = self._changed, set()
            has_begun, self._has_begun_epochs = self._has_begun_epochs, False
        if has_begun:
            self._replicated.serve_begun()
        if requests:
            self._here.carry_out(requests)
        now = self._parts.clock.monotonic_seconds()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._pass_floor()
            self._here.look_at_all()
        else:
            for table_id in changed:
                self._here.look_at(table_id)
        self._watch_tables()
        if self._replicated.settle_former():
            self._old_logs.sweep_if_due()

    def _pass_floor(self) -> None:
        """Give out no names of files that METADATA would refuse, as a clock that is behind would have it."""
        self.engine.pending.pass_by(FileFloor(self._parts.coordination).read())

    def _beat_round(self, is_idle: bool) -> None:
        log = self.engine.state.log
        if log is not None and log.failure is not None:
            _log.error("this run ends, for its log cannot be written: %s", log.failure)
            self._on_over(None)
            return
        while True:
            # Replicas ask for `notice` under their lock: theirs is not taken under this one.
            oldest, resigned, stuck, lags = (
                self.engine.pending.oldest_microseconds(),
                self.replicas.resigned(),
                self.replicas.stuck(),
                self.replicas.lags(),
            )
            with self._lock:
                heartbeat = self._reporter.heartbeat(oldest, resigned, stuck, lags)
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
        self._work.stop()
        self._hand_over_replicated()
        self._stop_threads()
        giver = TabletGiver(self.engine, self._parts.clock)
        for table in self.engine.open_tables.all():
            assert table.led is not None
            alone = [one.id for one in table.view.metadata.tablets if not one.is_replicated]
            try:
                giver.give_up(table, table.led.ids.intersection(alone))
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

    def _hand_over_replicated(self) -> None:
        """Have other replicas lead, and wait for that a while."""
        given = self._replicated.give_up_all()
        ends_at = self._parts.clock.monotonic_seconds() + HAND_OVER_SECONDS
        self._beat.wake()
        while given and self._parts.clock.monotonic_seconds() < ends_at:
            try:
                if self._replicated.are_led_by_others(given):
                    return
            except EblaError as error:
                _log.warning("it is not known whether others lead what was handed over: %s", error)
                return
            self._parts.clock.sleep(TICK_SECONDS)
            self._beat.wake()

    def _stop_threads(self) -> None:
        self._beat.stop()
        self._work.stop()
        self._ticks.stop()
        self._asker.close()
        self._peers.close()
        self.replicas.close()
        for watch in self._watches.values():
            watch.cancel()

    def led(self) -> dict[str, Sequence[str]]:
        """Return the tablets that are led here, by table."""
        tables = self.engine.open_tables.all()
        return {table.name: sorted(table.led.ids) for table in tables if table.led is not None}


def check_disk(files: Files, server: str) -> None:
    """Raise `StoreError` unless the logs of a server can be written: then others should lead what it led."""
    path = f"log/{server}/.probe"
    try:
        with contextlib.suppress(FileNotFoundError):
            files.delete(path)
        with files.create(path) as file:
            file.write(bytes(PROBE_BYTES))
            file.sync()
        files.delete(path)
    except OSError as error:
        raise StoreError(f"the log of this server cannot be written: {error}: free space; trying again") from error
