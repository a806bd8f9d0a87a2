"""A wire that a test can cut, hold up or swallow: stands between a client and a server on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to `port`. Each direction can be held (`requests`, `replies`) or everything cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.requests = Gate()
        self.replies = Gate()
        self.refusing = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections. What was held up in them is lost."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        self.requests.generation += 1
        self.replies.generation += 1

    def close(self) -> None:
        self.refusing = True
        self._server.close()
        self.cut()
        self.requests.open()
        self.replies.open()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if self.refusing:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._pairs.append((client, server))
                for source, sink, gate in ((client, server, self.requests), (server, client, self.replies)):
                    threading.Thread(target=_forward, args=(source, sink, gate), daemon=True).start()


class Gate:
    """Open at first. While it is closed nothing passes; `held` is set once something waits."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.held = threading.Event()
        self.generation = 0

    def close(self) -> None:
        self.held.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def passes(self) -> bool:
        """Wait until the gate is open; False if the connection was cut meanwhile."""
        generation = self.generation
        if not self._open.is_set():
            self.held.set()
            self._open.wait()
        return generation == self.generation


def _forward(source: socket.socket, sink: socket.socket, gate: Gate) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if not gate.passes():
                return
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
