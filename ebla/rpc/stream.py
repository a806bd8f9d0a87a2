"""One end of a stream: frames out under a lock and within credits, frames in with their acknowledgements.

The same for client and server. Writing never blocks for long: what is unacknowledged stays within the window, and a
window is less than what the network buffers (see `outbox`). Reading may block for ever, and is done by one thread.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

import pyarrow as pa
import pyarrow.flight as flight

from ebla.errors import ProtocolError
from ebla.rpc.frames import Acked, Cancel, Credential, Frame, Goodbye, Ping, Pong, Welcome, encode_frame
from ebla.rpc.limits import Limits
from ebla.rpc.outbox import Inbox, Outbox

__all__ = ["BROKEN", "MessageWriter", "Stream"]

# What Flight raises when the other end is gone.
BROKEN = (flight.FlightError, pa.ArrowException, OSError)

_PONG = encode_frame(Pong())


class MessageWriter(Protocol):
    """What both ends of a Flight exchange can write."""

    def write_metadata(self, buffer: pa.Buffer) -> None:
        """Send one message."""

    def done_writing(self) -> None:
        """Say that no more will come; clients alone can."""


class Stream:
    """Frames over one Flight exchange."""

    def __init__(self, writer: MessageWriter, limits: Limits) -> None:
        # Set once.
        self._writer = writer
        self._acknowledge_bytes = limits.window_bytes // 4
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._outbox = Outbox(limits)
        self._taken_bytes = 0  # not acknowledged yet
        self._is_holding = False
        self._is_ended = False
        # Used by the reading thread alone.
        self._inbox = Inbox(limits)
        # Written by the reading thread, read by anybody.
        self.heard_at_seconds = time.monotonic()

    @property
    def queued_bytes(self) -> int:
        """How much waits for credit."""
        return self._outbox.queued_bytes

    def send(self, frame: Frame) -> None:
        """Send a frame, now or as soon as there is credit for it. Raises what Flight raises if the stream is broken."""
        self.send_bytes(encode_frame(frame))

    def send_bytes(self, data: bytes) -> None:
        """Send a frame that is encoded already, as `send` does."""
        with self._lock:
            self._outbox.push(data)
            self._write_all()

    def send_free(self, frame: Welcome | Cancel | Ping | Goodbye | Credential) -> None:
        """Send a short frame that needs no credit."""
        self._send_free(encode_frame(frame))

    def receive(self, message: pa.Buffer | None) -> Frame | None:
        """Take one message; return the frame that is complete with it, unless the stream itself has dealt with it."""
        self.heard_at_seconds = time.monotonic()
        if message is None:
            raise ProtocolError("a message without a frame came on a stream")
        frame = self._inbox.take(memoryview(message))
        match frame:
            case Acked(count):
                with self._lock:
                    self._outbox.acknowledge(count)
                    self._write_all()
                return None
            case Ping():
                self._send_free(_PONG)
                return None
            case Pong():
                return None
            case Cancel() | Goodbye() | Welcome() | Credential():
                return frame
        with self._lock:
            self._taken_bytes += message.size
            self._acknowledge()
        return frame

    def end(self) -> None:
        """Write nothing more: after an exchange, what Flight gave for writing is gone, and must not be touched."""
        with self._lock:
            self._is_ended = True

    def leave(self) -> None:
        """Write nothing more, and tell the other end so. What is still to come can be read."""
        with self._lock:
            if not self._is_ended:
                self._is_ended = True
                self._writer.done_writing()

    def hold(self, is_holding: bool) -> None:
        """Acknowledge nothing for a while, so that no more comes than the window has room for; or go on."""
        if self._is_holding == is_holding:
            return
        with self._lock:
            self._is_holding = is_holding
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._taken_bytes >= self._acknowledge_bytes and not self._is_holding:
            self._outbox.push_free(encode_frame(Acked(self._taken_bytes)))
            self._taken_bytes = 0
            self._write_all()

    def _send_free(self, data: bytes) -> None:
        with self._lock:
            self._outbox.push_free(data)
            self._write_all()

    def _write_all(self) -> None:
        if self._is_ended:
            raise ConnectionError("the stream has ended")
        while (data := self._outbox.take()) is not None:
            self._writer.write_metadata(pa.py_buffer(data))
