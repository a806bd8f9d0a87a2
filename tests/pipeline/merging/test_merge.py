"""MERGE, UPDATE and DELETE: what they change, what they count, what they refuse, and what others do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ebla
import ebla.pipeline
from ebla.errors import Conflict, InvalidBatch, InvalidKey, RequestError, UnknownTable
from ebla.pipeline.merging import merge as merging
from ebla.pipeline.merging import target_rows
from tests.pipeline.tables import fragment_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = ebla.Schema(key={"id": "int64"}, columns={"n": "int64", "state": "string"})


@pytest.fixture
def orders(db: ebla.Database) -> ebla.Table:
    table = db.create_table("orders", ORDERS, splits=[(5,)])
    table.put([{"id": key, "n": key, "state": "new"} for key in range(10)])
    return table


def rows(table: ebla.Table) -> dict[int, tuple[int | None, str | None]]:
    return {row["id"]: (row["n"], row["state"]) for row in table.scan()}


BEFORE: dict[int, tuple[int | None, str | None]] = {key: (key, "new") for key in range(10)}
SOURCE = {"id": [8, 3, 20], "n": [80, 30, 200]}
FORMS: dict[str, Callable[[dict[str, list[int]]], Any]] = {
    "arrow": pa.table,
    "batch": lambda columns: pa.record_batch(columns),
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_there_is_updated_and_what_is_not_inserted(db: ebla.Database, orders: ebla.Table, form: str) -> None:
    done = ebla.pipeline.merge(db, "orders", FORMS[form](SOURCE), on="id")
    assert (done.updated, done.inserted, done.deleted, done.attempts) == (2, 1, 0, 1)
    assert rows(orders) == BEFORE | {3: (30, "new"), 8: (80, "new"), 20: (200, None)}
    assert {row["n"] for row in orders.scan(as_of=done.txn - 1)} == set(range(10))


def test_a_merge_is_one_commit_over_all_tablets(db: ebla.Database, orders: ebla.Table) -> None:
    done = ebla.pipeline.merge(db, "orders", pa.table(SOURCE), when_matched="delete")
    assert (done.updated, done.inserted, done.deleted) == (0, 1, 2)
    assert [row["id"] for row in orders.scan(as_of=done.txn)] == [0, 1, 2, 4, 5, 6, 7, 9, 20]
    assert len(list(orders.scan(as_of=done.txn - 2))) == 10


def test_rows_that_the_source_lacks_are_deleted(db: ebla.Database, orders: ebla.Table) -> None:
    done = ebla.pipeline.merge(
        db, "orders", pa.table(SOURCE), when_matched=None, when_not_matched=None, when_not_matched_by_source="delete"
    )
    assert (done.deleted, sorted(rows(orders))) == (8, [3, 8])


def test_a_merge_works_on_a_store_that_is_open_elsewhere(root: str) -> None:
    with ebla.open(root) as db:
        db.create_table("orders", ORDERS).put([{"id": 3, "n": 3}])
    assert ebla.pipeline.merge(root, "orders", pa.table(SOURCE)).inserted == 2
    with ebla.open(root) as db:
        assert ebla.pipeline.merge(root, "orders", pa.table(SOURCE)).updated == 3  # by the mail to whoever has it open
        assert rows(db.table("orders"))[3] == (30, None)


def test_a_merge_that_changes_nothing_commits_nothing(db: ebla.Database, orders: ebla.Table) -> None:
    before = orders.stats()["files"] if "files" in orders.stats() else len(orders.files())
    done = ebla.pipeline.merge(db, "orders", pa.table({"id": [99], "n": [1]}), when_not_matched=None)
    assert (done.updated, done.inserted, done.deleted, done.files) == (0, 0, 0, 0)
    assert len(orders.files()) == before


def test_a_job_is_applied_once(db: ebla.Database, orders: ebla.Table) -> None:
    first = ebla.pipeline.merge(db, "orders", pa.table(SOURCE), job="monday")
    orders.put({"id": 3, "n": 0})
    again = ebla.pipeline.merge(db, "orders", pa.table(SOURCE), job="monday")
    assert again.repeated
    assert again.txn == first.txn
    assert rows(orders)[3][0] == 0


# --- refused -------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a key that comes twice": ({"source": pa.table({"id": [3, 4, 3], "n": [1, 2, 3]})}, InvalidBatch, "the row 3 of"),
    "a new key that comes twice": ({"source": pa.table({"id": [77, 77], "n": [1, 2]})}, InvalidBatch, "the row 77 of"),
    "a key that is null": ({"source": pa.table({"id": [3, None], "n": [1, 2]})}, InvalidKey, "'id' is null"),
    "no key": ({"source": pa.table({"n": [1]})}, RequestError, "no column 'id'"),
    "another key": ({"on": "n"}, RequestError, "matched by its key"),
    "an unknown column": ({"source": pa.table({"id": [1], "colour": ["red"]})}, RequestError, "colour"),
    "a value of another type": ({"source": pa.table({"id": [3], "n": ["many"]})}, InvalidBatch, "'n'"),
    "nothing to do": ({"when_matched": None, "when_not_matched": None}, RequestError, "does nothing"),
    "rows of Python": ({"source": [{"id": 1}]}, RequestError, "a merge takes"),
    "expressions without Spark": ({"when_matched": {"n": "1"}, "spark": False}, RequestError, "worked out by Spark"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_merged_is_refused_and_nothing_is_changed(
    db: ebla.Database, root: str, orders: ebla.Table, case: str
) -> None:
    arguments, kind, said = REFUSED[case]
    orders.flush()
    files = fragment_files(root, orders)
    with pytest.raises(kind, match=said):
        ebla.pipeline.merge(db, "orders", arguments.pop("source", pa.table(SOURCE)), **arguments)
    assert rows(orders) == BEFORE
    assert fragment_files(root, orders) == files


def test_a_table_that_is_not_there_and_unknown_keywords_are_told(db: ebla.Database, orders: ebla.Table) -> None:
    with pytest.raises(UnknownTable, match="nowhere"):
        ebla.pipeline.merge(db, "nowhere", pa.table(SOURCE))
    with pytest.raises(TypeError, match="when_missing"):
        ebla.pipeline.merge(db, "orders", pa.table(SOURCE), when_missing="delete")  # type: ignore[call-arg]


# --- others meanwhile ----------------------------------------------------------------------------


def interfering(monkeypatch: pytest.MonkeyPatch, interfere: Callable[[], object], times: int) -> None:
    """Have somebody write after the first reads of a merge."""
    original = target_rows.TargetRows.which_exist
    left = [times]

    def read(self: Any, keys: Any) -> Any:
        found = original(self, keys)
        if left[0]:
            left[0] -= 1
            interfere()
        return found

    monkeypatch.setattr(target_rows.TargetRows, "which_exist", read)


def test_a_merge_that_meets_a_conflict_begins_anew(
    db: ebla.Database, orders: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfering(monkeypatch, lambda: orders.erase(3), times=1)
    done = ebla.pipeline.merge(db, "orders", pa.table(SOURCE))
    assert (done.attempts, done.updated, done.inserted) == (2, 1, 2)
    assert rows(orders)[3] == (30, None)


def test_changes_of_other_rows_are_no_conflict(
    db: ebla.Database, orders: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfering(monkeypatch, lambda: orders.put({"id": 4, "n": 44}), times=1)
    assert ebla.pipeline.merge(db, "orders", pa.table(SOURCE)).attempts == 1
    assert rows(orders)[4][0] == 44


def test_a_merge_gives_up_when_others_are_always_faster(
    db: ebla.Database, root: str, orders: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.flush()
    files = fragment_files(root, orders)
    interfering(monkeypatch, lambda: orders.put({"id": 3, "n": 0}), times=1_000)
    with pytest.raises(Conflict, match="keep changing"):
        ebla.pipeline.merge(db, "orders", pa.table(SOURCE))
    assert rows(orders) == BEFORE | {3: (0, "new")}
    assert fragment_files(root, orders) == files


def test_a_schema_that_changes_meanwhile_begins_anew(
    db: ebla.Database, orders: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfering(monkeypatch, lambda: db.alter_table("orders", add_columns={"more": "int64"}), times=1)
    assert ebla.pipeline.merge(db, "orders", pa.table(SOURCE)).attempts == 2
    assert rows(orders)[20] == (200, None)


# --- on Spark ------------------------------------------------------------------------------------


def test_clauses_with_expressions(spark: SparkSession, db: ebla.Database, orders: ebla.Table) -> None:
    done = ebla.pipeline.merge(
        db,
        "orders",
        pa.table(SOURCE),
        when_matched=[("source.n > 50", "delete"), (None, {"n": "target.n + source.n", "state": "'more'"})],
        when_not_matched={"n": "source.n * 2"},
    )
    assert (done.updated, done.inserted, done.deleted) == (1, 1, 1)
    assert rows(orders) == {key: row for key, row in BEFORE.items() if key != 8} | {3: (33, "more"), 20: (400, None)}


@pytest.mark.parametrize("is_large", [False, True])
def test_a_frame_is_merged_whatever_its_size(
    spark: SparkSession, db: ebla.Database, orders: ebla.Table, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    monkeypatch.setattr(merging, "COLLECTED_BYTES_MAX", 0 if is_large else 1 << 40)
    source = spark.createDataFrame([(8, 80), (3, 30), (20, 200)], "id long, n long")
    done = ebla.pipeline.merge(
        db, "orders", source, when_matched=[("source.n = 80", {"state": "'eighty'"}), (None, "update")]
    )
    assert (done.updated, done.inserted) == (2, 1)
    assert rows(orders) == BEFORE | {3: (30, "new"), 8: (8, "eighty"), 20: (200, None)}


def test_a_large_frame_with_bad_keys_is_refused(
    spark: SparkSession, db: ebla.Database, orders: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "COLLECTED_BYTES_MAX", 0)
    with pytest.raises(InvalidBatch, match="the row 3 of"):
        ebla.pipeline.merge(db, "orders", spark.createDataFrame([(3, 1), (3, 2)], "id long, n long"))
    with pytest.raises(InvalidKey, match="'id' is null"):
        ebla.pipeline.merge(
            db, "orders", spark.createDataFrame([(3, 1), (None, 2)], "id long, n long"), when_not_matched=None
        )
    with pytest.raises(InvalidKey, match="cast it"):
        ebla.pipeline.merge(db, "orders", spark.createDataFrame([(3, 1)], "id int, n long"))
    assert rows(orders) == BEFORE


def test_rows_that_the_source_lacks_are_changed_by_conditions(
    spark: SparkSession, db: ebla.Database, orders: ebla.Table
) -> None:
    done = ebla.pipeline.merge(
        db,
        "orders",
        pa.table(SOURCE),
        when_not_matched_by_source=[("target.n = 1", {"state": "'gone'"}), ("target.n < 5", "delete")],
    )
    assert (done.updated, done.inserted, done.deleted) == (3, 1, 3)
    kept = {key: row for key, row in BEFORE.items() if key not in (0, 2, 4)}
    assert rows(orders) == kept | {1: (1, "gone"), 3: (30, "new"), 8: (80, "new"), 20: (200, None)}


def test_rows_are_updated_and_deleted_where_a_condition_is_true(
    spark: SparkSession, db: ebla.Database, orders: ebla.Table
) -> None:
    done = ebla.pipeline.update(db, "orders", "n >= 7", {"n": "n * 10", "state": "concat(state, '!')"})
    assert (done.updated, done.deleted) == (3, 0)
    assert rows(orders)[7] == (70, "new!")
    assert ebla.pipeline.delete(db, "orders", "n > 70 or state is null").deleted == 2
    assert sorted(rows(orders)) == list(range(8))
    with pytest.raises(RequestError, match="nope"):
        ebla.pipeline.delete(db, "orders", "nope = 1")
    with pytest.raises(RequestError, match="of the key"):
        ebla.pipeline.update(db, "orders", None, {"id": "1"})
    with pytest.raises(RequestError, match="set is a dict"):
        ebla.pipeline.update(db, "orders", None, {})


def test_rows_are_deleted_without_spark(db: ebla.Database, orders: ebla.Table) -> None:
    assert ebla.pipeline.delete(db, "orders", pc.field("n") == 5).deleted == 1
    assert ebla.pipeline.delete(db, "orders", "n < 3", spark=False).deleted == 3
    assert sorted(rows(orders)) == [3, 4, 6, 7, 8, 9]
    with pytest.raises(RequestError, match="where is"):
        ebla.pipeline.delete(db, "orders", 7)
