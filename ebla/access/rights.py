"""Rights on tables, and what a request needs of them.

    read < write < admin        each has those before it; on one table, by its name, or on all of them: `ALL`

A request says what it needs as a tuple of `Need`: all of them are checked. Some are for processes of the cluster alone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ebla.errors import RequestError, shown

__all__ = ["ALL", "MEMBER", "Need", "Needs", "Right", "ServersOnly", "always", "of_table", "right_of", "right_on"]

ALL: Final = "*"


class Right(enum.IntEnum):
    """What somebody may do with a table."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Need:
    """A right on the table of an id or a name; on all tables if it has neither; or on any table at all."""

    right: Right
    table: str | None = None
    name: str | None = None
    is_anywhere: bool = False


@dataclass(frozen=True, slots=True)
class ServersOnly:
    """Asked by processes of the cluster; `sender` is who it says it is, None if it does not say."""

    sender: str | None = None


Needs: TypeAlias = Callable[[Any], tuple[Need | ServersOnly, ...]]

MEMBER: Final = Need(Right.READ, is_anywhere=True)


def always(*needs: Need | ServersOnly) -> Needs:
    """Return what says the same of every request."""
    return lambda request: needs


def of_table(right: Right) -> Needs:
    """Return what wants a right on the table that a request names by id, as `table`."""
    return lambda request: (Need(right, request.table),)


def right_of(text: str) -> Right:
    """Return the right of a name: read, write or admin."""
    found = {"read": Right.READ, "write": Right.WRITE, "admin": Right.ADMIN}.get(text)
    if found is None:
        raise RequestError(f"a right is read, write or admin, not {shown(text)}")
    return found


def right_on(grants: Mapping[str, str], name: str) -> Right:
    """Return the right that grants give on the table of a name, or on `ALL`."""
    return max(_right(grants.get(name)), _right(grants.get(ALL)))


def right_anywhere(grants: Mapping[str, str]) -> Right:
    """Return the highest right that grants give on any table."""
    return max(map(_right, grants.values()), default=Right.NONE)


def _right(text: str | None) -> Right:
    return Right.NONE if text is None else right_of(text)
