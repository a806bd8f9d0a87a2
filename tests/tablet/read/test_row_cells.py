"""The newest cells of one row are those that the merge shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import ebla
from ebla.model.ranges import KeyRange
from ebla.storage.merge.rules import Rules
from ebla.storage.record.records import Run
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.row_cells import CELL_RECORDS_MAX, cell_lists, newest_cells
from ebla.tablet.read.row_reader import RowReader
from tests.support.records import Cell, all_rules, cell_runs, cells_batch, seen_cells


@given(cell_runs(), all_rules())
@settings(deadline=None, max_examples=200)
def test_the_newest_cells_of_a_row_are_those_that_a_reader_sees(runs: list[list[Cell]], rules: Rules) -> None:
    newest = Rules(rules.as_of, rules.erasures, 1, rules.expired_before, rules.versions_kept, rules.purge_both)
    shown = seen_cells(runs, newest)
    for row in {cell.row for run in runs for cell in run}:
        own = [[cell for cell in run if cell.row == row] for run in runs]
        covering = [e.txn for e in rules.erasures if e.txn <= rules.as_of and KeyRange(e.first, e.last).contains(row)]
        found = newest_cells(
            [cell_lists(Run(cells_batch(run))) for run in own if run],
            as_of=rules.as_of,
            erased_at=max(covering, default=0),
            expired_before=newest.expired_before if newest.expires_alone else None,
        )
        assert found == {(c.family, c.qualifier): c.value for c in shown if c.row == row}


def test_a_row_with_many_records_is_left_to_the_merge() -> None:
    cells = [Cell(b"a", "f", "q", stamp, stamp, False, b"") for stamp in range(CELL_RECORDS_MAX + 1)]
    assert newest_cells([cell_lists(Run(cells_batch(cells)))], as_of=9) is None
    assert newest_cells([cell_lists(Run(cells_batch(cells[1:])))], as_of=9) == {("f", "q"): b""}


# --- in a store ----------------------------------------------------------------------------------

SCHEMA = ebla.Schema(
    key={"k": "string", "named:n": "int64"},
    groups=[
        ebla.Group("typed", columns={"n": "int64", "f:typed": "string", "list": "list<int64>"}),
        ebla.Group("cells", families=["f", "g"]),
        ebla.Group("short", families=["h"], max_versions=2, max_age="1h"),
        ebla.Group("rest", families=["*"]),
    ],
)
COLUMNS: list[list[str] | None] = [
    None,
    [],
    ["k"],
    ["n"],
    ["f:a"],
    ["f:a", "n", "g:"],
    ["h:"],
    ["other:x"],
    ["f:a", "g:a"],
    ["f:typed"],
]


def _fill(table: ebla.Table) -> None:
    key = {"k": "a", "named:n": 1}
    table.put({**key, "n": 1, "f:a": b"1", "f:b": b"2", "g:a": b"3", "h:x": b"4", "other:x": b"5", ":plain": b"6"})
    table.put({**key, "f:typed": "t", ":n": b"as a column is called", "list": [1]})
    table.put_cells([{**key, "family": "f", "qualifier": "typed", "value": b"in the way"}])
    table.put_cells([{**key, "family": "f", "qualifier": "a", "value": b"old", "timestamp": 1}])
    table.put_cells([{**key, "family": "h", "qualifier": "old", "value": b"expired", "timestamp": 1}])
    table.put({"k": "b", "named:n": 1, "n": 1})
    table.put({"k": "c", "named:n": 1, "f:a": b"1"})
    table.erase(("c", 1))
    table.put({"k": "d", "named:n": 1, "other:x": b"1", "f:b": b"2"})
    table.erase(("d", 1), columns=["other:"])
    table.put({"k": "e", "named:n": 1, "f:a": b"1", "n": 1})
    table.erase_range(("e",))
    table.put({"k": "e", "named:n": 1, "f:b": b"after"})


@pytest.mark.parametrize("flushed", ["not", "all", "between"])
def test_a_row_of_cells_is_got_as_the_merge_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: str
) -> None:
    with ebla.open(tmp_path, settings=ebla.Settings(background_compaction=False)) as db:
        table = db.create_table("t", SCHEMA)
        _fill(table)
        if flushed != "not":
            table.flush()
        if flushed == "between":
            db.alter_table("t", rename={"g": "gg"}, drop_families=["gg"], move={"f": "rest"})
            table.put({"k": "a", "named:n": 1, "f:c": b"later", "n": 2})
            table.erase(("a", 1), columns=["f:b"])
        asked = [
            [name.replace("g:", "gg:") if flushed == "between" else name for name in columns or ()]
            if columns is not None
            else None
            for columns in COLUMNS
        ]
        keys = [(k, 1) for k in "abcdef"]
        txn = table.scan().txn
        short = [table.get(key, columns, as_of=txn) for key in keys for columns in asked]
        monkeypatch.setattr(RowReader, "_get_cells", lambda *_: None)
        merged = [table.get(key, columns, as_of=txn) for key in keys for columns in asked]
        assert short == merged
        assert [list(row or ()) for row in short] == [list(row or ()) for row in merged]
        assert any(row is None for row in short)
        assert table.get(("a", 1))["f:typed"] == "t"


def test_a_row_of_few_cells_is_got_without_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("merged")

    with ebla.open(tmp_path) as db:
        table = db.create_table("t", SCHEMA)
        _fill(table)
        monkeypatch.setattr(RowReader, "read_one", refuse)
        assert table.get(("a", 1), ["f:a", "other:"]) == {"k": "a", "named:n": 1, "f:a": b"1", "other:x": b"5"}
        assert table.get(("e", 1), ["n", "f:"]) == {"k": "e", "named:n": 1, "n": None, "f:b": b"after"}
        table.flush()
        assert table.get(("c", 1)) is None


def test_a_short_scan_of_rows_of_many_cells_reads_one_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = []
    read = Reader.read

    def counted(*given: Any) -> Any:
        windows.append(given)
        return read(*given)

    with ebla.open(tmp_path) as db:
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", families=["f", "*"])]))
        table.put([{"k": n, **{f"f:{q}": b"%d" % n for q in range(8)}, "o:x": b"x"} for n in range(500)])
        monkeypatch.setattr(Reader, "read", counted)
        for _ in range(2):
            windows.clear()
            assert [row["k"] for row in table.scan(100, limit=20)] == list(range(100, 120))
            assert len(windows) == 1
            table.flush()
