"""The load itself: a store that keeps its word passes, and one that does not is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

import ebla
from tests.cluster.checked_load import CheckedLoad


def loaded(db: ebla.Database, operations: int = 400) -> CheckedLoad:
    load = CheckedLoad(db)
    load.start()
    load.wait_for(operations)
    load.stop()
    return load


@pytest.fixture
def db(tmp_path: Path) -> ebla.Database:
    return ebla.open(tmp_path / "data")


def test_a_store_that_keeps_its_word_passes(db: ebla.Database) -> None:
    with db:
        load = loaded(db)
        load.check()
        assert load.errors == []
        assert load.longest_pause_seconds() > 0


def test_a_row_of_a_chain_that_is_lost_is_missed(db: ebla.Database) -> None:
    with db:
        load = loaded(db)
        load.chains.erase(load._chains[0][-1])
        with pytest.raises(AssertionError, match="acknowledged rows are missing"):
            load.check()


def test_an_increment_that_is_lost_or_done_twice_is_told(db: ebla.Database) -> None:
    with db:
        load = loaded(db)
        for delta in (-1, 2):
            load.counters.increment(next(iter(load._added)), "n", delta)
            with pytest.raises(AssertionError, match="counter"):
                load.check()


def test_a_register_that_went_back_is_told(db: ebla.Database) -> None:
    with db:
        load = loaded(db)
        row = next(row for row, history in load._histories.items() if any(one.kind == "write" for one in history))
        load.registers.put({"k": row, "v": "of long ago"})
        with pytest.raises(AssertionError, match="no order explains"):
            load.check()
