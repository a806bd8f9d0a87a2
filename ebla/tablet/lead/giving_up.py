"""Giving tablets up while the lease holds: states 6 and 7 of a tablet's life, then it is another's.

    6  read-only, flushing    no write is taken; what is in memory becomes fragments
    7  final config saving    no read is taken either; METADATA: led by nobody, nothing of it in a log, the next epoch

What the leader told clients of requests by id is in its log alone: then that log stays on record, for the next one.
Reads that began before go on: what they read is fixed. Should METADATA refuse, the tablets are led as before; should
the outcome stay unknown, they are led by nobody here, until METADATA tells.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ebla.clock import Clock
from ebla.errors import EblaError, OutcomeUnknown, StoreError
from ebla.metadata.values.changes import Change
from ebla.metadata.values.handing_over import Offer, OfferTablets, VacateTablets
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.serving import UnloadTablets
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.retry import SAVES
from ebla.tablet.engine import TabletStore
from ebla.tablet.lead.run import server_of_run
from ebla.tablet.tables.table_state import TableState

__all__ = ["TabletGiver"]

_log = logging.getLogger(__name__)


class TabletGiver:
    """Gives up tablets of a run. One thread at a time."""

    def __init__(self, store: TabletStore, clock: Clock) -> None:
        # Set once.
        self._store = store
        self._clock = clock
        self._server = server_of_run(store.server)

    def give_up(self, table: TableState, tablets: Collection[str], *, is_unloaded: bool = False) -> None:
        """Flush tablets and lead them no more; those that are not led here are passed over.

        If they are to be unloaded, nobody else leads them either, until METADATA has them as loaded.
        """
        led = table.led
        assert led is not None, "a store that leads everything gives nothing up"
        store = self._store
        with store.recutter.exclusively():  # a split or join under way ends first
            with store.open_tables.lock:
                own = led.ids.intersection(tablets)
                led.freeze(own)
            if not own:
                return
            try:
                self._flush(table, own)
                with store.open_tables.lock:
                    led.resign(own)
                    table.lose(own, store.sequencer.allocated)
                saved = self._save(table, own, is_unloaded=is_unloaded)
            except OutcomeUnknown:
                raise
            except BaseException:
                with store.open_tables.lock:
                    led.thaw(own)
                raise
            store.open_tables.use_metadata(table, saved, store.server)
            _log.info("gave up %s of %s", ", ".join(sorted(own)), table.name)

    def _flush(self, table: TableState, tablets: frozenset[str]) -> None:
        store = self._store
        log = store.state.writable_log()
        with store.open_tables.lock:
            before = store.sequencer.allocated  # all commits to these tablets: none is taken any more
        log.wait(before)
        store.sequencer.wait_stable(before)
        store.late_schemas.switch(table)
        store.flusher.flush_table(table, tablets)
        if table.holds_unflushed(tablets):
            raise StoreError(f"tablets of {table.name!r} could not be flushed, and are not given up: retry")

    def _save(self, table: TableState, tablets: frozenset[str], *, is_unloaded: bool) -> TableMetadata:
        """Have METADATA say that nobody leads the tablets. It may be repeated: it names the epochs."""
        store = self._store
        known = [one for one in table.view.metadata.tablets if one.id in tablets]
        # What clients were told of a tablet is in the log alone: whoever leads it next reads it there.
        told = [one for one in known if table.tablet(one.id).replies is not None]
        changes: list[Change] = [
            VacateTablets(tuple(TabletAt(one.id, one.epoch) for one in some), self._server, is_flushed=some is not told)
            for some in (told, [one for one in known if one not in told])
            if some
        ]
        if is_unloaded:
            offered = tuple(Offer(one.id, one.epoch + 1, None) for one in known if one.target is not None)
            changes += [OfferTablets(offered)] if offered else []
            changes.append(UnloadTablets(tuple(TabletAt(one.id, one.epoch + 1) for one in known), keeps_log=True))
        unknown: OutcomeUnknown | None = None
        for attempt in SAVES.attempts(self._clock):
            try:
                current = store.metadata.refresh(table.id) if attempt else None
                if current is not None and all(_is_past(current, one.id, one.epoch) for one in known):
                    return current
                return store.metadata.commit(table.id, changes)
            except OutcomeUnknown as error:
                unknown = error
            except EblaError:
                if unknown is None:
                    raise
        raise OutcomeUnknown(f"it is not known whether tablets of {table.name!r} were given up: {unknown}") from unknown


def _is_past(metadata: TableMetadata, tablet_id: str, epoch: int) -> bool:
    tablet = metadata.by_id(tablet_id)
    return tablet is None or tablet.epoch > epoch
