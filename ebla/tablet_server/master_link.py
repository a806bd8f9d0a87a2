"""The way to the master that leads: heartbeats go to whoever answered last, and else to one master after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ebla.access.credentials import NOTHING, Credentials
from ebla.errors import EblaError, Unavailable
from ebla.master.calls import HEARTBEAT_METHODS, SendHeartbeat
from ebla.master.messages import Heartbeat, HeartbeatReply
from ebla.rpc.channel import Channel

__all__ = ["MasterLink"]

CALL_SECONDS = 5.0


class MasterLink:
    """Sends the heartbeats of a server. Safe to use from several threads."""

    def __init__(self, server: str, masters: Callable[[], Sequence[str]], credentials: Credentials = NOTHING) -> None:
        """`masters` tells the addresses of the masters, any of which may be away."""
        # Set once.
        self._server = server
        self._masters = masters
        self._credentials = credentials
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._channels: dict[str, Channel] = {}
        self._leading = ""

    def send(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Return the answer of the master that leads; `Unavailable` if none does, or can be reached."""
        reasons = []
        for address in sorted(self._masters(), key=lambda one: one != self._leading):
            try:
                reply = self._channel(address).call(SendHeartbeat(heartbeat), timeout_seconds=CALL_SECONDS)
            except EblaError as error:
                reasons.append(str(error))
                continue
            self._leading = address
            return reply
        raise Unavailable(f"no master took the heartbeat: {'; '.join(reasons) or 'none is known'}")

    def close(self) -> None:
        """Let go of all connections."""
        with self._lock:
            channels, self._channels = [*self._channels.values()], {}
        for channel in channels:
            channel.close()

    def _channel(self, address: str) -> Channel:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = Channel(
                    HEARTBEAT_METHODS, address, client=self._server, credentials=self._credentials
                )
            return channel
