"""Which tablets to split and which to join, by their sizes: the decision, without any I/O.

         0            join_bytes_max        tablet_bytes_max / 2        tablet_bytes_max
         |-- joined with --|                        |                          |
         |   a neighbour   |                        |<-- what a split leaves --|-- split

Split and join do not chase each other: a join never leaves more than a quarter of what is split, whatever the settings
say; and what was cut or opened less than `join_after_seconds` ago is not joined. A tablet that never had anything is
left alone: somebody cut the table so that it may be filled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.settings import Settings
from ebla.tablet.life.split_row import payload_at_most

__all__ = ["Limits", "joinable", "maybe_too_large"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes above; 0 means never."""

    split_bytes: int
    join_bytes: int
    join_after_seconds: float

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Take them from settings, and see to it that a join leaves nothing that is split again."""
        join = settings.join_bytes_max
        if settings.tablet_bytes_max:
            join = min(join, settings.tablet_bytes_max // 4)
        return cls(settings.tablet_bytes_max, join, settings.join_after_seconds)


def maybe_too_large(metadata: TableMetadata, limits: Limits) -> list[TabletMetadata]:
    """Return the tablets that may have to be split: a closer look costs more."""
    if not limits.split_bytes or metadata.is_fixed:
        return []
    return [tablet for tablet in metadata.tablets if payload_at_most(tablet) > limits.split_bytes and _is_idle(tablet)]


def joinable(
    metadata: TableMetadata, limits: Limits, age_seconds: Callable[[str], float]
) -> Sequence[tuple[TabletMetadata, TabletMetadata]]:
    """Return neighbours that are small enough to be one, the smallest first. `age_seconds` is that of a tablet."""
    if not limits.join_bytes or metadata.is_fixed:
        return []
    found = []
    for left, right in pairwise(metadata.tablets):
        size = payload_at_most(left) + payload_at_most(right)
        both = (left, right)
        if size > limits.join_bytes or not all(_is_idle(one) and _was_used(one) for one in both):
            continue
        if all(age_seconds(one.id) >= limits.join_after_seconds for one in both):
            found.append((size, both))
    found.sort(key=lambda one: one[0])
    return [both for _, both in found]


def _is_idle(tablet: TabletMetadata) -> bool:
    return tablet.state == "running"


def _was_used(tablet: TabletMetadata) -> bool:
    return any(state.fragments or state.floor_txn or state.flushed for state in tablet.groups)
