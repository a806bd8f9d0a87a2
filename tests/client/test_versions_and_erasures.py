"""Versions by `get`, and erasures that depend on what was read."""

from __future__ import annotations

import pytest

import ebla

SCHEMA = ebla.Schema(
    key={"k": "string"},
    groups=[
        ebla.Group("typed", columns={"n": "int64", "m": "int64"}, max_versions=3),
        ebla.Group("cells", families=["f"]),
    ],
)


@pytest.fixture
def table(db: ebla.Database) -> ebla.Table:
    return db.create_table("t", SCHEMA)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_get_gives_the_versions_that_a_scan_gives(table: ebla.Table, is_flushed: bool) -> None:
    txns = [table.put({"k": "a", "n": n, "f:x": str(n).encode()}) for n in range(5)]
    table.put({"k": "a", "m": 7})
    if is_flushed:
        table.flush()
    row = table.get("a", versions=2)
    assert row is not None
    assert [(v.value, v.txn) for v in row["n"]] == [(4, txns[4]), (3, txns[3])]
    assert [v.value for v in row["f:x"]] == [b"4", b"3"]
    assert [dict(row)] == list(table.scan(versions=2))
    assert row.txn >= txns[-1]
    assert [v.value for v in table.get("a", ["n"], versions=9, as_of=txns[2])["n"]] == [2, 1, 0]
    assert table.get("b", versions=2) is None
    assert table.get("a")["n"] == 4


@pytest.mark.parametrize("versions", [0, -1, "2", 1.5, True, None])
def test_versions_that_are_no_number_are_refused(table: ebla.Table, versions: object) -> None:
    with pytest.raises(ebla.RequestError, match="versions is a whole number"):
        table.get("a", versions=versions)


@pytest.mark.parametrize("columns", [None, ["n"], ["f:x"], ["n", "f"]])
def test_an_erasure_of_a_row_that_was_changed_since_is_refused(table: ebla.Table, columns: list[str] | None) -> None:
    read_at = table.put({"k": "a", "n": 1, "f:x": b"1"})
    table.put({"k": "a", "m": 2})
    with pytest.raises(ebla.Conflict):
        table.erase("a", columns, if_unchanged_since=read_at)
    row = table.get("a")
    assert (row["n"], row["f:x"]) == (1, b"1")
    table.erase("a", columns, if_unchanged_since=row.txn)
    after = table.get("a")
    assert (
        after is None if columns is None else after["n" if "n" in columns else "m"] == (None if "n" in columns else 2)
    )


def test_an_erasure_of_many_rows_erases_none_if_one_was_changed(table: ebla.Table) -> None:
    read_at = table.put([{"k": key, "n": 1} for key in "abc"])
    table.put({"k": "c", "n": 2})
    for columns in (None, ["n"]):
        with pytest.raises(ebla.Conflict, match="'c'"):
            table.erase_many(["a", "b", "c"], columns, if_unchanged_since=read_at)
    assert [row["n"] for row in table.scan()] == [1, 1, 2]
    table.erase_many(["a", "b"], if_unchanged_since=read_at)
    assert table.count() == 1


def test_a_wrong_txn_is_refused(table: ebla.Table) -> None:
    with pytest.raises(ebla.RequestError, match="if_unchanged_since is a txn"):
        table.erase("a", if_unchanged_since="monday")
