"""The bounds that both ends of a stream keep to: nothing on the wire, and nothing that waits, is without one."""

from __future__ import annotations

from dataclasses import dataclass

from ebla.settings import MIB

__all__ = ["DEFAULT", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be under way, how large it may be, and how long silence is borne.

    `window_bytes` and `part_bytes` are part of the protocol: both ends have the same. A write to a stopped process
    blocks for ever once the network's own buffers are full, so a window stays well below those.
    """

    window_bytes: int = MIB  # of frames that the other end has not acknowledged
    part_bytes: int = MIB // 4  # a longer frame is cut into parts of this size, so that short ones pass it
    message_bytes_max: int = 256 * MIB
    unfinished_bytes_max: int = 256 * MIB  # of one stream: requests being carried out, and answers not yet taken
    calls_max: int = 256  # of one stream: calls that are not answered yet
    streams_max: int = 1_024  # of one server
    ping_seconds: float = 1.0  # a client that heard nothing for so long asks whether anybody is there
    silence_seconds: float = 5.0  # after which a stream is given up


DEFAULT = Limits()
