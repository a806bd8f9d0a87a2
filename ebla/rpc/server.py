"""The server: Flight outside, handlers by type of request inside.

    RpcServer(methods, {Heartbeat: on_heartbeat, ...}, host=..., port=0) --> .address

One Flight exchange is one client's stream. `close` refuses new calls, lets those under way finish, says goodbye on
every stream and leaves; a client that does not answer the goodbye, being stopped or cut off, is not waited for.
"""

from __future__ import annotations

import atexit
import ctypes
import ipaddress
import logging
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from ebla.access.guard import Guard
from ebla.access.tls import Tls
from ebla.errors import EblaError, IncompatibleVersion, ProtocolError, RequestError, Unavailable
from ebla.rpc import frames
from ebla.rpc.call_counts import CallCounts
from ebla.rpc.frames import Hello, decode_hello
from ebla.rpc.limits import DEFAULT, Limits
from ebla.rpc.methods import Methods
from ebla.rpc.server_stream import Handler, ServerStream
from ebla.rpc.stream import BROKEN

__all__ = ["RpcServer"]

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.005
_CLIENT_CHARS_MAX = 100


class RpcServer:
    """Answers calls at an address. Made, it serves.

    `name` is who it says it is, in its welcome: a server's uuid. `threads_max` bounds how many requests that are not
    quick are carried out at once; more wait, within their deadlines. `guard` looks at every call; without one,
    everybody may ask for everything.

    With `tls` there are two ports: one for clients, who have no certificates, and one for processes of the cluster, who
    must (Flight asks everybody of a port for one, or nobody). The first tells of the second in its welcome. Without,
    a server cannot be reached from other machines.
    """

    def __init__(
        self,
        methods: Methods,
        handlers: Mapping[type, Handler],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        name: str = "",
        limits: Limits = DEFAULT,
        threads_max: int = 64,
        version: int = frames.PROTOCOL_VERSION,
        guard: Guard | None = None,
        tls: Tls | None = None,
        peer_port: int = 0,
    ) -> None:
        _check_host(host, is_encrypted=tls is not None)
        # Set once.
        self._methods = methods
        self._handlers = dict(handlers)
        self._name = name
        self._limits = limits
        self._version = version
        self._guard = guard
        self.counts = CallCounts()
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="ebla-rpc")
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._streams: set[ServerStream] = set()
        self._is_closed = False
        self._is_leaving = False
        known = {method.request for method in methods}
        unknown = [kind.__name__ for kind in self._handlers if kind not in known]
        if unknown:
            raise ProtocolError(f"handlers for {', '.join(unknown)}, which are not among the methods of this server")
        self._flights: list[_Flight] = []
        try:
            for number in (port,) if tls is None else (port, peer_port):
                self._flights.append(_listening(self, host, number, tls, is_for_peers=bool(self._flights)))
        except Unavailable:
            self._pool.shutdown(wait=False)
            for one in self._flights:
                one.shutdown()
            raise
        self.address = f"{host}:{self._flights[0].port}"
        self.peer_port: int = self._flights[1].port if tls is not None else 0
        self._watch = threading.Thread(target=self._drop_silent, name="ebla-rpc-watch", daemon=True)
        self._closing = threading.Event()
        self._watch.start()
        # A process that ends says goodbye, whether or not it has closed its server: else Flight would wait for clients.
        own = weakref.ref(self)
        self._at_exit = lambda: _close_at_exit(own)
        atexit.register(self._at_exit)

    def __enter__(self) -> RpcServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def streams_open(self) -> int:
        """How many clients are connected."""
        return len(self._streams)

    def metric_lines(self) -> Iterator[str]:
        """Yield what Prometheus is told of calls."""
        return self.counts.lines(self.streams_open)

    def close(self, grace_seconds: float = 5.0) -> None:
        """Finish what is under way, say goodbye and leave, after `grace_seconds` at most. Closing twice is fine."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = self._is_leaving = True
            streams = list(self._streams)
        atexit.unregister(self._at_exit)
        deadline_seconds = time.monotonic() + grace_seconds
        for stream in streams:
            stream.say_goodbye()
        while any(not stream.is_idle for stream in streams) and time.monotonic() < deadline_seconds:
            time.sleep(_POLL_SECONDS)
        while self._streams and time.monotonic() < deadline_seconds:
            time.sleep(_POLL_SECONDS)
        self._closing.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        # Flight waits for every exchange, also one whose client was stopped: so it is not waited for.
        for one in self._flights:
            leaving = threading.Thread(target=one.shutdown, name="ebla-rpc-leaving", daemon=True)
            leaving.start()
            leaving.join(max(0.1, deadline_seconds - time.monotonic()))
            if leaving.is_alive():
                _leave_behind(one)

    def exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
        *,
        is_peer: bool,
    ) -> None:
        """Serve one client until it leaves. Never raises: what goes wrong is told as a frame."""
        session = None if self._guard is None else self._guard.session(_text(context.peer_identity()), context.peer())
        stream = ServerStream(
            writer,
            self._methods,
            self._handlers,
            self._pool,
            self._limits,
            context.peer(),
            session,
            self.counts,
        )
        try:
            self._admit(stream, descriptor, is_peer=is_peer)
            self._serve(stream, reader)
        except StopIteration:
            pass
        except EblaError as error:
            _log.warning("a stream of %s was ended: %s", context.peer(), error)
            stream.fail(error)
        except BROKEN as error:
            _log.debug("a client went away: %s", error)
        except Exception as error:
            stream.fail(error)
        finally:
            stream.end()
            with self._lock:
                self._streams.discard(stream)

    def _admit(self, stream: ServerStream, descriptor: flight.FlightDescriptor, *, is_peer: bool) -> None:
        hello = decode_hello(descriptor.command or b"")
        self._check_version(hello)
        stream.client = hello.client[:_CLIENT_CHARS_MAX]
        with self._lock:
            if self._is_leaving:
                raise Unavailable("the server is shutting down: ask another one")
            if len(self._streams) >= self._limits.streams_max:
                raise Unavailable(f"{self._limits.streams_max} clients are connected already: retry later")
            self._streams.add(stream)
        stream.welcome(self._version, self._name, 0 if is_peer else self.peer_port)

    def _check_version(self, hello: Hello) -> None:
        if not hello.oldest <= self._version <= hello.newest:
            raise IncompatibleVersion(
                f"this server speaks version {self._version} of the protocol, and the client ({hello.software[:80]}) "
                f"versions {hello.oldest} to {hello.newest}: use releases of Ebla that have one in common"
            )

    def _serve(self, stream: ServerStream, reader: flight.MetadataRecordBatchReader) -> None:
        while not stream.is_dropped:
            stream.take(reader.read_chunk().app_metadata)

    def _drop_silent(self) -> None:
        """Give up clients that are not heard of: their answers are not kept. A live one would have pinged.

        They do not count any more. If the machine of one is gone, the goodbye is what TCP finds that out by.
        """
        while not self._closing.wait(self._limits.ping_seconds):
            for stream in list(self._streams):
                if stream.silent_seconds > self._limits.silence_seconds + self._limits.ping_seconds:
                    stream.say_goodbye()
                    stream.is_dropped = True
                    with self._lock:
                        self._streams.discard(stream)


def _text(identity: str | bytes) -> str:
    return identity.decode(errors="replace") if isinstance(identity, bytes) else identity


def _check_host(host: str, *, is_encrypted: bool) -> None:
    """Refuse to be reached from other machines unless what is said is encrypted."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        is_own, is_any = address.is_loopback, address.is_unspecified
    except ValueError:
        is_own, is_any = host == "localhost", not host
    if is_any:
        raise RequestError(
            f"listen on one address, by which others reach this process, and not on all ({host!r}): choose it with "
            "--host"
        )
    if not is_own and not is_encrypted:
        raise RequestError(
            f"{host} may be reached from other machines, and nothing would be encrypted: give --tls-cert, --tls-key "
            "and --tls-ca (`ebla certs` makes them), or listen on 127.0.0.1 (--host)"
        )


def _listening(owner: RpcServer, host: str, port: int, tls: Tls | None, *, is_for_peers: bool) -> _Flight:
    options: dict[str, Any] = {}
    if tls is not None:
        options["tls_certificates"] = [(tls.certificate, tls.key)]
        if is_for_peers:
            options |= {"verify_client": True, "root_certificates": tls.ca}
    scheme = "grpc" if tls is None else "grpc+tls"
    try:
        return _Flight(owner, f"{scheme}://{host}:{port}", is_for_peers, options)
    except BROKEN as error:
        raise Unavailable(f"{host}:{port} cannot be listened on: {error}; choose another port") from None


def _close_at_exit(own: weakref.ref[RpcServer]) -> None:
    server = own()
    if server is not None:
        server.close(grace_seconds=1.0)


def _leave_behind(server: _Flight) -> None:
    """Let nobody wait for a server that cannot be shut down, also not Python as it ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    for at_exit in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if (found := at_exit.peek()) is not None and found[0] is server:
            at_exit.atexit = False


class _Flight(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's side of the server: everything but exchanges is refused."""

    def __init__(self, owner: RpcServer, location: str, is_for_peers: bool, options: Mapping[str, Any]) -> None:
        self._owner = owner
        self._is_for_peers = is_for_peers
        super().__init__(location, **options)

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        self._owner.exchange(context, descriptor, reader, writer, is_peer=self._is_for_peers)

    def _refuse(self, *_: object) -> None:
        # An error of Flight's own: of any other, Flight would send the traceback.
        raise flight.FlightServerError("Ebla answers nothing but its own protocol, in an exchange")

    def get_schema(self, *_: object) -> flight.SchemaResult:
        # The one verb of which Flight sends the traceback of every error, also its own: so it tells nothing instead.
        return flight.SchemaResult(pa.schema([]))

    list_flights = get_flight_info = do_get = do_put = do_action = list_actions = _refuse
