"""Snapshots of a cluster: txns that clients hold by name, in the coordination service, where every server looks.

    pins/monday                 until it is released
    pins/held.<client>.<n>      a snapshot without a name: until its client lets it go, or does not renew it

A server that compacts first puts on record how far it goes, and then looks what is held. Here it is the other way
round: a txn is held first, then the record is looked at. So one of them sees the other, and what was held while the
record was not beyond it stays.
"""

from __future__ import annotations

from ebla.clock import Clock, txn_at
from ebla.coordination.service import CoordinationService
from ebla.errors import Conflict
from ebla.service.requests import HoldByName
from ebla.tablet.garbage.pins import Pins
from ebla.tablet.upkeep.horizon import Horizon

__all__ = ["ClusterSnapshots"]

# Who holds a snapshot without a name.
CLIENT = "client"


class ClusterSnapshots:
    """What clients hold. Keeps nothing in memory."""

    def __init__(self, coordination: CoordinationService, clock: Clock) -> None:
        # Set once.
        self._pins = Pins(coordination, clock)
        self._horizon = Horizon(coordination)
        self._clock = clock

    def hold(self, request: HoldByName) -> int:
        """Hold a txn under a name, which may hold one already; return what it holds.

        `Conflict` if compaction may have gone beyond it: then a newer one has to be held.
        """
        txn = txn_at(self._clock.microseconds()) if request.txn is None else request.txn
        is_new = self._pins.find(request.name) is None
        if request.expires_seconds is None:
            held = self._pins.pin(request.name, txn)
        else:
            held = self._pins.renew(request.name, txn, request.expires_seconds, CLIENT)
        if is_new and self._horizon.read() > held.txn:
            self._pins.release(request.name)
            raise Conflict(f"what txn {held.txn} shows may be gone by now: hold a newer one")
        return held.txn

    def release(self, name: str) -> None:
        """Hold nothing under a name any longer."""
        self._pins.release(name)

    def by_name(self) -> dict[str, int]:
        """Return what is held by name, with the txns."""
        return {pin.name: pin.txn for pin in self._pins.all() if pin.reader != CLIENT}
