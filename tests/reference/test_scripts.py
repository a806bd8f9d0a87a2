"""Scripts: encounters of store and model that chance arranges too rarely, written down step by step.

Most were found by the state machine, or by reading; each is the shortest way to say what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from ebla.model.declaration import Group, Schema

from .pair import ROOMY, Pair
from .strategies import ARROW_FORMS, Shape

Opened: TypeAlias = Callable[[Schema], Pair]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Open a store with one table ``t`` of a schema, beside its model."""
    pairs: list[Pair] = []

    def open_pair(schema: Schema) -> Pair:
        keys = tuple((key,) for key in (b"a", b"m", b"q", b"z"))
        pairs.append(Pair(tmp_path / str(len(pairs)), {"t": Shape("script", schema, keys)}, ROOMY))
        return pairs[-1]

    yield open_pair
    for both in pairs:
        both.database.close()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_range_erasure_is_a_change_to_every_row_in_it(opened: Opened, flushed: bool) -> None:
    both = opened(Schema(columns={"n": "int64"}))
    both.put("t", [{"row": b"q", "n": 1}])
    before = both.last_txn
    both.erase_range("t", None, None)
    if flushed:
        both.flush("t")
    both.put("t", [{"row": b"a", "n": 1}, {"row": b"z", "n": 1}])
    # Newer records lie around the row, but the newest that touched it is the erasure.
    both.put("t", [{"row": b"m", "n": 1}], if_unchanged_since=before)
    both.reopen()
    both.put("t", [{"row": b"m", "n": 1}], if_unchanged_since=before)
    both.check_all(deeply=True)


def test_a_row_that_was_read_before_expires_all_the_same(opened: Opened) -> None:
    both = opened(Schema(groups=[Group("main", columns={"n": "int64"}, max_age="1us")]))
    both.put("t", [{"row": b"a", "n": 1}])
    for _ in range(5):  # often enough to be kept by any cache
        both.check_get("t", (b"a",))
    both.put("t", [{"row": b"q", "n": 1}])
    both.check_get("t", (b"a",))
    both.check_get_many("t", [(b"a",), (b"q",)])
    both.check_all(deeply=True)


def test_a_row_is_shown_by_the_very_cells_asked_for(opened: Opened) -> None:
    both = opened(Schema(groups=[Group("events", families=["click", "view"])]))
    both.put("t", [{"row": b"a", "click:b": b"1"}, {"row": b"m", "click:a": b"2"}, {"row": b"q", "view:b": b"3"}])
    for _ in range(2):
        for columns in (["click:a", "view:b"], ["click:b", "view:a"], ["view:", "click:a"], ["view:a"]):
            both.check_scan("t", columns=columns)
            both.check_scan("t", columns=columns, versions=2, through="arrow")
            both.check_get("t", (b"a",), columns)
            both.check_get_many("t", [(b"a",), (b"m",), (b"q",)], columns)
        both.flush("t")


@pytest.mark.parametrize("form", ARROW_FORMS)
def test_of_rows_that_replace_each_other_the_last_is_left_in_any_form(opened: Opened, form: str) -> None:
    both = opened(Schema(groups=[Group("main", columns={"n": "int64"}), Group("events", families=["click"])]))
    rows = [
        {"row": b"a", "click:a": b"1", "click:b": None},
        {"row": b"m", "click:a": b"1", "click:b": b"1"},
        {"row": b"a", "click:a": None, "click:b": b"2"},
        {"row": b"m", "click:a": None, "click:b": None},
    ]
    both.put("t", [{"row": b"a", "n": 1, "click:c": b"0"}, {"row": b"m", "n": 1, "click:c": b"0"}])
    both.put("t", rows, form, replace=True)
    both.check_all()
    both.put("t", [{**row, "n": n} for n, row in enumerate(rows)], form, replace=True)
    both.check_all(deeply=True)


@pytest.mark.parametrize("flushed_before", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
def test_before_a_range_erasure_a_row_has_all_that_its_partial_records_set(
    opened: Opened, flushed_before: bool, compacted: bool
) -> None:
    """A file whose newest record of a row says everything must say so also to readers before a later erasure."""
    both = opened(Schema(columns={"n": "int64", "s": "string"}))
    both.put("t", [{"row": b"m", "n": None, "s": "old"}, {"row": b"q", "s": "old"}])
    if flushed_before:
        both.flush("t")
    both.put("t", [{"row": b"m", "n": 2}, {"row": b"q", "n": 2}])
    both.erase_range("t", (b"a",), (b"n",))
    both.put("t", [{"row": b"m", "n": 3}])
    both.erase_range("t", (b"q",), None)
    both.flush("t")
    both.check_all(deeply=True)
    if compacted:
        both.compact("t", forget=False)
    both.check_all(deeply=True)
