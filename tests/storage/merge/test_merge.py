"""The merge against the rules of the data model, and the cases that are worth a name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.model.projection import version_type
from ebla.storage.merge.merge import MergedCells, cells_as_they_are, merge_cells, merge_columns
from ebla.storage.merge.rules import Rules
from ebla.storage.record.records import TIMESTAMP_MAX, Run
from tests.support.records import (
    COLUMN_TYPES,
    IDS,
    Cell,
    ColumnsRecord,
    ColumnsRun,
    Range,
    all_rules,
    cell_runs,
    cells_batch,
    columns_runs,
    seen_cells,
    seen_columns,
)

# --- columns groups ------------------------------------------------------------------------------


def merged(runs: list[ColumnsRun], rules: Rules, ids: tuple[int, ...] = IDS) -> dict[bytes, dict[int, list[Any]]]:
    """Merge, and put the answer in the form of `seen_columns`."""
    types = {i: COLUMN_TYPES[i] for i in ids}
    answer = merge_columns([run.run() for run in runs], types, rules)
    other_way = merge_columns([run.run() for run in runs], types, rules, short_way=False)
    assert answer.rows.equals(other_way.rows)
    assert all(column.equals(other_way.columns[i]) for i, column in answer.columns.items())
    assert list(answer.columns) == list(ids)
    for field_id, column in answer.columns.items():
        kind = types[field_id]
        assert column.type == (kind if rules.versions == 1 else version_type(kind))
        assert len(column) == len(answer.rows)
        column.validate(full=True)
    rows = answer.rows.to_pylist()
    assert rows == sorted(set(rows))
    return {row: {i: _versions(answer.columns[i][at].as_py(), rules) for i in ids} for at, row in enumerate(rows)}


def _versions(found: Any, rules: Rules) -> Any:
    if rules.versions == 1:
        return found
    return [(version["value"], version["txn"]) for version in found]


def newest_only(seen: dict[bytes, dict[int, list[Any]]]) -> dict[bytes, dict[int, Any]]:
    """A reader of one version gets values: null where no version is left."""
    return {row: {i: versions[0][0] if versions else None for i, versions in of.items()} for row, of in seen.items()}


@given(columns_runs(), all_rules(), st.sets(st.sampled_from(IDS)).map(sorted).map(tuple))
@settings(deadline=None, max_examples=200)
def test_columns_are_merged_as_the_rules_say(runs: list[ColumnsRun], rules: Rules, ids: tuple[int, ...]) -> None:
    expected: Any = seen_columns(runs, ids, rules)
    if rules.versions == 1:
        expected = newest_only(expected)
    assert merged(runs, rules, ids) == expected


@given(columns_runs(), all_rules(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100)
def test_the_order_of_the_runs_does_not_matter(runs: list[ColumnsRun], rules: Rules, dice: Any) -> None:
    shuffled = list(runs)
    dice.shuffle(shuffled)
    assert merged(shuffled, rules) == merged(runs, rules)


def record(row: bytes, txn: int, *, erased: bool = False, sets: tuple[int, ...] | None = None, **values: Any) -> Any:
    given = tuple(values.get(f"c{i}") for i in IDS)
    return ColumnsRecord(row, txn << 10, erased, sets, given)


def run_of(*records: ColumnsRecord, ids: tuple[int, ...] = IDS) -> ColumnsRun:
    return ColumnsRun(tuple(records), ids)


class TestColumns:
    def test_a_partial_record_leaves_the_other_columns_as_they_were(self) -> None:
        old = run_of(record(b"a", 1, c3=1, c4="one"))
        new = run_of(record(b"a", 2, sets=(4,), c4="two"))
        assert merged([old, new], Rules(), (3, 4)) == {b"a": {3: 1, 4: "two"}}

    def test_a_column_that_is_set_to_null_reads_as_null_and_not_as_before(self) -> None:
        old = run_of(record(b"a", 1, c3=1))
        new = run_of(record(b"a", 2, sets=(3,), c3=None))
        assert merged([old, new], Rules(), (3,)) == {b"a": {3: None}}

    def test_a_record_that_sets_all_sets_only_the_columns_of_its_run(self) -> None:
        old = run_of(record(b"a", 1, c3=1, c4="one"))
        new = run_of(record(b"a", 2, c3=2), ids=(3,))
        assert merged([old, new], Rules(), (3, 4)) == {b"a": {3: 2, 4: "one"}}

    def test_a_row_that_sets_nothing_exists(self) -> None:
        assert merged([run_of(record(b"a", 1, sets=()))], Rules(), (3,)) == {b"a": {3: None}}

    def test_an_erased_row_is_gone_and_a_later_put_brings_back_only_what_it_sets(self) -> None:
        runs = [run_of(record(b"a", 1, c3=1, c4="one")), run_of(record(b"a", 2, erased=True))]
        assert merged(runs, Rules()) == {}
        runs.append(run_of(record(b"a", 3, sets=(3,), c3=3)))
        assert merged(runs, Rules(), (3, 4)) == {b"a": {3: 3, 4: None}}

    def test_a_range_erasure_hides_what_is_older_and_not_what_has_its_own_txn(self) -> None:
        erasure = Range(b"a", b"b", 5 << 10)
        for txn, visible in [(4, False), (5, True), (6, True)]:
            found = merged([run_of(record(b"a", txn, c3=1))], Rules(erasures=[erasure]))
            assert bool(found) == visible

    def test_a_range_erasure_after_the_snapshot_hides_nothing(self) -> None:
        rules = Rules(as_of=4 << 10, erasures=[Range(b"", None, 5 << 10)])
        assert merged([run_of(record(b"a", 3, c3=1))], rules, (3,)) == {b"a": {3: 1}}

    def test_a_snapshot_before_the_erasure_still_shows_the_row(self) -> None:
        runs = [run_of(record(b"a", 2, erased=True), record(b"a", 1, c3=1))]
        assert merged(runs, Rules(as_of=1 << 10), (3,)) == {b"a": {3: 1}}
        assert merged(runs, Rules(as_of=2 << 10), (3,)) == {}

    def test_rows_that_are_equal_in_their_first_eight_bytes_stay_apart(self) -> None:
        runs = [run_of(record(b"12345678b", 1, c3=1)), run_of(record(b"12345678a", 2, c3=2))]
        assert merged(runs, Rules(), (3,)) == {b"12345678a": {3: 2}, b"12345678b": {3: 1}}

    def test_a_column_that_no_run_has_is_null(self) -> None:
        assert merged([run_of(record(b"a", 1, c3=1), ids=(3,))], Rules(), (4,)) == {b"a": {4: None}}

    @pytest.mark.parametrize("versions", [1, 3])
    def test_no_runs_give_an_empty_answer_of_the_right_types(self, versions: int) -> None:
        rules = Rules(versions=versions)
        assert merged([], rules) == {}
        assert merged([run_of(record(b"a", 5, c3=1))], Rules(as_of=0, versions=versions)) == {}


# --- cells groups --------------------------------------------------------------------------------


def listed(answer: MergedCells) -> list[tuple[Any, ...]]:
    """Return merged cells as tuples, after checking that their parts fit together."""
    rows = answer.rows.to_pylist()
    assert rows == sorted(set(rows))
    assert sorted(set(answer.row_of.tolist())) == list(range(len(rows)))
    columns = [answer.family, answer.qualifier, answer.timestamp, answer.txn, answer.value]
    assert {len(column) for column in columns} == {len(answer.row_of)}
    return [
        (rows[number], *values)
        for number, *values in zip(answer.row_of.tolist(), *(c.to_pylist() for c in columns), strict=True)
    ]


@given(cell_runs(), all_rules())
@settings(deadline=None, max_examples=200)
def test_cells_are_merged_as_the_rules_say(runs: list[list[Cell]], rules: Rules) -> None:
    found = listed(merge_cells([Run(cells_batch(run)) for run in runs], rules))
    expected = [(c.row, c.family, c.qualifier, c.timestamp, c.txn, c.value) for c in seen_cells(runs, rules)]
    assert found == expected


@given(cell_runs(), st.integers(0, 5))
@settings(deadline=None, max_examples=100)
def test_cells_of_which_there_is_one_record_each_need_no_merge(runs: list[list[Cell]], cut: int) -> None:
    alone = seen_cells(runs, Rules())
    parts = [Run(cells_batch(part)) for part in (alone[:cut], alone[cut:]) if part]
    if parts:
        assert listed(cells_as_they_are(parts)) == listed(merge_cells(parts, Rules()))


def values_of(cells: list[Cell], rules: Rules | None = None) -> list[bytes]:
    ordered = sorted(cells, key=lambda cell: cell.order)
    return merge_cells([Run(cells_batch(ordered))], rules or Rules()).value.to_pylist()


def put(txn: int, stamp: int, value: bytes, family: str = "f", qualifier: str = "q") -> Cell:
    return Cell(b"a", family, qualifier, stamp, txn << 10, False, value)


def erase(txn: int, stamp: int = TIMESTAMP_MAX, family: str | None = "f", qualifier: str | None = "q") -> Cell:
    return Cell(b"a", family, qualifier, stamp, txn << 10, True, None)


class TestCells:
    def test_the_newest_timestamp_wins_whichever_was_committed_last(self) -> None:
        assert values_of([put(1, 9, b"nine"), put(2, 5, b"five")]) == [b"nine"]

    def test_with_equal_timestamps_the_newest_commit_replaces_the_older_one(self) -> None:
        cells = [put(1, 5, b"old"), put(2, 5, b"new")]
        assert values_of(cells, Rules(versions=5)) == [b"new"]

    def test_a_put_after_an_erasure_is_visible_whatever_its_timestamp(self) -> None:
        assert values_of([put(1, 5, b"old"), erase(2), put(3, 1, b"late")], Rules(versions=5)) == [b"late"]

    def test_an_erasure_with_a_timestamp_spares_newer_versions(self) -> None:
        cells = [put(1, 4, b"4"), put(1, 5, b"5"), put(1, 6, b"6"), erase(2, stamp=5)]
        assert values_of(cells, Rules(versions=5)) == [b"6"]

    @pytest.mark.parametrize(
        ("family", "qualifier", "left"),
        [("f", "q", [b"fp", b"gq"]), ("f", None, [b"gq"]), (None, None, [])],
    )
    def test_an_erasure_covers_a_cell_a_family_or_a_row(
        self, family: str | None, qualifier: str | None, left: list[bytes]
    ) -> None:
        cells = [put(1, 1, b"fp", "f", "p"), put(1, 1, b"fq", "f", "q"), put(1, 1, b"gq", "g", "q")]
        assert values_of([*cells, erase(2, family=family, qualifier=qualifier)]) == left

    def test_the_unnamed_family_is_not_the_whole_row(self) -> None:
        cells = [put(1, 1, b"x", "", "q"), put(1, 1, b"y", "f", "q"), erase(2, family="", qualifier=None)]
        assert values_of(cells) == [b"y"]

    def test_max_versions_counts_what_is_left_after_erasures(self) -> None:
        cells = [put(1, 1, b"1"), put(2, 2, b"2"), put(3, 3, b"3"), erase(4, stamp=1)]
        assert values_of(cells, Rules(versions=5, versions_kept=2)) == [b"3", b"2"]

    @pytest.mark.parametrize(
        ("both", "left"),
        [(False, [b"4"]), (True, [b"4", b"3"])],
    )
    def test_purge_by_age_and_count_is_joined_by_and_or_or(self, both: bool, left: list[bytes]) -> None:
        cells = [put(n, n, b"%d" % n) for n in (1, 2, 3, 4)]
        rules = Rules(versions=9, expired_before=4, versions_kept=2, purge_both=both)
        assert values_of(cells, rules) == left

    def test_nothing_left_is_an_empty_answer(self) -> None:
        assert listed(merge_cells([], Rules())) == []
        assert listed(merge_cells([Run(cells_batch([erase(1)]))], Rules())) == []
        answer = merge_cells([Run(cells_batch([put(1, 1, b"x")]))], Rules(as_of=0))
        assert listed(answer) == []
        assert answer.value.type == pa.binary()

    def test_a_run_with_one_txn_for_all_needs_no_column_for_it(self) -> None:
        old, new = [put(1, 1, b"old")], [put(2, 1, b"new")]
        runs = [Run(cells_batch(old, with_txn=False), 1 << 10), Run(cells_batch(new, with_txn=False), 2 << 10)]
        assert merge_cells(runs, Rules()).value.to_pylist() == [b"new"]
