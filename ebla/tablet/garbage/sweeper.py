"""The sweeper: rounds of garbage collection that a store makes by itself, now and then."""

from __future__ import annotations

import logging

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError
from ebla.tablet.garbage.garbage import Garbage
from ebla.tablet.garbage.job_intents import remove_expired
from ebla.tablet.garbage.pins import Pins

__all__ = ["Sweeper"]

_log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps when its time has come. Used by one thread at a time."""

    def __init__(
        self, garbage: Garbage, pins: Pins, coordination: CoordinationService, clock: Clock, round_seconds: float
    ) -> None:
        # Set once.
        self._garbage = garbage
        self._pins = pins
        self._coordination = coordination
        self._clock = clock
        self._round_seconds = round_seconds
        self._swept_at = clock.monotonic_seconds()

    def sweep_if_due(self) -> None:
        """Make a round if the last one was long enough ago; what fails is looked at again in the next."""
        now = self._clock.monotonic_seconds()
        if now - self._swept_at < self._round_seconds:
            return
        self._swept_at = now
        try:
            self.sweep()
        except EblaError as error:
            # Nothing was removed; `stats` tells it beside the garbage.
            _log.warning("a round of garbage collection was given up: %s", error)

    def sweep(self) -> None:
        """Let go of what dead jobs held and announced, and remove what nobody names."""
        self._pins.remove_expired()
        remove_expired(self._coordination, self._clock)
        self._garbage.collect(dry_run=False)
