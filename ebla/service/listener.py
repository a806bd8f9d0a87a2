"""What happens to tablets, for those who want to hear of it: their fragments or rows changed, they were unloaded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeAlias

from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.ranges import KeyRange

__all__ = ["Event", "FragmentsChanged", "RangeChanged", "TabletListener", "Unloaded", "tell"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FragmentsChanged:
    """A group of a tablet refers to other fragments. For an insertion nothing is removed."""

    table: str
    tablet: str
    group: int
    removed: tuple[FragmentRef, ...]
    added: tuple[FragmentRef, ...]


@dataclass(frozen=True, slots=True)
class RangeChanged:
    """A tablet was split or joined: its rows are now those of the `successors`, and it has none any more."""

    table: str
    tablet: str
    rows: KeyRange
    successors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A tablet is not served any more."""

    table: str
    tablet: str


Event: TypeAlias = FragmentsChanged | RangeChanged | Unloaded


class TabletListener:
    """Hears of tablets. All it does by itself is nothing."""

    def on_fragments_changed(self, event: FragmentsChanged) -> None:
        """The fragments of a tablet were added to, or replaced."""

    def on_range_changed(self, event: RangeChanged) -> None:
        """A tablet was split or joined."""

    def on_unloaded(self, event: Unloaded) -> None:
        """A tablet was unloaded, or its table dropped."""


def tell(listener: TabletListener, event: Event) -> None:
    """Call the listener's method for an event; what it raises is logged, for it harms nobody else."""
    try:
        match event:
            case FragmentsChanged():
                listener.on_fragments_changed(event)
            case RangeChanged():
                listener.on_range_changed(event)
            case Unloaded():
                listener.on_unloaded(event)
    except Exception:
        _log.exception("a listener failed on %s", event)
