"""A ticker: a thread that does something again and again, and never dies of an error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["Ticker"]

_log = logging.getLogger(__name__)


class Ticker:
    """Calls `tick` every so many seconds in a thread of its own, from `start` to `stop`."""

    def __init__(self, name: str, seconds: float, tick: Callable[[], None]) -> None:
        # Set once.
        self._name = name
        self._seconds = seconds
        self._tick = tick
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until it has. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            try:
                self._tick()
            except Exception:
                _log.exception("%s failed, and is tried again", self._name)
