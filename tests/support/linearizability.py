"""Whether what clients saw of one row could have happened one operation after the other, each within its own time.

    write 1  |------|
    write 2     |------------------|
    read  2            |---|                  1, 2, read 2: fine
    read  1                  |---|            no order explains it: a read of 1 after a read of 2

A history is a list of `Operation` on one register. An operation whose outcome is not known may have taken effect at any
time after it began, or never. The search is that of Wing and Gong, with the states that were tried remembered, as Lowe
has it: of all operations that are left, any may be next that began before the first of them ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

__all__ = ["Operation", "is_linearizable"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as its client saw it; `ended` is infinity if it never heard of the outcome."""

    kind: Literal["read", "write"]
    value: object
    began: float
    ended: float = inf

    @property
    def is_certain(self) -> bool:
        """Whether it has certainly taken effect."""
        return self.ended < inf


def is_linearizable(history: Sequence[Operation], initial: object = None) -> bool:
    """Tell whether some order explains a history of one register that had the value `initial`."""
    operations = sorted((one for one in history if one.is_certain or one.kind == "write"), key=lambda one: one.began)
    certain = sum(1 << at for at, one in enumerate(operations) if one.is_certain)
    tried: set[tuple[int, object]] = set()
    open_states: list[tuple[int, object]] = [(0, initial)]
    while open_states:
        done, value = open_states.pop()
        if done & certain == certain:
            return True
        if (done, value) in tried:
            continue
        tried.add((done, value))
        left = [at for at in range(len(operations)) if not done >> at & 1]
        first_end = min(operations[at].ended for at in left)
        for at in left:
            one = operations[at]
            if one.began > first_end:
                break
            if one.kind == "write":
                open_states.append((done | 1 << at, one.value))
            elif one.value == value:
                open_states.append((done | 1 << at, value))
    return False
