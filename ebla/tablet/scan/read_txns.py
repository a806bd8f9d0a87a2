"""At which txn a reader reads, and how he holds on to it.

    read_txn      the newest commit; or the one asked for, when all up to it is in memory and can no longer change
    hold_newest   a commit that compaction keeps whole until it is let go of
    sync          wait until a commit is safe from any crash

A reader of the past never waits. One who asks for a txn that is not committed yet waits for what is under way.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ebla.clock import COUNTER_BITS, Clock, TxnClock, txn_at
from ebla.errors import RequestError, UnknownTable
from ebla.metadata.values.table_config import TableConfig
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.read.view import TableView, time_text
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.history import History
from ebla.tablet.write.gate import Gate
from ebla.tablet.write.open_state import OpenState
from ebla.tablet.write.sequencer import Sequencer

__all__ = ["ReadTxns", "check_named"]


class ReadTxns:
    """Finds the txns of reads. Safe to use from several threads."""

    def __init__(
        self,
        sequencer: Sequencer,
        txn_clock: TxnClock,
        clock: Clock,
        commit_lock: threading.Lock,
        gate: Gate,
        pins: Pins,
        state: OpenState,
        history: History,
    ) -> None:
        # Set once.
        self._sequencer = sequencer
        self._txn_clock = txn_clock
        self._clock = clock
        self._commit_lock = commit_lock
        self._gate = gate
        self._pins = pins
        self._state = state
        self._history = history
        self._opened_at = max(txn_clock.last, txn_at(clock.microseconds()))

    def read_txn(self, as_of: int | None = None, *, uncommitted: bool = False, at_once: bool = False) -> int:
        """Return the txn at which to read, so that an answer at it never changes.

        Without `as_of` it is that of the newest commit; with `at_once` that of this very moment, for tables in which
        time alone changes what is seen.
        """
        log = self._state.log
        if as_of is None and at_once:
            as_of = max(self._sequencer.committed, self._opened_at)
            if log is not None:
                as_of = max(as_of, self._txn_clock.last, self._clock.microseconds() << COUNTER_BITS)
                if uncommitted:
                    self._txn_clock.observe(as_of)
                    # Whoever got a smaller txn before that has its records in memory once the lock is free.
                    with self._commit_lock:
                        self._gate.wait(log, as_of)
                        return as_of
        if as_of is None:
            if not uncommitted:
                return self._sequencer.committed
            with self._commit_lock:  # not between the allocation of a txn and its records
                return self._sequencer.allocated
        if as_of > self._sequencer.committed:
            if log is None:
                return self._read_only_txn(as_of)
            self._txn_clock.observe(as_of)
            with self._commit_lock:
                self._gate.wait(log, as_of)
                in_flight = min(as_of, self._sequencer.allocated)
            log.wait(in_flight)
        return as_of

    def _read_only_txn(self, as_of: int) -> int:
        if as_of > self._opened_at:
            raise RequestError(
                f"this read-only open sees the store as of txn {self._opened_at}: open it again for later"
            )
        return as_of

    def sync(self, txn: int | None = None) -> int:
        """Wait until everything up to `txn` (default: everything so far) is stable; return the stable txn.

        `RequestError` for a txn that nobody was given yet: there is no telling when it will be.
        """
        log = self._state.log
        if log is None:
            if txn is not None and txn > self._sequencer.stable:
                raise RequestError(
                    f"this read-only open sees the store as of txn {self._sequencer.stable}, and cannot tell what "
                    f"became of txn {txn}: open it again, or sync where it is written"
                )
            return self._sequencer.stable
        with self._commit_lock:
            if txn is not None and txn > max(self._sequencer.allocated, self._txn_clock.last):
                raise RequestError(
                    f"txn {txn} was not given out yet, the newest is {self._sequencer.allocated}: sync takes what a "
                    "write returned, or nothing, which means everything so far"
                )
            if txn is not None:
                self._gate.wait(log, txn)  # its txns may be under way, and not among those allocated
            target = self._sequencer.allocated if txn is None else min(txn, self._sequencer.allocated)
        log.wait(target)
        self._sequencer.wait_stable(target)
        log.check_none_held(target)
        return self._sequencer.stable

    def hold_newest(self) -> int:
        """Hold the newest commit for a reader, who lets go of it through `pins`; return its txn."""
        while True:
            txn = self.read_txn()
            self._pins.hold(txn)
            if txn >= self._history.reached:
                return txn
            self._pins.let_go(txn)  # history has ended meanwhile, as it may if none is kept

    def hold_views(self, tables: Sequence[TableState]) -> tuple[int, list[TableView]]:
        """Hold the newest commit, as `hold_newest` does; return its txn, and the tables as they are at that moment."""
        while True:
            with self._commit_lock:
                txn = self._sequencer.committed
                views = [table.view for table in tables]
                self._pins.hold(txn)
            if txn >= self._history.reached:
                return txn, views
            self._pins.let_go(txn)


def check_named(config: TableConfig | None, name: str, txn: int) -> None:
    """Raise `UnknownTable` if the table of that configuration was not called `name` yet at `txn`.

    What was, is gone or has another name. In a store that is open for reading, the table may have got another name
    since; it had this one all the longer.
    """
    if config is not None and config.name == name and config.named_txn > txn:
        raise UnknownTable(
            f"the table that was called {name!r} at txn {txn} ({time_text(txn)}), if there was one, is gone: that of "
            f"now has the name since txn {config.named_txn} ({time_text(config.named_txn)}); if it is a clone or was "
            f"renamed, db.table({name!r}).scan(as_of=...) shows its own past"
        )
