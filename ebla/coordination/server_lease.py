"""Leases of servers: held by one that answers for tablets, watched by whoever may have to take them from it.

    server    take ---- renew ---- renew ---- renew --- x (stopped, cut off, dead)
    its own   |<-- TTL_SECONDS from before the last renewal -->| over: it answers nothing any more
    watcher                        version seen |<---- TTL_SECONDS + MARGIN_SECONDS ---->| taken by compare-and-set

Neither trusts the other's clock, nor the time of day. The holder stops by its own steady clock, which counts the time
that the machine was suspended, from a moment before it wrote; the watcher begins to count when it sees what was
written, by its own. The margin is for clocks that do not run equally fast. **Whoever has taken a lease from its holder
knows that the holder answers nothing under it any more**, and cannot get it back: it takes it anew, with a new number.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from ebla.clock import Clock
from ebla.coordination.lease import LeaseRecord, decode_lease, encode_lease
from ebla.coordination.service import CoordinationConflict, CoordinationService, Lease, LeaseLost
from ebla.errors import EblaError, OutcomeUnknown, StaleRoute

__all__ = ["MARGIN_SECONDS", "RENEW_SECONDS", "TTL_SECONDS", "LeaseWatch", "ServerLease", "lease_path"]

TTL_SECONDS = 3.0
RENEW_SECONDS = 1.0
MARGIN_SECONDS = 0.5

_log = logging.getLogger(__name__)


def lease_path(server: str) -> str:
    """Return where the lease of a server is."""
    return f"server-leases/{server}"


class ServerLease:
    """The lease of a server, held from the construction until it is released or lost. Once lost, lost for good."""

    def __init__(
        self,
        coordination: CoordinationService,
        server: str,
        owner: str,
        on_lost: Callable[[], None] = lambda: None,
        *,
        in_background: bool = True,
    ) -> None:
        """Take it; `LeaseHeld` while another `owner` has it. `on_lost` is called once, from another thread.

        `owner` is the same for two processes only if one of them cannot run any more when the other does.
        """
        # Set once.
        self._on_lost = on_lost
        self._lease: Lease = coordination.lease(lease_path(server), owner, TTL_SECONDS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebla-lease", daemon=True)
        if in_background:
            self._thread.start()

    @property
    def number(self) -> int:
        """The number of this holding: none before had it, and none after will."""
        return self._lease.epoch

    @property
    def is_held(self) -> bool:
        """Whether it has not run out by the steady clock, and was not taken."""
        return self._lease.is_held

    @property
    def left_seconds(self) -> float:
        """How long it is still held if it is not renewed."""
        return self._lease.left_seconds

    def check_answer(self) -> None:
        """Raise `StaleRoute` if what was read must not be told any more: others may have written since."""
        if not self._lease.is_held:
            raise StaleRoute("the lease of this server is over, and others may lead its tablets: look them up again")

    def check_commit(self) -> None:
        """Raise `OutcomeUnknown` if what is in the log must not be acknowledged: whoever takes over may not find it."""
        if not self._lease.is_held:
            raise OutcomeUnknown(
                "the lease of this server ended before the commit could be acknowledged: whoever leads the tablet now "
                "has it, or not; repeat it with the same request id, or read before repeating it"
            )

    def renew(self) -> None:
        """Hold it for longer; whatever hinders that is told by `is_held` in time."""
        try:
            self._lease.renew()
        except LeaseLost:
            pass
        except EblaError as error:
            _log.warning("the lease of the server could not be renewed, trying again: %s", error)

    def release(self) -> None:
        """Give it up, so that others need not wait for its end."""
        self.abandon()
        with suppress(EblaError):
            self._lease.release()

    def abandon(self) -> None:
        """Renew it no more; it runs out."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(RENEW_SECONDS):
            self.renew()
            if not self._lease.is_held:
                _log.error("the lease of this server is over: it leads nothing any more")
                self._on_lost()
                return


class LeaseWatch:
    """Watches leases of others, and takes those whose holders are silent. For one thread at a time."""

    def __init__(self, coordination: CoordinationService, clock: Clock) -> None:
        # Set once.
        self._coordination = coordination
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # by server: the version, and when it was seen first

    def is_over(self, server: str) -> bool:
        """Look at the lease of a server; take it if it was not renewed for long enough. True if nobody holds it.

        It is asked again and again: the first look at a lease that is held never finds it over.
        """
        path = lease_path(server)
        node = self._coordination.read(path)
        if node is None:
            self._seen.pop(server, None)
            return True
        record = decode_lease(path, node.value)
        if not record.owner:
            self._seen.pop(server, None)
            return True
        now = self._clock.monotonic_seconds()
        version, since = self._seen.get(server, (-1, now))
        if version != node.version:
            self._seen[server] = (node.version, now)
            return False
        if now - since < TTL_SECONDS + MARGIN_SECONDS:
            return False
        with suppress(CoordinationConflict, OutcomeUnknown):  # the next look tells
            self._coordination.compare_and_set(path, encode_lease(LeaseRecord("", record.epoch, 0)), node.version)
            self._seen.pop(server, None)
            _log.info("took the lease of server %s, which was silent for %.1f s", server, now - since)
            return True
        return False
