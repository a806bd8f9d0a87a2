"""The store that this process has open: the local service, with what it owns besides the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ebla.client.embedded.ownership import Ownership
from ebla.client.embedded.publishing import Publisher, counters_of_owner
from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.service.counters import Counters
from ebla.storage.files.files import FileLock
from ebla.tablet.engine import TabletStore
from ebla.tablet.jobs.bulk_mail import Mailbox
from ebla.tablet.serve.local_service import LocalService
from ebla.timing import now_seconds

__all__ = ["EmbeddedService"]

_log = logging.getLogger(__name__)


class EmbeddedService(LocalService):
    """Serves a store and owns it: its lock or lease, its coordination service, and the mail of jobs."""

    def __init__(
        self,
        path: Path,
        engine: TabletStore,
        coordination: CoordinationService,
        clock: Clock,
        new_id: Callable[[], str],
        lock: FileLock | None = None,
        mailbox: Mailbox | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        super().__init__(engine, coordination, clock, new_id)
        # Set once.
        self.path = path
        self._lock = lock
        self._mailbox = mailbox
        self._ownership = ownership
        self._publisher: Publisher | None = None
        self._is_closed = False

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that opened the store."""
        return self.engine.is_inherited

    def publish(self, publisher: Publisher) -> None:
        """Tell others how the store is, from now until it is closed."""
        self._publisher = publisher

    def check_open(self) -> None:
        """Raise `Closed` if it was closed, or belongs to another process."""
        if self._is_closed:
            raise self.closed()
        super().check_open()

    def close(self) -> None:
        """Make everything durable and let go of all. Closing twice is fine."""
        if self._is_closed or self.is_inherited:
            return
        self._is_closed = True
        began = now_seconds()
        try:
            if self._mailbox is not None:
                self._mailbox.close()
            self.engine.close()
            if self._publisher is not None:
                self._publisher.closed()
        finally:
            if self._ownership is not None:
                self._ownership.release()
            self.coordination.close()
            if self._lock is not None:
                self._lock.release()
        _log.info("closed %s in %.3f s", self.path, now_seconds() - began)

    def crash(self) -> None:
        """Let go of everything without writing, as a crash would. For tests."""
        self._is_closed = True
        if self._mailbox is not None:
            self._mailbox.close()
        self.engine.abandon()
        if self._ownership is not None:
            self._ownership.abandon()
        self.coordination.close()
        if self._lock is not None:
            self._lock.release()

    def _counters(self) -> Counters | None:
        return self.engine.report.counters() if self.is_writable else counters_of_owner(self.path)
