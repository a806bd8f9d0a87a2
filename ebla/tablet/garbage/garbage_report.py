"""What a round of garbage collection found, and what it decides: pure, the same for the store and for jobs.

Seen      what there is, and what of it no METADATA names
judge     not named, and a candidate for long enough: doomed; else a candidate from now on
sum_up    the report of a round; if the catalog has lost a table, nothing is doomed and nothing a candidate
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ebla.service.reports import GarbageReport
from ebla.tablet.garbage.candidates import CANDIDATES_MAX
from ebla.tablet.garbage.lost_tables import Strangers

__all__ = ["GarbageReport", "Seen", "Verdict", "judge", "sum_up"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a sweep found: what goes now, and since when (microseconds) the others are known to be in nobody's way."""

    doomed: tuple[str, ...]
    candidates: Mapping[str, int]


def judge(
    listed: Iterable[str],
    named: Collection[str],
    young: Collection[str],
    prefixes: tuple[str, ...],
    before: Mapping[str, int],
    now_microseconds: int,
    age_microseconds: int,
) -> Verdict:
    """Decide which of the files listed may go; `before` are the candidates of the round before."""
    doomed: list[str] = []
    candidates: dict[str, int] = {}
    for path in listed:
        if path in named or path in young or path.startswith(prefixes):
            continue
        since = before.get(path)
        if since is not None and now_microseconds - since >= age_microseconds:
            doomed.append(path)
        elif len(candidates) < CANDIDATES_MAX:
            candidates[path] = now_microseconds if since is None else since
    return Verdict(tuple(doomed), candidates)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found in a store: fragments, of which `unnamed` (with their sizes) are in no METADATA that was read."""

    files: int
    bytes: int
    shared: int
    shared_bytes: int
    unnamed: Mapping[str, int]
    dropped: Mapping[str, int]  # METADATA of tables that were dropped, or not made in the end
    strangers: Strangers

    @classmethod
    def of(
        cls,
        listed: Mapping[str, int],
        named: Mapping[str, int],
        dropped: Mapping[str, int],
        strangers: Strangers,
    ) -> Seen:
        """Return what was found, from the sizes of fragments and by how many tables each is named."""
        shared = [size for path, size in listed.items() if named.get(path, 0) > 1]
        unnamed = {path: size for path, size in listed.items() if path not in named}
        return cls(len(listed), sum(listed.values()), len(shared), sum(shared), unnamed, dropped, strangers)


def sum_up(
    seen: Seen,
    young: Collection[str],
    held: Collection[str],
    prefixes: tuple[str, ...],
    before: Mapping[str, int],
    now_microseconds: int,
    age_microseconds: int,
) -> tuple[GarbageReport, Verdict]:
    """Judge what was found; nothing is removed yet. `held` are files that jobs read by their names."""
    sizes = {} if seen.strangers.lost else {**seen.unnamed, **seen.dropped}
    verdict = judge(sorted(sizes), held, young, prefixes, before, now_microseconds, age_microseconds)
    report = GarbageReport(
        files=seen.files,
        bytes=seen.bytes,
        named=seen.files - len(seen.unnamed),
        shared=seen.shared,
        shared_bytes=seen.shared_bytes,
        by_writers=sum(path in young for path in seen.unnamed),
        by_jobs=sum(path not in young and (path in held or path.startswith(prefixes)) for path in seen.unnamed),
        candidates=len(verdict.candidates),
        candidate_bytes=sum(sizes[path] for path in verdict.candidates),
        metadata_files=len(seen.dropped),
        unknown_tables=tuple(sorted((*seen.strangers.lost, *seen.strangers.others))),
        lost_tables=seen.strangers.lost,
        doomed=verdict.doomed,
        doomed_bytes=sum(sizes[path] for path in verdict.doomed),
        removed=(),
    )
    return report, verdict
