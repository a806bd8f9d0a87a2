"""The port at which a process tells its metrics to Prometheus: ``GET /metrics``, and nothing else.

It tells names and sizes of tables, no rows, to everybody who can connect: so it is on loopback unless it is told
otherwise. Whoever connects and says nothing is hung up on after a while.

DIR/metrics.address     where it is, in the directory of the process, for scripts
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from ebla.errors import EblaError, Unavailable

__all__ = ["ADDRESS_FILE", "MetricsPort", "told_to_prometheus"]

ADDRESS_FILE = "metrics.address"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SILENCE_SECONDS = 10.0

_log = logging.getLogger(__name__)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "ebla"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_SECONDS

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._say(404, "text/plain; charset=utf-8", b"here is /metrics alone\n", with_body)
            return
        try:
            text = self.server.told()
        except EblaError as error:
            self._say(503, "text/plain; charset=utf-8", f"{error}\n".encode(), with_body)
        except Exception:
            _log.exception("the metrics could not be told")
            self._say(500, "text/plain; charset=utf-8", b"see the log of the process\n", with_body)
        else:
            self._say(200, CONTENT_TYPE, text.encode(), with_body)

    def _say(self, status: int, kind: str, body: bytes, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        _log.debug(format, *arguments)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], told: Callable[[], str]) -> None:
        self.told = told
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Without asking a name server for our own name, as HTTPServer does.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a client of the metrics went away", exc_info=True)


class MetricsPort:
    """Answers with what `told` returns, from the construction on until `close`."""

    def __init__(self, host: str, port: int, told: Callable[[], str], directory: Path | None = None) -> None:
        """Listen; `Unavailable` if that cannot be. The address is kept in a file of `directory`."""
        try:
            self._server = _Server((host, port), told)
        except OSError as error:
            raise Unavailable(
                f"{host}:{port} cannot be listened on for metrics: {error.strerror or error}; choose another port by "
                "--metrics-port"
            ) from None
        self.address = f"{host}:{self._server.server_port}"
        self._file = None if directory is None else directory / ADDRESS_FILE
        if self._file is not None:
            self._file.write_text(f"{self.address}\n")
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="ebla-metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # Not serve_forever, which looks every so often whether it is to end: an idle process is to be idle.
        while not self._is_closed:
            self._server.handle_request()

    def close(self) -> None:
        """Answer no more."""
        self._is_closed = True
        with contextlib.suppress(OSError):  # wakes the thread, which waits for the next who connects
            socket.create_connection((self._server.server_name, self._server.server_port), 1.0).close()
        self._thread.join(1.0)
        self._server.server_close()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


@contextlib.contextmanager
def told_to_prometheus(place: tuple[str, int] | None, told: Callable[[], str], directory: Path) -> Iterator[str]:
    """Tell metrics at a host and port, if one is given, and say at which address."""
    if place is None:
        yield ""
        return
    port = MetricsPort(*place, told, directory)
    try:
        yield port.address
    finally:
        port.close()
