"""Rows that are updated again and again: a read of the newest version looks at few of the old ones."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebla
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.settings import KIB, Settings
from ebla.storage.fragment.fragment_file import FragmentFile
from ebla.storage.record.records import Block
from ebla.tablet.read.reader import Reader
from tests.direct.bulk_world import loaded, numbers
from tests.support.inside import engine_of, state_of

KEPT = Settings(background_compaction=False)
NO_HISTORY = Settings(background_compaction=False, history_seconds=0.0)
UPDATES = 3_000


def schema(**options: Any) -> ebla.Schema:
    columns = {"a": "int64", "b": "string", "c": "string"}
    return ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns=columns, block_bytes=4 * KIB, **options)])


def updated_often(db: ebla.Database, *, partial: bool, **options: Any) -> ebla.Table:
    """Rows 0 to 9, of which row 5 is updated many times."""
    table = db.create_table("t", schema(**options))
    table.put([{"k": k, "a": k, "b": f"b{k}", "c": f"c{k}"} for k in range(10)])
    for n in range(UPDATES):
        row = {"k": 5, "a": n} if n % 2 or partial else {"k": 5, "a": n, "b": f"b{n}", "c": f"c{n}"}
        table.put(row | ({"b": "late"} if n == 7 else {}), wait="none")
    db.sync()
    return table


def fragments(table: ebla.Table) -> list[FragmentRef]:
    return [f for t in state_of(table).view.metadata.tablets for state in t.groups for f in state.fragments]


def answers(table: ebla.Table, as_of: int | None = None) -> Any:
    return (
        [dict(row) for row in table.scan(as_of=as_of)],
        table.get(5, as_of=as_of),
        table.get_many([5, 4], as_of=as_of).to_pylist(),
        [dict(row) for row in table.scan(5, 6, versions=2, as_of=as_of)],
    )


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks were decoded in each go."""
    counts: list[int] = []
    whole = FragmentFile.read_blocks

    def counted(self: FragmentFile, begin: int, end: int, names: Any) -> Any:
        counts.append(end - begin)
        return whole(self, begin, end, names)

    monkeypatch.setattr(FragmentFile, "read_blocks", counted)
    return counts


@pytest.mark.parametrize("partial", [True, False], ids=["partial", "mixed"])
def test_all_reads_agree_before_and_after_a_flush_and_compactions(tmp_path: Path, partial: bool) -> None:
    with ebla.open(tmp_path, settings=KEPT) as db:
        table = updated_often(db, partial=partial)
        middle = next(iter(table.scan(5, 6, columns=["a"], versions=2)))["a"][0].txn - 1
        now, before = answers(table), answers(table, middle)
        assert now[1] == {"k": 5, "a": UPDATES - 1, "b": "late" if partial else f"b{UPDATES - 2}", "c": now[1]["c"]}
        assert before[1]["a"] == UPDATES - 2
        table.flush()
        assert (answers(table), answers(table, middle)) == (now, before)
        table.put({"k": 5, "c": "newest"})
        table.flush()
        table.compact()
        assert answers(table, middle) == before
        assert table.get(5) == now[1] | {"c": "newest"}
        assert sum(f.rows for f in fragments(table)) == UPDATES + 11, "history needs them all"


def test_the_newest_record_in_a_file_says_all_that_older_ones_do(tmp_path: Path, decoded: list[int]) -> None:
    with ebla.open(tmp_path, settings=KEPT) as db:
        table = updated_often(db, partial=True)
        table.flush()
        (ref,) = fragments(table)
        assert (ref.topped, ref.surplus) == (True, UPDATES)
    with ebla.open(tmp_path, settings=KEPT) as db:
        table = db.table("t")
        (blocks,) = [len(state_of(table).reader.fragment(ref).block_rows) for ref in fragments(table)]
        assert blocks > 10
        assert table.get(5)["b"] == "late"
        assert [row["a"] for row in table.scan()] == [0, 1, 2, 3, 4, UPDATES - 1, 6, 7, 8, 9]
        assert sum(decoded) <= 6, f"of {blocks} blocks"


def test_a_partial_record_and_what_it_updates_become_one_when_history_ends(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=NO_HISTORY) as db:
        table = updated_often(db, partial=True)
        expected = answers(table)
        table.compact()
        (ref,) = fragments(table)
        assert (ref.rows, ref.unique, ref.surplus) == (10, True, 0)
        assert answers(table) == expected
        table.put({"k": 3, "b": "new"})
        table.compact()
        (ref,) = fragments(table)
        assert (ref.rows, ref.has_partial) == (10, False)
        assert table.get(3) == {"k": 3, "a": 3, "b": "new", "c": "c3"}


def test_old_versions_go_by_themselves_when_history_ends(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=Settings(background_compaction=False, history_seconds=0.0)) as db:
        table = updated_often(db, partial=False)
        for n in range(3_000):
            table.put({"k": 5, "a": n}, wait="none")
        table.flush()
        compactor = engine_of(db).compactor
        while compactor.compact_next():
            pass
        assert compactor.tally.recent[-1].reason == "surplus"
        assert sum(f.rows for f in fragments(table)) == 10
        assert not compactor.compact_next(), "what was done is not done again"


def test_groups_that_keep_several_versions_are_left_as_they_are(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=KEPT) as db:
        table = updated_often(db, partial=True, max_versions="all")
        table.flush()
        table.compact()
        assert not any(f.topped for f in fragments(table))
        (row,) = table.scan(5, 6, versions=9)
        assert [v.value for v in row["b"]] == ["late", "b5"]
        assert [v.value for v in row["a"]][:2] == [UPDATES - 1, UPDATES - 2]


def test_a_bulk_commit_between_the_records_of_a_row_is_not_overridden(tmp_path: Path) -> None:
    """The newest record in memory must not take over what an older one set: the bulk commit set it later."""
    with ebla.open(tmp_path, settings=KEPT) as db:
        columns = {"a": "int64", "b": "string"}
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns=columns)]))
        table.put({"k": 1, "a": 1, "b": "b"})
        loaded(db, table, "job", numbers([1], add=100))
        table.put({"k": 1, "b": "newest"})
        expected = {"k": 1, "a": 101, "b": "newest"}
        assert table.get(1) == expected
        table.flush()
        assert table.get(1) == expected
        assert not fragments(table)[-1].topped
        table.compact()
        assert table.get(1) == expected
        assert list(table.scan()) == [expected]


def test_an_erasure_between_the_records_of_a_row_hides_what_is_below_it(tmp_path: Path) -> None:
    with ebla.open(tmp_path, settings=KEPT) as db:
        table = updated_often(db, partial=True)
        table.flush()
        table.put({"k": 5, "a": 1, "b": "below"})
        table.erase(5)
        for n in range(50):
            table.put({"k": 5, "a": n})
        table.put([{"k": 6, "a": 60}, {"k": 6, "a": 61}])
        table.erase_range(6, 7)
        table.put({"k": 6, "c": "only"})
        expected = [{"k": 5, "a": 49, "b": None, "c": None}, {"k": 6, "a": None, "b": None, "c": "only"}]
        for step in (lambda: None, table.flush, table.compact):
            step()
            assert [dict(row) for row in table.scan(5, 7)] == expected
            assert [table.get(5), table.get(6)] == expected
            assert table.get_many([5, 6]).drop_columns(["_found"]).to_pylist() == expected


@pytest.mark.parametrize("set_then", [{}, {"a": 1}, {"a": 1, "b": "new"}], ids=["nothing", "one", "two"])
@pytest.mark.parametrize("kept", [1, "all"])
def test_an_erasure_hides_what_is_below_it_whatever_is_set_above_it(tmp_path: Path, set_then: Any, kept: Any) -> None:
    with ebla.open(tmp_path, settings=KEPT) as db:
        table = db.create_table("t", schema(max_versions=kept))
        table.put({"k": 5, "c": "in an older file"})
        table.flush()
        table.put([{"k": 5, "a": 0, "b": "old", "c": "old"}, {"k": 6, "b": "partial"}])
        table.erase(5)
        for _ in range(20):
            table.put({"k": 5, **set_then})
        expected = {"k": 5, "a": None, "b": None, "c": None, **set_then}
        for step in (lambda: None, table.flush, table.compact):
            step()
            assert table.get(5, as_of=table.scan().txn) == expected
            assert list(table.scan(5, 6)) == [expected]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each step of a scan was taken: a fold read, a window merged, blocks decoded, a fold made."""
    counts: Counter[str] = Counter()

    def count(kind: type, name: str) -> None:
        whole = getattr(kind, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return whole(*arguments, **options)

        monkeypatch.setattr(kind, name, counted)

    for kind, name in ((Reader, "read_folded"), (Reader, "read"), (Reader, "_runs"), (FragmentFile, "read_blocks")):
        count(kind, name)
    return counts


@pytest.mark.parametrize("updates", [10, UPDATES])
def test_a_short_scan_at_a_hot_row_takes_the_same_steps_however_long_its_history_is(
    tmp_path: Path, work: Counter[str], updates: int
) -> None:
    def scanned(table: ebla.Table, first: int) -> Counter[str]:
        for _ in range(4):
            work.clear()
            rows = [row["a"] for row in table.scan(first, limit=10)]
            assert rows == [updates if k == 500 else k for k in range(first, first + 10)]
        return Counter(work)

    with ebla.open(tmp_path, settings=KEPT) as db:
        table = db.create_table("t", schema())
        table.put([{"k": k, "a": k, "b": f"b{k}", "c": f"c{k}"} for k in range(1_000)])
        table.flush()
        for n in range(1, updates + 1):
            table.put({"k": 500, "a": n}, wait="none")
        db.sync()
        assert scanned(table, 500) == {"read_folded": 1}
        table.flush()
        assert scanned(table, 500) == {"read_folded": 1}
    with ebla.open(tmp_path, settings=KEPT) as db:
        table = db.table("t")
        assert scanned(table, 500) == {"read_folded": 1}
        assert scanned(table, 495) == {"read_folded": 1}
        table.compact()
        # Where it is the last row of a block or a file, or the first, a scan over it goes on in the next one.
        for first in (500, 495):
            done = scanned(table, first)
            assert done.keys() == {"read_folded"}
            assert done["read_folded"] <= 2


def test_of_a_row_that_is_updated_all_the_time_few_blocks_in_memory_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ebla.open(tmp_path, settings=KEPT) as db:
        table = db.create_table("t", schema())
        table.put({"k": 5, "a": 0, "b": "here", "c": "here"})
        for n in range(12):
            table.put([{"k": 5, "a": n}, {"k": 6 + n, "a": n}])  # blocks of two rows, which are searched
        txn = table.scan().txn
        found = []
        find = Block.find
        monkeypatch.setattr(Block, "find", lambda block, row: found.append(block) or find(block, row))
        assert table.get(5, ["a", "c"], as_of=txn) == {"k": 5, "a": 11, "c": "here"}
        assert len(found) <= 2


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_row_in_memory_is_got_as_it_is_scanned_whatever_was_put_and_erased(data: st.DataObject) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as path,
        ebla.open(path, settings=KEPT) as db,
    ):
        table = db.create_table("t", schema(max_versions=data.draw(st.sampled_from([1, "all"]))))
        columns = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3)
        txns = []
        for _ in range(data.draw(st.integers(1, 10))):
            step = data.draw(st.sampled_from(["row", "row", "rows", "rows", "erase", "range", "flush"]))
            values = {name: n if name == "a" else str(n) for name, n in data.draw(columns).items()}
            if step == "row" and values:
                txns.append(table.put({"k": 5, **values}))
            elif step == "rows" and values:
                txns.append(table.put([{"k": k, **values} for k in (4, 5, 6)]))
            elif step == "erase":
                txns.append(table.erase(5))
            elif step == "range":
                txns.append(table.erase_range(5, 6))
            elif step == "flush":
                table.flush()
        for txn in txns:
            for wanted in (None, ["a"], ["b", "c"], ["c", "a"]):
                rows = list(table.scan(5, 6, columns=wanted, as_of=txn))
                assert table.get(5, wanted, as_of=txn) == (rows[0] if rows else None)
