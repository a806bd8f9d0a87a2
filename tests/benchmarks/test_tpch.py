"""TPC-H in its small form: all 22 answers, from a store one of whose tables was updated, as DuckDB gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ebla
import ebla.pipeline
from benchmarks.tpch_data import Answers, changed_lines, differences, make_tables, read, with_changes
from benchmarks.tpch_queries import TABLES, queries, tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALE = 0.01
QUERIES = queries(SCALE)
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="module")
def asked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SparkSession, Answers]]:
    """Views of a store whose lineitem was updated, and DuckDB with the same rows."""
    root = tmp_path_factory.mktemp("tpch")
    tables = {name: read(file) for name, file in make_tables(SCALE, root / "plain").items()}
    with ebla.open(root / "store") as db:
        for name, rows in tables.items():
            ebla.pipeline.load(db, name, rows, key=TABLES[name])
        changes = changed_lines(tables["lineitem"])
        db.table("lineitem").put(changes)
        db.table("lineitem").flush()
        frames = {name: db.spark(name) for name in tables}
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        # To compile a query takes longer than to answer it from so few rows.
        for option in INTERPRETED:
            spark.conf.set(option, INTERPRETED[option])
        yield spark, Answers({**tables, "lineitem": with_changes(tables["lineitem"], changes)})
        for option in INTERPRETED:
            spark.conf.unset(option)
        for name in frames:
            spark.catalog.dropTempView(name)


@pytest.mark.parametrize("query", QUERIES)
def test_an_updated_store_answers_as_duckdb_does(asked: tuple[Any, Answers], query: str) -> None:
    spark, answers = asked
    expected = answers.to(QUERIES[query])
    assert expected
    assert differences(spark.sql(QUERIES[query]).collect(), expected) == []


def test_a_query_names_the_tables_that_it_reads() -> None:
    assert tables_of(QUERIES["q6"]) == ["lineitem"]
    assert tables_of(QUERIES["q16"]) == ["supplier", "part", "partsupp"]


def test_answers_differ_by_a_row_or_a_value_and_not_by_rounding() -> None:
    assert differences([(1.0000000001, "a")], [(1, "a")]) == []
    assert differences([(1.1, "a")], [(1, "a")])
    assert differences([], [(1, "a")])


def test_changes_are_put_where_arrow_puts_them(tmp_path: Path) -> None:
    lines = read(make_tables(0.001, tmp_path)["lineitem"])
    changes = changed_lines(lines)
    changed = with_changes(lines, changes)
    assert changed["l_comment"].to_pylist()[::100] == changes["l_comment"].to_pylist()
    assert changed["l_comment"].to_pylist()[1] == lines["l_comment"].to_pylist()[1]
