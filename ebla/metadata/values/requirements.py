"""What changes of METADATA rely on, and how they are refused: shared by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ebla.errors import Conflict
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata

__all__ = ["RequirementFailed", "TabletAt", "led", "named_once"]


class RequirementFailed(Conflict):
    """The metadata is not as the change requires. Nothing was changed; `code` says in a word what differs."""

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(reason)

    def __reduce__(self) -> tuple[type[RequirementFailed], tuple[str, str]]:
        return type(self), (self.code, self.reason)


class TabletAt(msgspec.Struct, frozen=True, array_like=True):
    """A tablet and the epoch at which the sender leads it."""

    tablet: str
    epoch: int


class _Led(Protocol):
    @property
    def tablet(self) -> str: ...

    @property
    def epoch(self) -> int: ...


def led(metadata: TableMetadata, at: _Led) -> TabletMetadata:
    """Return the tablet that the sender of a change leads, as it says; else refuse."""
    tablet = metadata.by_id(at.tablet)
    if tablet is None:
        raise RequirementFailed("unknown_tablet", f"the table has no tablet {at.tablet} (any more)")
    if tablet.epoch != at.epoch:
        reason = f"tablet {at.tablet} is at epoch {tablet.epoch}: the sender led it at {at.epoch} and no longer does"
        raise RequirementFailed("stale_epoch", reason)
    return tablet


def named_once(tablets: Sequence[_Led]) -> None:
    """Refuse a change that names a tablet twice."""
    if len({at.tablet for at in tablets}) != len(tablets):
        raise RequirementFailed("named_twice", "the change names a tablet twice")
