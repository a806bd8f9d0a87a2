"""Which fragments to merge next: the decision, without any I/O.

A read has to merge all fragments of a tablet that overlap where it reads. So what counts is not how many there are but
how deep they lie on each other. Fragments that lie side by side form one **run**:

    run 1   |-----a-----||------b------||------c------|      48 + 51 + 50 MB     the outcome of an earlier compaction
    run 2   |--------------------d--------------------|      14 MB
    run 3     |------------e-----------|  |----f----|         6 + 3 MB
    run 4   |--------------------g--------------------|       8 MB

**Depth.** From `runs_min` runs on, the smallest are merged: as many as there are of which each is at most `size_ratio`
times as large as all smaller ones together. Every merge makes the run that a record is in half as large again at least,
so a record is rewritten a logarithmic number of times. With `runs_max` runs, so many of the smallest are merged that
`runs_min` are left less one, whatever their sizes: that bounds what a read has to look at.

**Erased.** Where a range erasure that no retained snapshot looks behind covers records, those fragments are rewritten
without them, and the erasure itself is dropped. Where fragments with erasures have become a good part of a tablet, all
of it is merged, for only then may erasures go.

**Surplus.** Where a good part of a fragment are versions that were replaced and that nobody can see any more, it is
rewritten without them, even if it lies alone; in cells groups only together with all that is older.

**Strands.** Columns that came from other groups are kept apart from each other as long as erasures are left that speak
for some of them only (scopes.py). A merge does not make one run of them, so they do not count as too deep. Once all of
the erasures may go, everything is merged, for only then do they.

**Aged.** A fragment of a columns group of which every record is older than the age limit is dropped, unless it lies
over older records that stay. Rows whose key begins with a time come in fragments that lie side by side, and nothing
else would ever touch those again.

**Small.** Many small fragments side by side do not slow a read down, but every one of them costs an open file: they
are joined, a file's worth at a time.

**History** is what only reads of the past need (present.py). It is merged with history alone, the newest runs of it as
soon as they are many, and goes without being read once no read reaches so far back. All the rest is chosen among what
is current.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ebla.clock import microseconds_of
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, RangeErasure
from ebla.model.schema import GroupSchema
from ebla.service.job_orders import Strategy
from ebla.tablet.tables.runs import runs_of
from ebla.tablet.upkeep.present import gone_erasures, has_hidden, is_rooted

Reason: TypeAlias = Literal["depth", "erased", "surplus", "aged", "small", "history", "manual", "job"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Fragments to merge into one run, and why. `erasures` are the range erasures that can be dropped with it.

    There may be no fragments: then there is nothing left that the range erasures hide.
    """

    fragments: tuple[FragmentRef, ...]
    reason: Reason
    is_rooted: bool = False
    erasures: tuple[RangeErasure, ...] = ()

    @property
    def bytes(self) -> int:
        """How much is read."""
        return sum(fragment.bytes for fragment in self.fragments)


def choose(
    state: GroupState,
    horizon: int,
    strategy: Strategy,
    *,
    purges: bool = False,
    is_cells: bool = False,
    columns: Collection[int] = (),
    expired_before: int | None = None,
    busy: Collection[str] = (),
) -> Choice | None:
    """Choose what to merge of one group of one tablet, or None if it is in good shape.

    `purges` says that the group keeps only so many versions, `is_cells` which layout it has, `columns` the ids of its
    columns, `expired_before` what `expiry_of` returns. Files that are `busy`, as somebody else is merging them, are
    left alone: what has come since is merged by itself.
    """
    current = state.current
    free = [fragment for fragment in current if fragment.file not in busy]
    past = _past([fragment for fragment in state.history if fragment.file not in busy], horizon, strategy)
    if past:
        return _choice(state, past, "history", horizon)
    aged = [] if expired_before is None else _aged(free, state.fragments, expired_before)
    if aged:
        return _choice(state, aged, "aged", horizon)
    if len(free) == len(current) and _may_be_joined(free, columns, horizon, strategy):
        return _choice(state, free, "depth", horizon)
    has_erasures = any(fragment.has_erasures for fragment in current)
    chosen = _too_deep(free, strategy, columns if has_erasures else None)
    if chosen:
        return _choice(state, chosen, "depth", horizon)
    if len(free) == len(current):
        erased = _erased(state, horizon, strategy)
        if erased is not None:
            return _choice(state, erased, "erased", horizon)
        surplus = _surplus(current, horizon, strategy, is_cells=is_cells) if purges else []
        if surplus:
            return _choice(state, surplus, "surplus", horizon)
    chosen = _too_small(free, strategy)
    return _choice(state, chosen, "small", horizon) if chosen else None


def expiry_of(group: GroupSchema, horizon: int) -> int | None:
    """Return the time in microseconds before which no record counts by its age alone; None if there is none.

    Records of cells have times of their own, of which references know nothing.
    """
    is_alone = group.purge_join == "or" or group.max_versions is None
    if group.is_cells or group.max_age_microseconds is None or not is_alone:
        return None
    return microseconds_of(horizon) - group.max_age_microseconds


def choose_all(state: GroupState, horizon: int) -> Choice | None:
    """Choose everything that is current, and all history that may go, as when a person asks for it."""
    chosen = [ref for ref in state.fragments if not ref.is_history or ref.is_outlived_at(horizon)]
    choice = _choice(state, chosen, "manual", horizon)
    return choice if choice.fragments or choice.erasures else None


def _choice(state: GroupState, fragments: Sequence[FragmentRef], reason: Reason, horizon: int) -> Choice:
    chosen = set(fragments)
    others = [fragment for fragment in state.fragments if fragment not in chosen]
    gone = gone_erasures(state.erasures, others, horizon)
    return Choice(tuple(fragments), reason, is_rooted(others, horizon), gone)


def _past(history: Sequence[FragmentRef], horizon: int, strategy: Strategy) -> list[FragmentRef]:
    """Return history that may go, or else the newest runs of it, if they are many.

    What is merged is needed as long as the longest needed of it. So it has to be the newest: what was needed no longer
    than something that is left as it is would come back without that.
    """
    gone = [ref for ref in history if ref.is_outlived_at(horizon)]
    if gone:
        return gone
    runs = [[ref for ref in history if ref.history_txn == txn] for txn in {ref.history_txn for ref in history}]
    runs.sort(key=lambda run: -run[0].history_txn)
    if len(runs) < strategy.runs_min:
        return []
    count, total = 1, _bytes(runs[0])
    for at, run in enumerate(runs[1:], start=1):
        if _bytes(run) > strategy.size_ratio * total and len(runs) < strategy.runs_max:
            break
        count, total = at + 1, total + _bytes(run)
    return [ref for run in runs[:count] for ref in run] if count > 1 else []


def _runs_beside(fragments: Sequence[FragmentRef], columns: Collection[int]) -> int:
    """Return how many runs a merge may leave beside the one that it is for, where strands have to stay apart."""
    wanted = frozenset(columns)
    known = {frozenset(fragment.columns) for fragment in fragments if fragment.columns is not None}
    scopes = [scope for scope in known if not wanted or not wanted <= scope]
    if not scopes:
        return 0
    strands = {tuple(column in scope for scope in scopes) for column in wanted}
    return len(strands) + any(scope.isdisjoint(wanted) for scope in scopes)


def _may_be_joined(
    fragments: Sequence[FragmentRef], columns: Collection[int], horizon: int, strategy: Strategy
) -> bool:
    """Tell whether strands lie too deep, and a merge of everything is rid of all that keeps them apart."""
    erasing = [fragment for fragment in fragments if fragment.has_erasures]
    if not erasing or any(fragment.txn_max > horizon for fragment in erasing):
        return False
    return _runs_beside(fragments, columns) > 0 and len(runs_of(fragments)) >= strategy.runs_min


def _too_deep(
    fragments: Sequence[FragmentRef], strategy: Strategy, columns: Collection[int] | None
) -> list[FragmentRef]:
    """Return what to merge as it lies too deep; `columns` are given where erasures may keep strands of them apart."""
    runs = sorted(runs_of(fragments), key=_bytes)
    beside = 0 if columns is None else _runs_beside(fragments, columns)
    if len(runs) - beside < strategy.runs_min:
        return []
    count, total = 1, _bytes(runs[0])
    for at, run in enumerate(runs[1:], start=1):
        if _bytes(run) <= strategy.size_ratio * total:
            count = at + 1
        total += _bytes(run)
    if len(runs) - beside >= strategy.runs_max:
        count = max(count, len(runs) - strategy.runs_min + 2)
    chosen = _overlapping([fragment for run in runs[:count] for fragment in run])
    beside = 0 if columns is None else _runs_beside(chosen, columns)
    if beside and len(runs_of(chosen)) <= 1 + beside:
        return []  # or what comes of it would be chosen again, for ever
    return chosen


def _overlapping(fragments: Sequence[FragmentRef]) -> list[FragmentRef]:
    """Leave out fragments that none of the others overlaps: copying them would gain nothing."""
    ordered = sorted(fragments, key=lambda one: (one.first, one.last))
    kept = []
    reach: bytes | None = None  # how far the fragments before this one go
    for at, fragment in enumerate(ordered):
        after = ordered[at + 1].first if at + 1 < len(ordered) else None
        if (reach is not None and fragment.first <= reach) or (after is not None and after <= fragment.last):
            kept.append(fragment)
        reach = fragment.last if reach is None else max(reach, fragment.last)
    return kept


def _erased(state: GroupState, horizon: int, strategy: Strategy) -> list[FragmentRef] | None:
    """Return what to rewrite without what is erased; nothing, if only a range erasure has to go; None to do nothing."""
    old = [erasure for erasure in state.erasures if erasure.txn <= horizon]
    current = state.current
    hidden = [f for f in current if any(has_hidden(erasure, f) for erasure in old)]
    if hidden or gone_erasures(old, state.fragments, horizon):
        return hidden
    erased = [f for f in current if f.has_erasures and f.txn_max <= horizon]
    if erased and _bytes(erased) >= strategy.erased_share * _bytes(current):
        return list(current)
    return None


def _surplus(
    fragments: Sequence[FragmentRef], horizon: int, strategy: Strategy, *, is_cells: bool
) -> list[FragmentRef]:
    """Return what to rewrite without versions that nobody can see. What was rewritten so far is not looked at again."""
    stale = [f for f in fragments if f.surplus and f.settled_txn < f.txn_max <= horizon]
    surplus = sum(fragment.surplus for fragment in stale)
    if surplus < max(strategy.surplus_min, strategy.surplus_share * sum(fragment.rows for fragment in stale)):
        return []
    if not is_cells:
        return stale
    older = [fragment for fragment in fragments if fragment.txn_min <= horizon]
    return older if _bytes(stale) >= strategy.surplus_share * _bytes(older) else []


def _aged(free: Sequence[FragmentRef], fragments: Sequence[FragmentRef], expired_before: int) -> list[FragmentRef]:
    """Return what nobody can see any more; not where there are erasures, for those would stay.

    What lies over older records that stay is left too: if the limit were lifted, those would be seen in its place.
    """
    aged = [f for f in free if not f.has_erasures and microseconds_of(f.txn_max) < expired_before]
    while aged:
        staying = [f for f in fragments if f not in aged]
        gone = [f for f in aged if not any(_lies_over(f, other) for other in staying)]
        if len(gone) == len(aged):
            break
        aged = gone
    return aged


def _lies_over(fragment: FragmentRef, other: FragmentRef) -> bool:
    """Tell whether a fragment may have newer records of rows that another one has."""
    return other.txn_min <= fragment.txn_max and fragment.first <= other.last and other.first <= fragment.last


def _too_small(fragments: Sequence[FragmentRef], strategy: Strategy) -> list[FragmentRef]:
    for run in runs_of(fragments):
        together: list[FragmentRef] = []
        for fragment in run:
            if fragment.bytes * strategy.small_files_min > strategy.file_bytes:
                together = []
                continue
            together.append(fragment)
            if len(together) >= strategy.small_files_min:
                return together
    return []


def _bytes(fragments: Sequence[FragmentRef]) -> int:
    return sum(fragment.bytes for fragment in fragments)
