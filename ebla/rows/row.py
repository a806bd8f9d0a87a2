"""A row as a user gets it."""

from __future__ import annotations

from typing import Any

__all__ = ["Row"]


class Row(dict[str, Any]):
    """A row as a dict of its columns. `txn` is the snapshot it was read at, which `if_unchanged_since` wants."""

    __slots__ = ("txn",)
    txn: int
