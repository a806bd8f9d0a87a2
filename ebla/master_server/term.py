"""One term of a leading master: its mind (`ebla.master`), the durable side, and the loop that drives both.

    clients, servers --operations--.
                                   +--> one at a time between two writes --> METADATA, configurations
    loop: leases, news, rounds ----'                                   `--> Requests to servers

A write is carried out without the lock, so that others go on meanwhile. The lease is looked at before every write:
a term whose lease is over writes nothing more, and whatever is under way ends with `MasterStopped`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from ebla.clock import Clock
from ebla.coordination.server_lease import LeaseWatch
from ebla.coordination.service import CoordinationService, Lease
from ebla.errors import EblaError
from ebla.master.master import Master, MasterStopped
from ebla.master.messages import Requests
from ebla.master.writes import Durable, Operation
from ebla.metadata.values.table_config import TABLES

__all__ = ["Term"]

Result = TypeVar("Result")

LOOP_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Term:
    """From the taking of the lease to its loss. Safe to use from several threads."""

    def __init__(
        self,
        master: Master,
        durable: Durable,
        lease: Lease,
        coordination: CoordinationService,
        clock: Clock,
        send: Callable[[str, Requests], None],
        on_stopped: Callable[[], None],
    ) -> None:
        """`send` takes the address of a server and what is asked of it; it does not wait."""
        # Set once.
        self.master = master
        self._durable = durable
        self._lease = lease
        self._leases = LeaseWatch(coordination, clock)
        self._send = send
        self._on_stopped = on_stopped
        self._lock = threading.RLock()  # held between two writes; whoever reads the catalog needs none
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._changed_lock = threading.Lock()
        self._is_changed = False  # somebody has changed tables; guarded by _changed_lock
        self._progress = threading.Condition()
        self._watch = coordination.watch(TABLES, self._noticed)
        self._thread = threading.Thread(target=self._loop, name="ebla-term", daemon=True)

    def start(self) -> None:
        """Begin to look after the tablets."""
        self._thread.start()

    def stop(self, reason: str) -> None:
        """End the term. What is under way fails at its next step."""
        self.master.stop(reason)
        self._stopping.set()
        self._news.set()
        self._watch.cancel()
        with self._progress:
            self._progress.notify_all()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join()

    @property
    def is_over(self) -> bool:
        """Whether it decides nothing any more."""
        return self.master.stopped is not None or not self._lease.is_held

    def run(self, operation: Operation[Result]) -> Result:
        """Carry out an operation to its end."""
        try:
            with self._lock:
                write = next(operation)
            while True:
                if not self._lease.is_held:
                    self.master.stop("its lease is over")
                try:
                    if self.master.stopped is not None:
                        raise MasterStopped(f"this master has stopped ({self.master.stopped}): ask the one that leads")
                    answer = self._durable.write(write)
                except EblaError as error:
                    with self._lock:
                        write = operation.throw(error)
                else:
                    with self._lock:
                        write = operation.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            self._news.set()
            with self._progress:
                self._progress.notify_all()
            if self.master.stopped is not None and not self._stopping.is_set():
                self._on_stopped()

    def wait_for(self, is_so: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until something is so that operations bring about; False if it is not in time, or the term is over."""
        with self._progress:
            return self._progress.wait_for(lambda: self.is_over or is_so(), timeout_seconds) and is_so()

    # --- the loop ---

    def _noticed(self, path: str) -> None:
        """Take note that some table was changed, by whomever: the watch does not tell which."""
        with self._changed_lock:
            self._is_changed = True
        self._news.set()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._news.clear()
            try:
                self._look_after()
            except MasterStopped:
                return
            except EblaError as error:
                _log.warning("a round of the master came to nothing, and is tried again: %s", error)
            except Exception:
                _log.exception("a round of the master failed, and is tried again")
            # News may be many: they are taken together, a few times a second.
            if not self._stopping.wait(LOOP_SECONDS / 10):
                self._news.wait(LOOP_SECONDS)

    def _look_after(self) -> None:
        self._look_at_leases()
        with self._changed_lock:
            is_changed, self._is_changed = self._is_changed, False
        if is_changed:
            try:
                self.run(self.master.refresh_changed())
            except EblaError:
                with self._changed_lock:
                    self._is_changed = True
                raise
        self.run(self.master.round())
        with self._lock:
            requests = self.master.requests()
        for one in requests:
            server = self.master.servers.get(one.server)
            if server is not None:
                self._send(server.registration.address, one)
        self._news.clear()

    def _look_at_leases(self) -> None:
        """Take the leases of servers that are silent, and note what they led."""
        with self._lock:
            watched = self.master.watched_leases()
        for uuid in watched:
            note = self.master.lease_over if self._leases.is_over(uuid) else self.master.lease_held
            with self._lock:
                note(uuid)
