"""A lookup file finds every row that its fragment has and no other, and tells when it is not what was written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.model.order import common_prefix_length
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.lookup.lookup_file import LookupFile
from ebla.storage.lookup.lookup_format import FORMAT_VERSION, Damaged, lookup_path
from ebla.storage.lookup.lookup_writer import write_lookup
from ebla.storage.lookup.row_encoding import RECORDS_MAX
from ebla.storage.lookup.row_values import Elsewhere
from tests.support.simulated_files import FaultPlan, SimulatedFiles

FRAGMENT = "fragments/t/f.parquet"
FIELDS = pa.schema([("_txn", pa.int64()), ("1", pa.string())])


def tables_of(rows: Sequence[bytes], portion: int) -> list[pa.Table]:
    """Return records, which are numbered, in portions."""
    numbers = range(len(rows))
    whole = pa.table(
        {"_row": pa.array(rows, pa.binary()), "_txn": [-n for n in numbers], "1": [f"value {n}" for n in numbers]}
    )
    return [whole.slice(at, portion) for at in range(0, len(rows), portion)]


def written(files: SimulatedFiles | LocalFiles, rows: Sequence[bytes], portion: int = 1_000) -> LookupFile:
    skip = common_prefix_length(rows[0], rows[-1])
    size = write_lookup(files, FRAGMENT, 77, tables_of(rows, portion), FIELDS, skip)
    assert size == files.size(lookup_path(FRAGMENT))
    return LookupFile(files, FRAGMENT, 77)


def expected(rows: Sequence[bytes]) -> dict[bytes, list[object]]:
    found: dict[bytes, list[object]] = {}
    for number, row in enumerate(rows):
        found.setdefault(row, [row]).extend([-number, f"value {number}"])
    return found


# Rows of few letters: many begin alike for longer than a word has bytes.
ROWS = st.lists(st.text("ab\0", max_size=14).map(str.encode), min_size=1, max_size=60).map(sorted)


@given(ROWS, st.lists(st.text("ab\0", max_size=14).map(str.encode)), st.integers(1, 7))
@settings(deadline=None, max_examples=200)
def test_every_row_is_found_with_all_its_records_and_no_other(
    rows: list[bytes], others: list[bytes], portion: int
) -> None:
    lookup = written(SimulatedFiles(), rows, portion)
    there = expected(rows)
    for row in [*there, *others]:
        assert lookup.find(row) == there.get(row)
    for row in [*there, *others]:
        assert list(lookup.rows_from(row)) == [values for key, values in there.items() if key >= row]


@pytest.mark.parametrize("prefix", [b"", b"x" * 20])
def test_rows_are_found_in_many_blocks_whether_their_words_tell_them_apart_or_not(
    tmp_path: Path, prefix: bytes
) -> None:
    rows = [b"0", *(prefix + b"%06d" % n for n in range(0, 20_000, 2)), b"z" * 3]
    lookup = written(LocalFiles(tmp_path), rows)
    there = expected(rows)
    asked = [*rows[::97], rows[-1], *(prefix + b"%06d" % n for n in range(1, 20_000, 974)), b"", b"zzzz", prefix]
    assert {row: lookup.find(row) for row in asked} == {row: there.get(row) for row in asked}
    assert sum(lookup.find(row) is not None for row in rows) == len(rows)


def test_a_row_with_very_many_records_is_left_to_the_fragment() -> None:
    rows = [b"a", *[b"b"] * (3 * RECORDS_MAX), b"c"]
    lookup = written(SimulatedFiles(), rows, 100)
    with pytest.raises(Elsewhere):
        lookup.find(b"b")
    assert lookup.find(b"a") is not None
    assert lookup.find(b"c") is not None


def test_a_flipped_byte_is_found_out_wherever_it_is() -> None:
    files = SimulatedFiles()
    rows = [b"%04d" % n for n in range(600)]
    there = expected(rows)
    written(files, rows)
    whole = files.read(lookup_path(FRAGMENT))
    refused = 0
    for at in range(0, len(whole), 61):
        files.put(lookup_path(FRAGMENT), whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            lookup = LookupFile(files, FRAGMENT, 77)
            assert all(lookup.find(row) == there[row] for row in rows)
        except Damaged:
            refused += 1
    assert refused == len(range(0, len(whole), 61))


def test_a_file_that_is_cut_is_found_out_also_while_it_is_open() -> None:
    files = SimulatedFiles()
    rows = [b"%04d" % n for n in range(600)]
    written(files, rows)
    whole = files.read(lookup_path(FRAGMENT))
    for size in (0, 1, 40, len(whole) // 2, len(whole) - 1):
        files.put(lookup_path(FRAGMENT), whole[:size])
        with pytest.raises(Damaged):
            LookupFile(files, FRAGMENT, 77)
    files.put(lookup_path(FRAGMENT), whole)
    lookup = LookupFile(files, FRAGMENT, 77)
    files.truncate(lookup_path(FRAGMENT), 100)
    with pytest.raises(Damaged):
        lookup.find(rows[-1])


@pytest.mark.parametrize(("fragment", "size"), [(FRAGMENT, 78), ("fragments/other/f.parquet", 77)])
def test_a_file_of_another_fragment_is_found_out(fragment: str, size: int) -> None:
    files = SimulatedFiles()
    written(files, [b"a"])
    with pytest.raises(Damaged):
        LookupFile(files, fragment, size)


def test_what_cannot_be_written_leaves_nothing() -> None:
    rows = [b"%04d" % n for n in range(5_000)]
    files = SimulatedFiles()
    written(files, rows)
    for number in range(len(files.record())):
        failing = SimulatedFiles(FaultPlan.fail_at(number, effect=0.5))
        with pytest.raises(OSError, match=r"."):
            written(failing, rows)
        left = [info.path for info in failing.list("lookup")]
        assert left in ([], [lookup_path(FRAGMENT)])
        if left:  # it was finished, and the failure was that of a step behind
            assert LookupFile(failing, FRAGMENT, 77).find(rows[-1]) is not None


def test_what_a_process_left_half_written_is_in_nobodys_way() -> None:
    files = SimulatedFiles()
    files.put(f"{lookup_path(FRAGMENT)}.new", b"half")
    assert written(files, [b"a"]).find(b"a") == [b"a", 0, "value 0"]
    assert [info.path for info in files.list("lookup")] == [lookup_path(FRAGMENT)]


def test_a_file_of_another_format_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFiles()
    monkeypatch.setattr("ebla.storage.lookup.lookup_writer.FORMAT_VERSION", FORMAT_VERSION - 1)
    with pytest.raises(Damaged, match=f"format {FORMAT_VERSION - 1}"):
        written(files, [b"a"])
