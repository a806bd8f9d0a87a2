"""Moments of a store: what `as_of` may be, and which txn it means."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeAlias

import numpy as np

from ebla.client.snapshot import Snapshot
from ebla.clock import microseconds_of, txn_at
from ebla.errors import RequestError, shown
from ebla.service.requests import Moment

__all__ = ["AsOf", "moment_of", "time_of", "txn_of"]

AsOf: TypeAlias = int | datetime | Snapshot | str


def txn_of(as_of: AsOf) -> int:
    """Return the txn that `as_of` means: of a snapshot, itself, or the end of that microsecond."""
    if isinstance(as_of, Snapshot):
        return as_of.txn
    if isinstance(as_of, datetime) and as_of == as_of:  # pandas has one that is no time, and equals nothing
        moment = as_of.replace(tzinfo=UTC) if as_of.tzinfo is None else as_of.astimezone(UTC)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
        return txn_at((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
    if isinstance(as_of, bool) or not isinstance(as_of, (int, np.integer)) or not 0 <= as_of < 1 << 63:
        raise RequestError(
            f"as_of is a txn, a datetime, a snapshot or the name of one that is held, not {shown(as_of)}"
        )
    return int(as_of)


def moment_of(as_of: AsOf, uncommitted: bool = False) -> Moment:
    """Return the moment that `as_of` means; text is the name of a snapshot that is held."""
    if isinstance(as_of, str):
        return Moment(snapshot=as_of, uncommitted=uncommitted)
    return Moment(txn_of(as_of), uncommitted=uncommitted)


def time_of(txn: int) -> datetime:
    """Return the time at which `txn` was given out."""
    if isinstance(txn, bool) or not isinstance(txn, (int, np.integer)) or not 0 <= txn < 1 << 63:
        raise RequestError(f"a txn is a whole number, as writes return it, not {shown(txn)}")
    return datetime.fromtimestamp(0, UTC) + (datetime.resolution * microseconds_of(int(txn)))
