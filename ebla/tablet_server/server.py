"""A tablet server: its data directory, its address, and one run after the other.

    start     lock, uuid, cluster checked --> address --> run 7 --> lease over --> run 8 --> ... --> stop: clean end

Whoever calls meets the run that is on; between two runs every request is a stale route, and nothing of it was done. The
threads of a run never end the run themselves: the server's own loop does.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ebla.access.credentials import NOTHING, Credentials
from ebla.access.guard import Guard
from ebla.access.tls import Tls
from ebla.clock import Clock
from ebla.coordination.service import CoordinationService, LeaseHeld
from ebla.errors import EblaError, RequestError, StaleRoute, Unavailable
from ebla.master.calls import REQUEST_METHODS, CloseGate, OpenGate, SendRequests, UnloadHere
from ebla.master.messages import Heartbeat, HeartbeatReply, Refusal, Registration
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.replication.messages import BetweenServers
from ebla.rpc.caller import Caller
from ebla.rpc.deferred import Deferred
from ebla.rpc.server import RpcServer
from ebla.rpc.server_stream import Handler
from ebla.rpc.serving.service_handlers import ServiceHandlers
from ebla.rpc.wire.messages import SERVICE_METHODS
from ebla.service.metrics import metrics_text
from ebla.service.prometheus import family
from ebla.service.requests import DescribeTables, ReadCounters
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.tablet_server.data_directory import DataDirectory
from ebla.tablet_server.replicas.calls import REPLICA_METHODS, Deliver
from ebla.tablet_server.replicas.here import ReplicasHere
from ebla.tablet_server.server_run import ServerParts, ServerRun

__all__ = ["SERVER_METHODS", "TabletServer", "server_settings"]

SERVER_METHODS = SERVICE_METHODS | REQUEST_METHODS | REPLICA_METHODS

# Between attempts to begin a run, as while the coordination service is away.
PAUSE_SECONDS = 1.0
# Rounds of garbage collection are the masters' business: a server knows of its own files only.
NEVER_SECONDS = 1e12

_log = logging.getLogger(__name__)


class TabletServer:
    """A tablet server in this process. Made, it has an address; `serve` runs it until `stop` is called."""

    def __init__(
        self,
        *,
        files: Files,
        coordination: CoordinationService,
        metadata: Callable[[str], MetadataAccess],
        send: Callable[[Heartbeat], HeartbeatReply],
        clock: Clock,
        settings: Settings,
        cluster: str,
        directory: Path,
        new_id: Callable[[], str],
        host: str = "127.0.0.1",
        port: int = 0,
        guard: Guard | None = None,
        tls: Tls | None = None,
        peer_port: int = 0,
        credentials: Credentials = NOTHING,
        log_files: Files | None = None,
    ) -> None:
        """`metadata` opens METADATA for a server; `send` carries a heartbeat to the master that leads.

        Its logs are among `log_files`, on a disk of its own, or else among `files`, which all servers see.
        """
        # Replaced as a whole by the loop; read by handlers.
        self.run: ServerRun | None = None
        self._replicas: ReplicasHere | None = None
        self._answers: Mapping[type, Handler] = {}
        # Set once.
        self._directory = DataDirectory(directory, cluster, (tls.uuid if tls is not None else None) or new_id())
        try:
            self.uuid = self._directory.server
            if tls is not None:
                tls.check_is_of(self.uuid, directory)
            self._rpc = RpcServer(
                SERVER_METHODS,
                self._handlers(),
                host=host,
                port=port,
                name=self.uuid,
                guard=guard,
                tls=tls,
                peer_port=peer_port,
            )
        except BaseException:
            self._directory.release()
            raise
        self.address = self._rpc.address
        self._parts = ServerParts(
            files,
            coordination,
            metadata(self.uuid),
            clock,
            server_settings(settings, directory),
            cluster,
            self.uuid,
            self._directory.owner,
            Registration(socket.gethostname(), self.address),
            new_id,
            send,
            credentials,
            log_files,
        )
        # The number of a run that is over, and what a master refused; no number if the server is to stop.
        self._events: queue.SimpleQueue[tuple[int | None, Refusal | None]] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def serve(self) -> None:
        """Run until `stop` is called; `RequestError` if a master refuses this server for good."""
        try:
            while not self._stopping.is_set():
                run = self._begin()
                if run is None:
                    continue
                over, refusal = self._events.get()
                while over is not None and over != run.start:
                    over, refusal = self._events.get()  # of a former run, or of one that did not begin
                self._answers = {}
                if over is None:
                    break
                _log.warning("run %d is over", run.start)
                self.run = self._replicas = None
                run.end()
                if refusal is not None:
                    raise RequestError(f"a master refuses this server: {refusal.message}")
        finally:
            self._end()

    def stop(self) -> None:
        """Have `serve` end cleanly. Called from any thread, or from a signal's handler."""
        self._stopping.set()
        self._events.put((None, None))

    def _begin(self) -> ServerRun | None:
        """Begin the next run; None if that cannot be now."""
        try:
            start = self._directory.next_start()
            # The lease may be over while the run is being made: who tells it must not wait for that, for whoever fails
            # to make it waits for the thread of the lease.
            run = ServerRun(self._parts, start, lambda refusal: self._events.put((start, refusal)))
        except LeaseHeld as error:
            _log.warning(
                "another server with the uuid %s holds the lease, or did until a moment ago: %s", self.uuid, error
            )
        except EblaError as error:
            _log.warning("a run cannot begin, trying again: %s", error)
        else:
            self.run = run
            self._replicas = run.replicas
            self._answers = ServiceHandlers(run.service, observe=run.engine.txn_clock.observe).by_type()
            run.begin()
            _log.info("server %s begins run %d at %s", self.uuid, start, self.address)
            return run
        self._stopping.wait(PAUSE_SECONDS)
        return None

    def _end(self) -> None:
        run, self.run, self._answers = self.run, None, {}
        try:
            if run is not None:
                if run.lease.is_held:
                    run.close()
                else:
                    run.end()
        finally:
            self._replicas = None
            self._rpc.close()
            self._directory.release()

    # --- calls ---

    def _handlers(self) -> dict[type, Handler]:
        handlers: dict[type, Handler] = {method.request: self._delegate(method.request) for method in SERVICE_METHODS}
        handlers[SendRequests] = self._take_requests
        handlers[CloseGate] = self._close_gate
        handlers[OpenGate] = self._open_gate
        handlers[Deliver] = self._deliver
        handlers[UnloadHere] = self._unload
        return handlers

    def _delegate(self, kind: type) -> Handler:
        def answer(request: Any, caller: Caller) -> Any:
            handler = self._answers.get(kind)
            if handler is None:
                raise StaleRoute("this server leads nothing at the moment: look the tablets up again")
            return handler(request, caller)

        return answer

    def _take_requests(self, request: SendRequests, caller: Caller) -> None:
        run = self.run
        if run is not None:
            run.take_requests(request.requests)

    def _close_gate(self, request: CloseGate, caller: Caller) -> int:
        run = self.run
        if run is None:
            raise StaleRoute("this server leads nothing at the moment: look the tablets up again")
        run.lease.check_answer()
        return run.gates.close(request, caller.left_seconds)

    def _open_gate(self, request: OpenGate, caller: Caller) -> None:
        run = self.run
        if run is not None:
            run.gates.tell(request.attempt, caller.left_seconds)

    def _deliver(self, request: Deliver, caller: Caller) -> tuple[BetweenServers, ...] | Deferred:
        replicas = self._replicas
        if replicas is None:
            raise Unavailable("this server is between two runs: send it again")
        return replicas.deliver(request.sender, request.messages)

    def _unload(self, request: UnloadHere, caller: Caller) -> None:
        run = self.run
        if run is None:
            raise StaleRoute("this server leads nothing at the moment: look the tablets up again")
        run.lease.check_answer()
        run.unload(request)

    def metric_lines(self) -> Iterator[str]:
        """Yield what Prometheus is told of this server: its store, its lease, and the calls to it."""
        from ebla import __version__

        run = self.run
        if run is not None:
            tables = run.service.carry_out(DescribeTables())
            counters = run.service.carry_out(ReadCounters())
            labels = {"role": "tablet-server", "uuid": self.uuid, "version": __version__}
            yield from metrics_text(counters, tables, labels).splitlines()
            left_seconds = round(run.lease.left_seconds, 3)
            meaning = "How long the lease is held if it is not renewed."
            yield from family("lease_left_seconds", meaning, [({}, left_seconds)])
            led = run.led()
            yield from family("tablets_led", "Tablets that are led here.", [({}, sum(map(len, led.values())))])
        yield from family("serving", "1 if a run is on: a lease is held.", [({}, int(run is not None))])
        yield from self._rpc.metric_lines()

    def led(self) -> Mapping[str, Sequence[str]]:
        """Return the tablets that are led here now, by table."""
        run = self.run
        return {} if run is None else run.led()


def server_settings(settings: Settings, directory: Path) -> Settings:
    """Return the settings of a server with a data directory of its own, where lookup files are, unless it is told.

    In the root, servers would remove those of each other.
    """
    lookup_directory = settings.lookup_directory or str(directory)
    return replace(settings, garbage_round_seconds=NEVER_SECONDS, lookup_directory=lookup_directory)
