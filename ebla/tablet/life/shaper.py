"""The shaper: splits what has become too large and joins what has become too small, by itself.

It looks at a table when its METADATA has changed, and at neighbours to join when time has passed. What was begun and
not finished, as before a crash, it finishes first. What fails is left alone for a while, unless others were faster.
"""

from __future__ import annotations

import logging

from ebla.clock import Clock
from ebla.errors import CannotJoin, CannotSplit, Closed, EblaError, TableUnloaded, UnknownTable
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.settings import Settings
from ebla.tablet.life.recutter import Recutter
from ebla.tablet.life.shape import Limits, joinable, maybe_too_large
from ebla.tablet.tables.open_tables import OpenTables
from ebla.tablet.tables.table_state import TableState
from ebla.threads.rounds import Rounds
from ebla.threads.worker import Worker

RETRY_SECONDS = 60.0
JOIN_LOOK_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Shaper:
    """Keeps the tablets of open tables between two sizes. Works on a thread of its own, or by `work`."""

    def __init__(
        self, tables: OpenTables, recutter: Recutter, settings: Settings, clock: Clock, rounds: Rounds
    ) -> None:
        """`rounds` is what else is to be done now and then, a second or so apart."""
        # Set once.
        self._rounds = rounds
        self._tables = tables
        self._recutter = recutter
        self._limits = Limits.of(settings)
        self._clock = clock
        self._worker = Worker("ebla-tablets", self._round, self._failed, doing="splitting and joining")
        # Used by whoever works: the worker's thread, or a test.
        self._looked_at: dict[str, TableMetadata] = {}
        self._first_seen: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._looked_for_joins_at = clock.monotonic_seconds()
        # Written by whoever works, read by others.
        self.failure: EblaError | None = None

    def start(self) -> None:
        """Begin to work in the background."""
        self._worker.start()

    def stop(self) -> None:
        """Finish what is under way, and begin nothing more."""
        self._worker.stop()

    def _failed(self, error: EblaError) -> None:
        _log.warning("a split or join was given up: %s", error)
        self.failure = error

    def _round(self, is_idle: bool) -> None:
        self._rounds.run()
        while not self._worker.is_stopping and self.work():
            pass

    def work(self) -> bool:
        """Carry out one split or join that is due; False if none is."""
        now = self._clock.monotonic_seconds()
        looks_for_joins = now - self._looked_for_joins_at >= min(JOIN_LOOK_SECONDS, self._limits.join_after_seconds)
        for table in self._tables.all():
            if table.damage:
                continue
            metadata = table.view.metadata
            is_news = self._looked_at.get(table.id) is not metadata
            if not (is_news or looks_for_joins) or now < self._not_before.get(table.id, now):
                continue
            self._notice(metadata, now)
            try:
                is_done = self._shape(table, metadata, now)
            except EblaError as error:
                if not self._was_overtaken(table, metadata, error):
                    self._not_before[table.id] = now + RETRY_SECONDS
                    self._failed(error)
                continue
            self._not_before.pop(table.id, None)
            if not self._not_before:
                self.failure = None
            if is_done:
                return True
            self._looked_at[table.id] = metadata
        if looks_for_joins:
            self._looked_for_joins_at = now
            self._forget_the_gone()
        return False

    def _was_overtaken(self, table: TableState, metadata: TableMetadata, error: EblaError) -> bool:
        """Tell whether others cut, unloaded, dropped or closed what was looked at: then the next look is at the new."""
        if not isinstance(error, (CannotSplit, CannotJoin, TableUnloaded, UnknownTable, Closed)):
            return False
        return self._worker.is_stopping or table.is_dropped or table.view.metadata is not metadata

    def _shape(self, table: TableState, metadata: TableMetadata, now: float) -> bool:
        if self._recutter.finish_begun(table):
            return True
        own = {tablet.id for tablet in table.own_tablets(metadata)}
        for tablet in maybe_too_large(metadata, self._limits):
            if tablet.id in own and self._recutter.payload(table, tablet) > self._limits.split_bytes:
                row = self._recutter.choose(table, tablet)
                if row is not None:
                    self._recutter.split(table, row, tablet.id)
                    return True
        for left, right in joinable(metadata, self._limits, lambda one: now - self._first_seen.get(one, now)):
            if left.id in own and right.id in own:
                self._recutter.join(table, left, right)
                return True
        return False

    def _notice(self, metadata: TableMetadata, now: float) -> None:
        for tablet in metadata.tablets:
            self._first_seen.setdefault(tablet.id, now)

    def _forget_the_gone(self) -> None:
        tables = {table.id: table for table in self._tables.all()}
        alive = {tablet.id for table in tables.values() for tablet in table.view.metadata.tablets}
        self._first_seen = {tablet: at for tablet, at in self._first_seen.items() if tablet in alive}
        self._looked_at = {table: seen for table, seen in self._looked_at.items() if table in tables}
        self._not_before = {table: at for table, at in self._not_before.items() if table in tables}
