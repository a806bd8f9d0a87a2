"""Rounds of garbage collection that are made elsewhere: what a job asks the owner of the store, and what it is told.

PrepareSweep  -->  SweepTerms     what is about to be named, and how old a candidate must be: asked before anything
   the job lists files, then reads METADATA of every table, and judges by the rules of `garbage`
Sweep         -->  SweepResult    the owner looks again at each file, and removes what it finds unused, too
"""

from __future__ import annotations

import msgspec

__all__ = ["SWEEP_MAX", "PrepareSweep", "Sweep", "SweepResult", "SweepTerms"]

# So that the answer fits into a node of the coordination service.
SWEEP_MAX = 50_000


class PrepareSweep(msgspec.Struct, frozen=True, tag="prepare_sweep"):
    """Say what is about to be named."""

    job: str


class SweepTerms(msgspec.Struct, frozen=True, tag="sweep_terms"):
    """Files that are about to be named; the time; and for how long a file must have been a candidate."""

    young: tuple[str, ...]
    now_microseconds: int
    age_microseconds: int


class Sweep(msgspec.Struct, frozen=True, tag="sweep"):
    """Remove these files, at most `SWEEP_MAX`; with the last of them, remember what the round found unused.

    `version` is that of the candidates which the round began with.
    """

    job: str
    doomed: tuple[str, ...]
    candidates: dict[str, int] | None = None
    version: int | None = None


class SweepResult(msgspec.Struct, frozen=True, tag="swept"):
    """Of the files to be removed, the places of those that stayed: named by now, in use, or not to be removed."""

    kept: tuple[int, ...]
