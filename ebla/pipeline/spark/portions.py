"""Dividing work among tasks by its size in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["portions_of"]

Thing = TypeVar("Thing")


def portions_of(things: Iterable[Thing], bytes_of: Callable[[Thing], int], bytes_max: int) -> list[list[Thing]]:
    """Put small things together until they have `bytes_max`; large ones first, so that the last tasks are short.

    A thing that is larger than that is a portion of its own. Things of one size stay in their order.
    """
    portions: list[list[Thing]] = []
    held = bytes_max
    for thing in sorted(things, key=bytes_of, reverse=True):
        if held + bytes_of(thing) > bytes_max or not portions:
            portions.append([])
            held = 0
        portions[-1].append(thing)
        held += bytes_of(thing)
    return portions
