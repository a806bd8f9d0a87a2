"""What may have survived: given which steps returned, raised or were under way, the states that a store may be in.

    step      1 put durable   2 put none   3 put none   4 put durable       5 create
    status    acked           acked        acked        raised              under way
    must be   in              in or out, but never 3 without 2, nor 4 without 3     in or out

Commits survive as a prefix: a commit that is there has all commits before it. One that was acknowledged as logged or
durable is there. Tables come and go by METADATA, each by itself. A step that was refused (`RequestError`) did nothing.

A store's contents are compared by value with the reference model, all versions of every column, so that a record that
is replayed though it was flushed shows up as one version too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, TypeAlias

from tests.crash.story import Step
from tests.reference.reference import ReferenceStore

Contents: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]

ACKED, RAISED, REFUSED, BEGUN, IN, OUT = "acked", "raised", "refused", "begun", "in", "out"
VERSIONS = 10


@dataclass
class Journal:
    """The statuses of the steps so far; the last may still be under way."""

    steps: Sequence[Step]
    statuses: list[str] = field(default_factory=list)

    def begin(self) -> Step:
        step = self.steps[len(self.statuses)]
        self.statuses.append(BEGUN)
        return step

    def end(self, status: str) -> None:
        self.statuses[-1] = status

    def settle(self, included: Sequence[bool]) -> None:
        """Take what was found in a store that was opened anew as what happened."""
        self.statuses[:] = [IN if there else OUT for there in included]

    def possible(self) -> Iterator[tuple[bool, ...]]:
        """Yield every set of steps that may have taken effect, the most likely first."""
        return possible(self.steps, self.statuses)


def possible(steps: Sequence[Step], statuses: Sequence[str]) -> Iterator[tuple[bool, ...]]:
    """Yield every set of steps that may have taken effect, the most likely first."""
    begun = list(zip(steps, statuses, strict=False))
    # The last step whose return says that all commits before it, and it itself, are on disk.
    settled = max((i for i, (step, s) in enumerate(begun) if s in (ACKED, IN) and _syncs(step)), default=-1)
    fixed: list[bool | None] = []
    for i, (step, status) in enumerate(begun):
        if status in (REFUSED, OUT):
            fixed.append(False)
        elif step.kind in ("other", "reopen") or status == IN:
            fixed.append(True)
        elif step.kind == "commit":
            fixed.append(True if status == ACKED and i <= settled else None)
        else:
            fixed.append(True if status == ACKED else None)
    # A commit that raised before a later one was acknowledged may be in or out by itself.
    commits = [i for i, there in enumerate(fixed) if there is None and steps[i].kind == "commit" and i > settled]
    others = [i for i, there in enumerate(fixed) if there is None and i not in commits]
    assert len(others) <= 12, f"too much is unknown: {[steps[i].name for i in others]}"
    for choice in product((True, False), repeat=len(others)):
        for count in range(len(commits), -1, -1):
            chosen = [there is True for there in fixed]
            for i, there in zip(others, choice, strict=True):
                chosen[i] = there
            for i in commits[:count]:
                chosen[i] = True
            yield tuple(chosen)


def _syncs(step: Step) -> bool:
    return step.is_synced and (step.kind == "commit" or step.name == "sync")


class Expectations:
    """The reference model's contents for sets of steps, worked out once each."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self.contents = lru_cache(maxsize=None)(self._contents)

    def _contents(self, included: tuple[bool, ...]) -> Contents:
        store = ReferenceStore()
        for number, (step, there) in enumerate(zip(self._steps, included, strict=False), start=1):
            if not there:
                continue
            if step.kind == "create":
                assert step.schema is not None
                if step.table in store.tables():
                    store.drop_table(step.table)  # a drop whose outcome was unknown, seen from behind it
                store.create_table(step.table, step.schema)
            elif step.kind == "clone":
                if step.table in store.tables():
                    store.drop_table(step.table)
                if step.origin in store.tables():
                    store.clone_table(step.origin, step.table)
            elif step.kind == "drop":
                if step.table in store.tables():
                    store.drop_table(step.table)
            elif step.model is not None and step.table in store.tables():
                step.model(store.table(step.table), number << 40)
        return {
            name: [
                by_value(row, store.table(name).schema.key_names) for row in store.table(name).scan(versions=VERSIONS)
            ]
            for name in store.tables()
        }

    def explain(self, found: Contents, statuses: Sequence[str]) -> tuple[bool, ...] | None:
        """Return the steps that explain what was found, or None if no allowed set of steps does."""
        for included in possible(self._steps, statuses):
            if self.contents(included) == found:
                return included
        return None


def by_value(row: Mapping[str, Any], key_names: Sequence[str]) -> dict[str, Any]:
    """Return a row with the values of its versions alone, and without what has none."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if name in key_names:
            shown[name] = value
        elif value:
            shown[name] = [version.value for version in value]
    return shown
