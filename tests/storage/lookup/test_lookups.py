"""The lookup files of a store: opened when they are asked for, let go of when they are damaged."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from ebla.storage.lookup.lookup_format import lookup_path
from ebla.storage.lookup.lookup_writer import write_lookup
from ebla.storage.lookup.lookups import NO_LOOKUPS, Lookups
from tests.support.simulated_files import FaultPlan, SimulatedFiles

FIELDS = pa.schema([("1", pa.int64())])


def make(files: SimulatedFiles, fragment: str) -> None:
    write_lookup(files, fragment, 7, [pa.table({"_row": [b"a", b"b"], "1": [1, 2]})], FIELDS, 0)


def found(lookups: Lookups, fragment: str, row: bytes) -> object:
    answer = lookups.find(fragment, 7, row)
    return "ask the fragment" if answer is None else answer[1]


def test_a_row_is_found_where_there_is_a_file_and_the_fragment_is_asked_where_there_is_none() -> None:
    files = SimulatedFiles()
    make(files, "fragments/t/x.parquet")
    lookups = Lookups(files, 8)
    assert found(lookups, "fragments/t/x.parquet", b"b") == [b"b", 2]
    assert found(lookups, "fragments/t/x.parquet", b"c") is None
    assert found(lookups, "fragments/t/y.parquet", b"b") == "ask the fragment"
    assert NO_LOOKUPS.find("fragments/t/x.parquet", 7, b"b") is None
    assert lookups.uses() == {"fragments/t/x.parquet": 2}
    assert lookups.finds() == 2


def test_one_that_was_made_meanwhile_is_used_when_it_is_looked_for() -> None:
    files = SimulatedFiles()
    lookups = Lookups(files, 8)
    assert found(lookups, "fragments/t/x.parquet", b"b") == "ask the fragment"
    make(files, "fragments/t/x.parquet")
    assert lookups.look_for("fragments/t/x.parquet", 7) is not None
    assert found(lookups, "fragments/t/x.parquet", b"b") == [b"b", 2]


def test_one_that_another_process_made_is_used_when_its_rows_have_cost_enough() -> None:
    files = SimulatedFiles()
    lookups = Lookups(files, 8)
    assert found(lookups, "fragments/t/x.parquet", b"b") == "ask the fragment"
    make(files, "fragments/t/x.parquet")
    assert found(lookups, "fragments/t/x.parquet", b"b") == "ask the fragment", "not looked for each time"
    lookups.note_cost("fragments/t/x.parquet", 1, 10)
    assert found(lookups, "fragments/t/x.parquet", b"b") == [b"b", 2]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_file_is_removed_and_the_fragment_is_asked(is_open: bool) -> None:
    files = SimulatedFiles()
    make(files, "fragments/t/x.parquet")
    path = lookup_path("fragments/t/x.parquet")
    lookups = Lookups(files, 8)
    if is_open:
        assert found(lookups, "fragments/t/x.parquet", b"b") == [b"b", 2]
    files.truncate(path, 20)
    assert found(lookups, "fragments/t/x.parquet", b"b") == "ask the fragment"
    assert not files.exists(path)
    assert lookups.damaged_files == 1
    assert found(lookups, "fragments/t/x.parquet", b"b") == "ask the fragment"
    assert lookups.damaged_files == 1


def test_a_file_that_the_disk_does_not_give_is_not_used() -> None:
    files = SimulatedFiles()
    make(files, "fragments/t/x.parquet")
    files.plan = FaultPlan(reads={lookup_path("fragments/t/x.parquet"): errno.EIO})
    assert found(Lookups(files, 8), "fragments/t/x.parquet", b"b") == "ask the fragment"


def test_no_more_are_open_than_may_be_and_their_indexes_count_while_they_are() -> None:
    files = SimulatedFiles()
    held = 0

    def reserve(size_bytes: int) -> None:
        nonlocal held
        held += size_bytes

    lookups = Lookups(files, 2, reserve)
    names = [f"fragments/t/{n}.parquet" for n in range(3)]
    for name in names:
        make(files, name)
        assert found(lookups, name, b"a") == [b"a", 1]
    one = held // 2
    assert one > 0
    assert all(found(lookups, name, b"a") == [b"a", 1] for name in names)
    assert held == 2 * one
    lookups.forget(names[:1])
    lookups.close()
    assert held == 0


def test_what_rows_cost_makes_a_file_worth_it_once() -> None:
    lookups = Lookups(SimulatedFiles(), 8)
    for _ in range(9):
        lookups.note_cost("x", 100, 10)
    assert lookups.take_worth() == set()
    lookups.note_cost("x", 100, 10)
    assert lookups.take_worth() == {"x"}
    assert lookups.take_worth() == set()
    lookups.note_cost("x", 100, 99)
    assert lookups.take_worth() == set()  # it has to be paid for anew
