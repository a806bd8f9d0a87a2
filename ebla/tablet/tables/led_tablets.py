"""Which tablets of a table are led here, where others lead the rest.

    METADATA      leader  log          led by the run A/7 of server A?
    tablet 1      A       A/7          yes
    tablet 2      A       A/6          no: by a former run, whose log has to be replayed first
    tablet 3      -       A/7          no: it resigned, or its lease was taken
    tablet 4      B       B/2          no

A **run** is one start of a server. It has a lease and a log of its own, so leadership is bound to the lease that it was
gained under: whoever loses its lease ends the run, and leads again only as another one, at a new epoch. While the lease
holds, nobody else changes who leads these tablets; so what is known here is never more than what METADATA says.

A tablet that is given up is taken out here first, and then in METADATA.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from ebla.errors import StaleRoute
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.model.order import lower_bound
from ebla.model.ranges import KeyRange

__all__ = ["LedTablets", "tablets_of"]


class LedTablets:
    """The tablets of one table that a run leads. Changed under the commit lock; asked by anybody."""

    def __init__(self, run: str) -> None:
        # Set once.
        self._run = run
        # Guarded by the commit lock, and replaced as a whole.
        self.ids: frozenset[str] = frozenset()
        self._resigned: frozenset[str] = frozenset()  # given up, or about to be; METADATA may not say so yet
        self._frozen: frozenset[str] = frozenset()  # read, and not written any more
        self._begun: frozenset[tuple[str, int]] = frozenset()  # replicated tablets with the epochs that have begun

    def use(self, metadata: TableMetadata) -> None:
        """Take over what METADATA says."""
        self._begun = frozenset((one.id, one.epoch) for one in metadata.tablets if self.has_begun(one))
        named = frozenset(
            one.id
            for one in metadata.tablets
            if one.log == self._run and one.leader is not None and (not one.is_replicated or self.has_begun(one))
        )
        self._resigned &= named
        self.ids = named - self._resigned
        self._frozen &= self.ids

    def has_begun(self, tablet: TabletMetadata) -> bool:
        """Tell whether the epoch of a replicated tablet has begun here."""
        return (tablet.id, tablet.epoch) in self._begun

    def begun(self, tablets: Iterable[TabletMetadata], metadata: TableMetadata) -> None:
        """Lead replicated tablets, which have begun their epochs."""
        self._begun |= {(one.id, one.epoch) for one in tablets}
        self._resigned -= {one.id for one in tablets}
        self.use(metadata)

    def freeze(self, tablets: Iterable[str]) -> None:
        """Let tablets be read and not be written: they are about to be given up."""
        self._frozen |= self.ids.intersection(tablets)

    def thaw(self, tablets: Iterable[str]) -> None:
        """Let tablets be written again, and be led: they were not given up after all."""
        self.ids |= self._resigned.intersection(tablets)
        self._resigned -= frozenset(tablets)
        self._frozen -= frozenset(tablets)

    def resign(self, tablets: Iterable[str]) -> None:
        """Lead tablets no more, whatever METADATA says of them."""
        self._resigned |= self.ids.intersection(tablets)
        self.ids -= self._resigned
        self._frozen &= self.ids

    # --- requests ---

    def check_read(self, tablets: Iterable[TabletMetadata]) -> None:
        """Raise `StaleRoute` unless all these tablets are led here."""
        for tablet in tablets:
            if tablet.id not in self.ids:
                raise _stale(tablet, self._run)

    def check_write(self, metadata: TableMetadata, rows: pa.Array, ranges: Iterable[KeyRange] = ()) -> None:
        """Raise `StaleRoute` unless all tablets of sorted rows, and of ranges, can be written here."""
        touched = [*tablets_of(rows, metadata), *(tablet for one in ranges for tablet in metadata.overlapping(one))]
        for tablet in touched:
            if tablet.id not in self.ids or tablet.id in self._frozen:
                raise _stale(tablet, self._run)


def tablets_of(rows: pa.Array, metadata: TableMetadata) -> list[TabletMetadata]:
    """Return the tablets that sorted rows belong to."""
    found = []
    begin, count = 0, len(rows)
    while begin < count:
        tablet = metadata.tablet_for(rows[begin].as_py())
        found.append(tablet)
        begin = count if tablet.last is None else lower_bound(rows, tablet.last, begin)
    return found


def _stale(tablet: TabletMetadata, run: str) -> StaleRoute:
    is_elsewhere = tablet.leader is not None and tablet.log != run
    where = f"led by {tablet.leader}" if is_elsewhere else "changing hands"
    return StaleRoute(
        f"tablet {tablet.id} is not led here but {where}: nothing was done, look it up again and go there"
    )
