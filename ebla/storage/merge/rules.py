"""What a reader may see: the snapshot, the range erasures in it, and the versions that the purge policy leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebla.model.order import Indices, Mask
from ebla.storage.merge.arrange import Txns, changes
from ebla.storage.merge.erasure_cover import TXN_MAX, Erasure

__all__ = ["Rules", "kept_versions"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a reader may see.

    `expired_before` is the oldest time in microseconds that the policy keeps, None where age does not matter;
    `versions_kept` the number of versions it keeps. With `purge_both` a version goes only when both say so.
    """

    as_of: int = TXN_MAX
    erasures: Sequence[Erasure] = ()
    versions: int = 1
    expired_before: int | None = None
    versions_kept: int | None = None
    purge_both: bool = False

    @property
    def keeps_one(self) -> bool:
        """Whether one version of each column is kept, whatever its age. It has the txn of the row's newest change."""
        return self.versions_kept == 1 and self.expired_before is None

    @property
    def expires_alone(self) -> bool:
        """Whether age by itself is enough to hide a version."""
        return self.expired_before is not None and not (self.purge_both and self.versions_kept is not None)


def kept_versions(identity: Indices, times: Txns, rules: Rules, *, repeated: Txns) -> Mask:
    """Tell which versions a reader gets, of versions that stand newest first per identity.

    A version with the same mark in `repeated` as the one before it (the same timestamp, or the same txn met in two
    places) is the same version again and does not count.
    """
    keep = np.ones(len(identity), dtype=np.bool_)
    if not len(identity):
        return keep
    new_identity = changes(identity)
    distinct = new_identity | changes(repeated)
    counted = np.cumsum(distinct)
    starts = np.flatnonzero(new_identity)
    rank = counted - counted[starts][np.cumsum(new_identity) - 1]
    keep &= distinct & (rank < rules.versions)
    expired = None if rules.expired_before is None else times < rules.expired_before
    surplus = None if rules.versions_kept is None else rank >= rules.versions_kept
    if expired is not None and surplus is not None:
        keep &= ~(expired & surplus) if rules.purge_both else ~(expired | surplus)
    elif expired is not None:
        keep &= ~expired
    elif surplus is not None:
        keep &= ~surplus
    return keep
