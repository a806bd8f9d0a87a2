"""A worker: a thread that does what there is to do, when it is woken and now and then by itself.

It never dies of an error: what goes wrong is told to whoever made it, and the next round begins afresh.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ebla.errors import EblaError, StoreError

IDLE_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Worker:
    """Runs `work(is_idle)` in a thread of its own; `is_idle` says that nobody woke it for a while.

    `failed(error)` is told what a round raised, on the worker's thread.
    """

    def __init__(
        self, name: str, work: Callable[[bool], None], failed: Callable[[EblaError], None], *, doing: str
    ) -> None:
        # Set once.
        self._work = work
        self._failed = failed
        self._doing = doing
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        # It goes up once, and is read by everybody.
        self.is_stopping = False

    def start(self) -> None:
        """Begin to work in the background."""
        self._thread.start()

    def wake(self) -> None:
        """Say that there may be something to do."""
        self._bell.set()

    def stop(self) -> None:
        """Ask it to stop and wait until it has. A round under way sees `is_stopping`. Idempotent."""
        self.is_stopping = True
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            is_idle = not self._bell.wait(IDLE_SECONDS)
            self._bell.clear()
            if self.is_stopping:
                return
            try:
                self._work(is_idle)
            except EblaError as error:
                self._failed(error)
            except Exception as error:
                _log.exception("%s failed", self._doing)
                self._failed(StoreError(f"{self._doing} failed: {error!r}"))
