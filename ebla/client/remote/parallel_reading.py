"""Several parts of a range read at the same time, one thread for each server that has some.

    any order     what comes first is given out first; a few portions wait at most
    in order      the portions of the first part, then those of the second, ...: for who takes everything in any case

A part is an iterator of portions, as `RemoteStream` makes them. The first error of any part is raised where portions
are taken, and ends all others; so does whoever takes no more.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

__all__ = ["read_together"]

Portion = TypeVar("Portion")

# Portions of one thread that wait to be taken, where they are given out as they come.
WAITING_MAX = 2
LOOK_SECONDS = 0.2


class _End:
    """A part is done, or has failed."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def read_together(parts: Sequence[tuple[Hashable, Iterable[Portion]]], *, in_order: bool) -> Iterator[Portion]:
    """Yield the portions of all parts; of a part, each with what has it, in order."""
    owners: dict[Hashable, list[int]] = {}
    for at, (owner, _) in enumerate(parts):
        owners.setdefault(owner, []).append(at)
    shared: queue.Queue[Portion | _End] = queue.Queue(WAITING_MAX * len(owners))
    given: list[queue.Queue[Portion | _End]] = [queue.Queue() if in_order else shared for _ in parts]
    stopping = threading.Event()

    def put(at: int, portion: Portion | _End) -> bool:
        while not stopping.is_set():
            try:
                given[at].put(portion, timeout=LOOK_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def read(own: Sequence[int]) -> None:
        at = own[0]
        try:
            for at in own:
                for portion in parts[at][1]:
                    if not put(at, portion):
                        return
                put(at, _End())
        except BaseException as error:
            put(at, _End(error))

    for own in owners.values():
        threading.Thread(target=read, args=(own,), name="ebla-remote-scan", daemon=True).start()
    try:
        for at in range(len(parts)):
            while not isinstance(portion := given[at].get(), _End):
                yield portion
            if portion.error is not None:
                raise portion.error
    finally:
        stopping.set()
