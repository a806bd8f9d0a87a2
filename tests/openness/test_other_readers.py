"""The data is open: DuckDB and Polars read the fragments of a table with nothing of Ebla's, and get the same rows."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ebla

SCHEMA = ebla.Schema(
    key={"user": "string", "day": "date32", "n": "int64"},
    groups=[
        ebla.Group(
            "typed",
            columns={
                "name": "string",
                "age": "int32",
                "score": "float64",
                "raw": "binary",
                "flag": "bool",
                "at": "timestamp[us]",
                "price": "decimal128(10, 2)",
                "tags": "list<string>",
                "place": "struct<x: int32, y: string>",
            },
            block_bytes=8 * 1024,
        ),
        ebla.Group("events", families=["click", "view"], block_bytes=8 * 1024),
    ],
)
FIRST = datetime.date(2026, 1, 1)
COLUMNS = ["user", "day", "n", "name", "age", "score", "raw", "flag", "at", "price", "tags", "place"]


def row(i: int) -> dict[str, Any]:
    """A row, with nulls here and there and negative numbers in the key."""
    return {
        "user": f"user\0{i % 7}" if i % 5 == 0 else f"user {i % 7}",
        "day": FIRST + datetime.timedelta(days=i % 11),
        "n": i - 400,
        "name": None if i % 3 == 0 else f"name {i % 13}",
        "age": i if i % 4 else None,
        "score": i / 7,
        "raw": bytes([i % 256]) * (i % 5),
        "flag": i % 2 == 0,
        "at": datetime.datetime(2026, 1, 1) + datetime.timedelta(microseconds=i),
        "price": decimal.Decimal(i) / 4,
        "tags": None if i % 6 == 0 else ["t"] * (i % 3),
        "place": None if i % 9 == 0 else {"x": i, "y": None if i % 2 else str(i)},
    }


def cells(i: int) -> dict[str, bytes]:
    return {f"click:page {i % 3}": b"%d" % i, **({"view:top": bytes([0, i % 256])} if i % 2 else {})}


class Flushed:
    """A table of two groups in its fragments, and the rows that `scan` gives."""

    def __init__(self, path: Path) -> None:
        with ebla.open(path) as db:
            table = db.create_table("users", SCHEMA, [("user 3",)])
            table.put([{**row(i), **cells(i)} for i in range(800)])
            table.flush()
            self.table_id = table.stats()["id"]
            self.ids = {column.name: column.id for group in table.schema.groups for column in group.columns}
            self.key_ids = {column.name: column.id for column in table.schema.key}
            self.typed = [
                {name: value for name, value in one.items() if name in COLUMNS} for one in table.scan(columns=COLUMNS)
            ]
            self.cells = sorted(
                (one["user"], one["day"], one["n"], *name.split(":", 1), value)
                for one in table.scan(columns=["click", "view"])
                for name, value in one.items()
                if ":" in name
            )
            files = [path / file for file in table.files()]
        footers = {file: footer_of(file) for file in files}
        self.typed_file = next(file for file, footer in footers.items() if footer["layout"] == "columns")
        self.cells_file = next(file for file, footer in footers.items() if footer["layout"] == "cells")


def footer_of(file: Path) -> dict[str, Any]:
    return json.loads(pq.read_metadata(file).metadata[b"ebla.fragment"])


@pytest.fixture(scope="module")
def flushed(tmp_path_factory: pytest.TempPathFactory) -> Flushed:
    return Flushed(tmp_path_factory.mktemp("open") / "store")


# --- other readers -------------------------------------------------------------------------------


def test_duckdb_reads_typed_columns_as_scan_gives_them(flushed: Flushed) -> None:
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    found = duckdb.sql(f"select {names} from read_parquet('{flushed.typed_file}') order by _row").fetchall()
    assert [dict(zip(COLUMNS, one, strict=True)) for one in found] == flushed.typed
    assert len(found) == 800


def test_duckdb_finds_the_file_sorted_and_filters_it(flushed: Flushed) -> None:
    in_file = duckdb.sql(f"select n from read_parquet('{flushed.typed_file}')").fetchall()
    assert [one for (one,) in in_file] == [one["n"] for one in flushed.typed]
    query = f"select count(*), sum(age) from read_parquet('{flushed.typed_file}') where flag and user = 'user 3'"
    kept = [one for one in flushed.typed if one["flag"] and one["user"] == "user 3"]
    assert duckdb.sql(query).fetchall() == [(len(kept), sum(one["age"] or 0 for one in kept))]


def test_duckdb_reads_cells_as_scan_gives_them(flushed: Flushed) -> None:
    query = f"select user, day, n, family, qualifier, value from read_parquet('{flushed.cells_file}')"
    assert sorted(duckdb.sql(query).fetchall()) == flushed.cells


def test_polars_reads_typed_columns_as_scan_gives_them(flushed: Flushed) -> None:
    found = pl.read_parquet(flushed.typed_file, columns=COLUMNS).select(COLUMNS)
    assert found.to_dicts() == flushed.typed


def test_polars_reads_cells_lazily_with_a_filter(flushed: Flushed) -> None:
    lazy = pl.scan_parquet(flushed.cells_file).filter(pl.col("family") == "view")
    found = lazy.select("user", "day", "n", "family", "qualifier", "value").collect().rows()
    assert sorted(found) == [cell for cell in flushed.cells if cell[3] == "view"]


def test_pandas_reads_them_too(flushed: Flushed) -> None:
    frame = pq.read_table(flushed.typed_file).to_pandas()
    assert list(frame["n"]) == [one["n"] for one in flushed.typed]


def test_several_fragments_and_partial_rows_can_be_resolved_in_sql(tmp_path: Path) -> None:
    """What the columns of Ebla mean is enough to resolve versions and erasures without Ebla."""
    with ebla.open(tmp_path / "s") as db:
        table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"a": "int64", "b": "int64"}))
        table.put([{"k": f"{i:03d}", "a": i, "b": i} for i in range(100)])
        table.flush()
        table.put([{"k": f"{i:03d}", "a": -i, "b": None} for i in range(0, 100, 3)])
        table.erase_many([f"{i:03d}" for i in range(0, 100, 10)])
        table.flush()
        expected = [(one["k"], one["a"], one["b"]) for one in table.scan()]
        files = [str(tmp_path / "s" / file) for file in table.files()]
    query = """
        with ranked as (
            select *, row_number() over (partition by k order by _txn desc) as place
            from read_parquet($files, union_by_name = true))
        select k, a, b from ranked where place = 1 and not coalesce(_erased, false) order by k
    """
    assert duckdb.execute(query, {"files": files}).fetchall() == expected


# --- what a file says of itself ------------------------------------------------------------------


def test_a_simple_key_sorts_the_file_itself(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "s") as db:
        table = db.create_table("t", ebla.Schema(columns={"v": "int64"}))
        table.put([{"row": b"%03d" % (i * 7 % 100), "v": i} for i in range(100)])
        table.flush()
        expected = [(one["row"], one["v"]) for one in table.scan()]
        (file,) = (tmp_path / "s" / file for file in table.files())
    assert "_row" not in pq.read_schema(file).names
    assert duckdb.sql(f"select row, v from read_parquet('{file}')").fetchall() == expected
    assert pl.read_parquet(file).select("row", "v").rows() == expected
    group = pq.read_metadata(file).row_group(0)
    assert group.sorting_columns[0] == pq.SortingColumn(pq.read_schema(file).names.index("row"))


def leaves(schema: Any) -> list[str]:
    """Return the paths of the physical columns, which is what sorting columns count."""
    return [schema.column(number).path for number in range(len(schema))]


def test_the_file_says_how_it_is_sorted(flushed: Flushed) -> None:
    for file, names in (
        (flushed.typed_file, [("_row", False), ("_txn", True)]),
        (
            flushed.cells_file,
            [("_row", False), ("family", False), ("qualifier", False), ("_ts", True), ("_txn", True)],
        ),
    ):
        metadata = pq.read_metadata(file)
        paths = leaves(metadata.schema)
        assert metadata.num_row_groups > 1, "small row groups are the blocks"
        for number in range(metadata.num_row_groups):
            sorting = metadata.row_group(number).sorting_columns
            # A file whose records all have one txn may leave that out.
            assert [(paths[one.column_index], one.descending) for one in sorting] in (names, names[:-1])
        rows = pq.read_table(file, columns=["_row"]).column("_row").to_pylist()
        assert rows == sorted(rows)


def test_blocks_have_bloom_filters_on_the_sort_key_and_nowhere_else(flushed: Flushed) -> None:
    for file in (flushed.typed_file, flushed.cells_file):
        metadata = pq.read_metadata(file)
        for number in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(number).column(column)
                assert (chunk.bloom_filter_offset is not None) == (chunk.path_in_schema == "_row")


def test_pages_have_checksums_that_another_reader_checks(flushed: Flushed, tmp_path: Path) -> None:
    metadata = pq.read_metadata(flushed.typed_file)
    chunk = next(
        metadata.row_group(0).column(column)
        for column in range(metadata.num_columns)
        if metadata.row_group(0).column(column).path_in_schema == "score"
    )
    damaged = bytearray(flushed.typed_file.read_bytes())
    damaged[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    copy = tmp_path / "damaged.parquet"
    copy.write_bytes(damaged)
    pq.read_table(flushed.typed_file, page_checksum_verification=True)
    with pytest.raises(OSError, match=r"(?i)crc|checksum"):
        pq.read_table(copy, page_checksum_verification=True)


def test_columns_carry_their_field_ids(flushed: Flushed) -> None:
    schema = pq.read_schema(flushed.typed_file)
    for name, number in {**flushed.ids, **flushed.key_ids}.items():
        assert schema.field(name).metadata[b"PARQUET:field_id"] == str(number).encode()
    cells_schema = pq.read_schema(flushed.cells_file)
    for name, number in flushed.key_ids.items():
        assert cells_schema.field(name).metadata[b"PARQUET:field_id"] == str(number).encode()
    assert len({*flushed.ids.values(), *flushed.key_ids.values()}) == len(flushed.ids) + len(flushed.key_ids)


def test_columns_have_their_own_types(flushed: Flushed) -> None:
    schema = pq.read_schema(flushed.typed_file)
    assert schema.field("day").type == pa.date32()
    assert schema.field("at").type == pa.timestamp("us")
    assert schema.field("price").type == pa.decimal128(10, 2)
    assert schema.field("tags").type == pa.list_(pa.field("element", pa.string()))
    assert not schema.field("user").nullable
    assert schema.field("name").nullable


def test_the_footer_says_what_is_in_the_file(flushed: Flushed) -> None:
    typed, events = footer_of(flushed.typed_file), footer_of(flushed.cells_file)
    for footer, file in ((typed, flushed.typed_file), (events, flushed.cells_file)):
        metadata = pq.read_metadata(file)
        assert footer["format_version"] == 1
        assert footer["table"] == flushed.table_id
        assert footer["rows"] == metadata.num_rows
        assert footer["txn_min"] <= footer["txn_max"]
        assert footer["block_rows"] == [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        assert len(footer["block_first"]) == metadata.num_row_groups
        assert footer["first"] <= footer["last"]
        assert not footer["has_erasures"]
    assert typed["columns"] == flushed.ids
    assert events["families"] == ["click", "view"]
    assert typed["group"] != events["group"]
