"""Frames on their way out, within the credits that the other end gave, and frames that come in.

    push --> [ long frames, cut one after another ]   \\
    push --> [ short frames                       ]    > take --> the wire, while the unacknowledged fit the window
    push_free --> [ acknowledgements, pings       ]   /

A frame counts until the other end has acknowledged its bytes; acknowledgements and pings are free, being few and
short. Short frames and the parts of a long one alternate, so that a large put holds up no small request.

Invariants: what is unacknowledged never exceeds the window; the parts of a frame leave in order, and no second long
frame begins before the first is out.

Not safe for use by several threads: a stream has one lock for writing.
"""

from __future__ import annotations

from collections import deque

from ebla.errors import ProtocolError
from ebla.rpc.frames import Frame, Part, decode_frame, encode_frame
from ebla.rpc.limits import Limits

__all__ = ["Inbox", "Outbox"]

# What the head of a part takes at most, so that a message of this size above `part_bytes` is still within bounds.
_HEAD_BYTES = 64


class Outbox:
    """What is to be sent on one stream, in the order in which it should leave."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free: deque[bytes] = deque()
        self._short: deque[bytes] = deque()
        self._long: deque[bytes] = deque()
        self._offset = 0  # of the first long frame: so much of it is out
        self._is_short_next = True
        self._unacknowledged_bytes = 0
        self.queued_bytes = 0

    def push(self, frame: bytes) -> None:
        """Have a frame sent when there is credit for it."""
        if len(frame) > self._limits.message_bytes_max:
            raise ProtocolError(
                f"a message of {len(frame)} bytes is too large: send at most {self._limits.message_bytes_max} at once"
            )
        (self._long if len(frame) > self._limits.part_bytes else self._short).append(frame)
        self.queued_bytes += len(frame)

    def push_free(self, frame: bytes) -> None:
        """Have a frame sent that needs no credit."""
        self._free.append(frame)

    def acknowledge(self, count: int) -> None:
        """Take note that the other end has taken so many bytes."""
        if not 0 < count <= self._unacknowledged_bytes:
            raise ProtocolError(f"{count} bytes were acknowledged, of {self._unacknowledged_bytes} that were sent")
        self._unacknowledged_bytes -= count

    def take(self) -> bytes | None:
        """Return what is to be written next; None if nothing is, or may be now."""
        if self._free:
            return self._free.popleft()
        if self._short and (self._is_short_next or not self._long):
            if not self._fits(len(self._short[0])):
                return None
            self._is_short_next = False
            frame = self._short.popleft()
            self.queued_bytes -= len(frame)
            self._unacknowledged_bytes += len(frame)
            return frame
        if not self._long or not self._fits(self._limits.part_bytes + _HEAD_BYTES):
            return None
        self._is_short_next = True
        return self._next_part()

    def _next_part(self) -> bytes:
        whole = self._long[0]
        begin, end = self._offset, self._offset + self._limits.part_bytes
        data = memoryview(whole)[begin:end]
        part = encode_frame(Part(total=len(whole), offset=begin, data=data))
        self._offset = end
        if end >= len(whole):
            self._long.popleft()
            self._offset = 0
        self.queued_bytes -= len(data)
        self._unacknowledged_bytes += len(part)
        return part

    def _fits(self, count: int) -> bool:
        return self._unacknowledged_bytes + count <= self._limits.window_bytes


class Inbox:
    """What came in on one stream: bytes that a stranger sent become frames, or `ProtocolError`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._whole = bytearray()
        self._total = 0

    def take(self, data: bytes | memoryview) -> Frame | None:
        """Return the frame that is complete with this message; None if there is more to come of it."""
        if len(data) > self._limits.part_bytes + _HEAD_BYTES:
            raise ProtocolError(f"a message of {len(data)} bytes came on a stream: longer ones are sent in parts")
        frame = decode_frame(data)
        if not isinstance(frame, Part):
            return frame
        if frame.total > self._limits.message_bytes_max:
            raise ProtocolError(
                f"a message of {frame.total} bytes is too large: send at most {self._limits.message_bytes_max} at once"
            )
        if frame.offset != len(self._whole) or (self._total and frame.total != self._total) or not frame.data:
            raise ProtocolError("the parts of a message came out of order")
        self._total = frame.total
        self._whole += frame.data
        if len(self._whole) < self._total:
            return None
        if len(self._whole) > self._total:
            raise ProtocolError("the parts of a message are longer than it is")
        whole, self._whole, self._total = self._whole, bytearray(), 0
        inner = decode_frame(memoryview(whole).toreadonly())
        if isinstance(inner, Part):
            raise ProtocolError("the parts of a message make another part")
        return inner
