"""What a merge may rely on, given what is not merged with it: what lies below, between and beside. Pure.

    others      x    x                    x            fragments of the tablet and group that are no input
    inputs             o  o     o  o                   by txn
    rooted             nothing older of these rows is anywhere else
    dense              nothing of these rows lies between them
    present                        |                   from here on, current alone is enough

**Rooted** (`is_rooted`): an erasure may go if nothing that it hides is in another file. **Dense** (`is_dense`): a
record may take over what older ones set if no other file has something in between.

**Present.** Up to which txn a merge puts current and history apart: as far as everything is in fragments. Readers at it
or later need only what is current; that is right by itself, for all current files together. So whether an erasure may
leave what is current depends on current files alone, as long as *whoever does without a file of history does without
all history that lies under it*: a file of history is needed as long as any other that is there already.

A record in history was replaced by others that are at most as new as its `history_txn`. If all of those are among the
inputs of a merge, or what replaced them, it is as good as between none of them (`_agrees`). If not, a record that takes
over older values would pass it by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebla.metadata.values.table_metadata import FragmentRef, RangeErasure

__all__ = [
    "Present",
    "gone_erasures",
    "has_hidden",
    "has_roots",
    "is_dense",
    "is_rooted",
    "needed_until",
    "present_of",
]


@dataclass(frozen=True, slots=True)
class Present:
    """Up to which txn a merge puts current and history apart, 0 for not at all, and until when history is needed.

    `is_rooted` says that no other current file has anything as old as that. With a `history_txn` and no `txn`, all of
    the inputs are history.
    """

    txn: int = 0
    is_rooted: bool = False
    history_txn: int = 0


def present_of(
    inputs: Sequence[FragmentRef],
    others: Sequence[FragmentRef],
    erasures: Sequence[RangeErasure],
    horizon: int,
    unflushed: int | None,
) -> Present:
    """Return how a merge puts current and history apart; `unflushed` is the oldest txn that is in no fragment, if any.

    Range erasures are counted in as far as no other current file is older than they are: what they hide is history.
    """
    current = [ref for ref in inputs if not ref.is_history]
    if not current:
        return Present(history_txn=max((ref.history_txn for ref in inputs), default=0))
    newest = max(ref.txn_max for ref in current)
    following = [ref.txn_min for ref in others if not ref.is_history and ref.txn_min > newest]
    if unflushed is not None:
        following.append(unflushed)
    txn = max([newest, *(e.txn for e in erasures if all(e.txn < other for other in following))])
    if unflushed is not None:
        txn = min(txn, unflushed - 1)
    if txn <= horizon:
        return Present()
    return Present(txn, has_roots(inputs, others, txn, horizon), needed_until(others, txn, horizon))


def has_roots(inputs: Sequence[FragmentRef], others: Sequence[FragmentRef], present: int, horizon: int) -> bool:
    """Tell whether no current file but the inputs of a merge has anything up to the present."""
    oldest = min(ref.txn_min for ref in inputs)
    return all(
        ref.is_outlived_at(horizon) or _agrees(ref, oldest, present) if ref.is_history else ref.txn_min > present
        for ref in others
    )


def needed_until(others: Sequence[FragmentRef], present: int, horizon: int) -> int:
    """Return until when history that a merge puts apart is needed: not less than any that is there."""
    return max([present, *(ref.history_txn for ref in others if not ref.is_outlived_at(horizon))])


def is_rooted(others: Sequence[FragmentRef], horizon: int) -> bool:
    """Tell whether nothing but the inputs of a merge has anything that an erasure up to the horizon may hide."""
    return all(ref.txn_min > horizon or ref.is_outlived_at(horizon) for ref in others)


def is_dense(inputs: Sequence[FragmentRef], others: Sequence[FragmentRef], unflushed: int | None) -> bool:
    """Tell whether nothing but the inputs has records of the tablet with a txn among theirs.

    `others` are the other fragments of the tablet and group, `unflushed` is the oldest txn that is in none, if any.
    """
    if not inputs:
        return False
    oldest, newest = min(ref.txn_min for ref in inputs), max(ref.txn_max for ref in inputs)
    if unflushed is not None and unflushed <= newest:
        return False
    return all(_agrees(ref, oldest, newest) for ref in others)


def _agrees(ref: FragmentRef, oldest: int, newest: int) -> bool:
    """Tell whether a file has nothing with a txn between two; of history, nothing that a record there would miss."""
    return ref.txn_max < oldest or ref.txn_min > newest or 0 < ref.history_txn <= newest


def gone_erasures(
    erasures: Sequence[RangeErasure], others: Sequence[FragmentRef], horizon: int
) -> tuple[RangeErasure, ...]:
    """Return the range erasures that hide nothing any more, once the inputs of a merge are without what they hid."""
    staying = [ref for ref in others if not ref.is_outlived_at(horizon)]
    return tuple(
        erasure for erasure in erasures if erasure.txn <= horizon and not any(has_hidden(erasure, o) for o in staying)
    )


def has_hidden(erasure: RangeErasure, fragment: FragmentRef) -> bool:
    """Tell whether some record of the fragment may be under the erasure."""
    is_in_range = fragment.last >= erasure.first and (erasure.last is None or fragment.first < erasure.last)
    return is_in_range and fragment.has_hidden_by(erasure.txn)
