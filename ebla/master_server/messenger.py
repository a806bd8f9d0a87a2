"""What a leading master sends to tablet servers: in the background, to each of them one call at a time."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from ebla.access.credentials import NOTHING, Credentials
from ebla.errors import EblaError
from ebla.master.calls import REQUEST_METHODS, SendRequests
from ebla.master.messages import Requests
from ebla.rpc.channel import Channel

__all__ = ["Messenger"]

THREADS_MAX = 16
CALL_SECONDS = 3.0

_log = logging.getLogger(__name__)


class Messenger:
    """Channels to tablet servers by address. What is lost, the master sends again. Safe for several threads."""

    def __init__(self, own: str, credentials: Credentials = NOTHING) -> None:
        # Set once.
        self._credentials = credentials
        self._own = own
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="ebla-messenger")
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._channels: dict[str, Channel] = {}
        self._busy: set[str] = set()

    def send(self, address: str, requests: Requests) -> None:
        """Send requests to a server; dropped if the last ones are still on their way."""
        with self._lock:
            if address in self._busy:
                return
            self._busy.add(address)
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = Channel(
                    REQUEST_METHODS, address, client=self._own, credentials=self._credentials
                )
        self._pool.submit(self._call, channel, requests)

    def _call(self, channel: Channel, requests: Requests) -> None:
        try:
            channel.call(SendRequests(requests), timeout_seconds=CALL_SECONDS)
        except EblaError as error:
            _log.debug("server %s was not asked: %s", requests.server, error)
        except Exception:
            _log.exception("server %s could not be asked", requests.server)
        finally:
            with self._lock:
                self._busy.discard(channel.address)

    def close(self) -> None:
        """Send nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            channels, self._channels = [*self._channels.values()], {}
        for channel in channels:
            channel.close()
