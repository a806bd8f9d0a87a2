"""Names of fragments that tell when they were given out, and the floor below which METADATA takes in no file. Pure.

    fragments/<table>/000642a1b2c3d4e5.9f3c...e1.parquet     microseconds, in hexadecimal; then what makes it unique
    fragments/<table>/<uuid>.parquet                         tells nothing: of a store that one process has
    fragments/<table>/<job>-<uuid>.parquet                   tells its job, which has an intent (`tablet.garbage`)

A server of a cluster gives out names whose times grow, and says which is the oldest that it may still make METADATA
name. Whoever removes files first raises the *floor* of their table, in its configuration: a change that would name a
file from below the floor, however late it comes, is refused. So what was judged to be garbage cannot be named again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ebla.metadata.values.changes import AddFragments, Change, Flush, ReplaceFragments, RequirementFailed

__all__ = ["check_floor", "file_microseconds", "timed_name"]

_TIMED = re.compile(r"([0-9a-f]{16})\.[0-9a-f]{32}\.parquet")


def timed_name(microseconds: int, unique: str) -> str:
    """Return the name of a file that is given out at a time; `unique` is a uuid."""
    return f"{microseconds:016x}.{unique.replace('-', ''):0>32.32}.parquet"


def file_microseconds(path: str) -> int | None:
    """Return when the name of a file was given out; None if it does not tell."""
    found = _TIMED.fullmatch(path.rpartition("/")[2])
    return None if found is None else int(found[1], 16)


def check_floor(changes: Sequence[Change], floor_microseconds: int) -> None:
    """Raise `RequirementFailed` if changes name a new file from below the floor."""
    if not floor_microseconds:
        return
    for change in changes:
        for file in _added(change):
            given_out = file_microseconds(file)
            if given_out is not None and given_out < floor_microseconds:
                reason = f"{file} is older than what may still be named, and perhaps gone: write it anew"
                raise RequirementFailed("below_floor", reason)


def _added(change: Change) -> Iterable[str]:
    match change:
        case Flush() | AddFragments():
            return [new.fragment.file for new in change.fragments]
        case ReplaceFragments():
            # What was there before, as under another range, was named all the time.
            there = {reference.file for reference in change.removed}
            return [reference.file for reference in change.added if reference.file not in there]
    return ()
