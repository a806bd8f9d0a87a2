"""A row as a user gets it."""

from __future__ import annotations

from typing import Any

from ebla.errors import RequestError

__all__ = ["Row", "beyond_python"]


class Row(dict[str, Any]):
    """A row as a dict of its columns. `txn` is the snapshot it was read at, which `if_unchanged_since` wants."""

    __slots__ = ("txn",)
    txn: int


def beyond_python(reason: OverflowError) -> RequestError:
    """Return the error for rows that Arrow can hold and Python cannot: dates after the year 9999, and their like."""
    return RequestError(
        f"a date, time or duration is beyond what Python has ({reason}): read it as Arrow, by get_many, "
        "scan(...).to_arrow() or to_batches()"
    )
