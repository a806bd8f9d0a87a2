"""What a stream holds of the history of a store: a pin that is found again from the checkpoint, and moves forward.

begin   held for a while: a batch that is never written down leaves it behind            FIRST_HOLD_SECONDS
renew   held for long, from when a batch is written down; said again now and then        hold_seconds
move    a batch is done: what came before it may go
"""

from __future__ import annotations

import time

from ebla.direct import held_pins

__all__ = ["StreamHolding"]

# A batch that was never written down may have left a pin behind: it is gone soon.
FIRST_HOLD_SECONDS = 600.0
# A pin that nobody moves is renewed when this part of its time is over.
RENEW_SHARE = 4


class StreamHolding:
    """Holds history of a store for the streams of this process. Whoever has the store open sees what is held."""

    def __init__(self, root: str, hold_seconds: float, cluster: tuple[str, ...] = ()) -> None:
        self._root = root
        self._cluster = cluster
        self._hold_seconds = hold_seconds
        self._renewed: dict[str, float] = {}

    def begin(self, table: str, txn: int) -> str:
        """Hold a txn for a stream that is about to begin; return the name of the pin."""
        pin = held_pins.new_name("stream", table)
        held_pins.renew(self._root, pin, txn, FIRST_HOLD_SECONDS, self._cluster)
        return pin

    def renew(self, pin: str, txn: int) -> None:
        """Say that a stream is alive and needs a txn, unless that was said a while ago only."""
        renewed = self._renewed.get(pin)
        if renewed is None or time.monotonic() - renewed > self._hold_seconds / RENEW_SHARE:
            self.move(pin, txn)

    def move(self, pin: str, txn: int) -> None:
        """Hold a txn, and let go of what is older."""
        held_pins.renew(self._root, pin, txn, self._hold_seconds, self._cluster)
        self._renewed[pin] = time.monotonic()
