"""The data of TPC-H: made by tpchgen-cli, loaded by Spark, changed on both sides, and answers that are compared.

make_tables(scale, directory)     eight Parquet files, as tpchgen-cli writes them
load_tables(db, spark, directory) the same rows as eight tables of a store, each under its key
changed_lines(lines, every)       every so-manieth lineitem with another quantity, price and comment
with_changes(lines, changes)      what lineitem is after these were put: worked out by Arrow, not by Ebla
Answers(tables)                   what DuckDB answers to a query, to hold another engine's rows against
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import ebla
import ebla.pipeline
from benchmarks.tpch_queries import TABLES

__all__ = ["Answers", "changed_lines", "differences", "load_tables", "make_tables", "new_orders", "with_changes"]

GENERATOR = "tpchgen-cli"
_TOLERANCE = 1e-6


def make_tables(scale: float, directory: Path) -> dict[str, Path]:
    """Write the eight tables as Parquet; return their files by name."""
    program = shutil.which(GENERATOR, path=sysconfig.get_path("scripts")) or shutil.which(GENERATOR)
    if program is None:
        raise FileNotFoundError(f"{GENERATOR} is not installed: pip install --editable '.[bench]'")
    command = [program, "parquet", "--scale-factor", str(scale), "--output-dir", str(directory)]
    subprocess.run(command, check=True, capture_output=True)
    return {name: directory / f"{name}.parquet" for name in TABLES}


def load_tables(db: ebla.Database, spark: Any, files: Mapping[str, Path], only: Iterable[str] = TABLES) -> None:
    """Load the tables into a store that does not have them."""
    for name in only:
        ebla.pipeline.load(db, name, spark.read.parquet(str(files[name])), key=TABLES[name])


def read(file: Path) -> pa.Table:
    """Read a table in plain types: views of strings are for those who know them."""
    found = pq.read_table(file)
    plain = [pa.field(f.name, pa.string() if pa.types.is_string_view(f.type) else f.type) for f in found.schema]
    return found.cast(pa.schema(plain))


def changed_lines(lines: pa.Table, every: int = 100) -> pa.Table:
    """Return keys and new values of every so-manieth row: a correction as an application writes it."""
    picked = lines.take(pa.array(np.arange(0, len(lines), every)))
    one = pa.scalar(Decimal("1.00"), pa.decimal128(15, 2))
    return pa.table(
        {
            "l_orderkey": picked["l_orderkey"],
            "l_linenumber": picked["l_linenumber"],
            "l_quantity": pc.add(picked["l_quantity"], one).cast(pa.decimal128(15, 2)),
            "l_extendedprice": pc.add(picked["l_extendedprice"], one).cast(pa.decimal128(15, 2)),
            "l_comment": pc.binary_join_element_wise(picked["l_comment"], "corrected", " "),
        }
    )


def with_changes(lines: pa.Table, changes: pa.Table, every: int = 100) -> pa.Table:
    """Return all rows as they are once the changes of `changed_lines` were put."""
    mask = np.zeros(len(lines), dtype=np.bool_)
    mask[::every] = True
    for name in changes.column_names[2:]:
        values = changes[name].combine_chunks().cast(lines.schema.field(name).type)
        column = pc.replace_with_mask(lines[name].combine_chunks(), pa.array(mask), values)
        lines = lines.set_column(lines.schema.get_field_index(name), name, column)
    return lines


def new_orders(orders: pa.Table, lines: pa.Table, every: int = 1_000) -> tuple[pa.Table, pa.Table]:
    """Return orders that are not there yet, with their lines: one for every so many that are.

    The generator uses eight of every 32 order keys; the new ones lie in the gaps, as those of the refresh functions do.
    """
    picked = orders.take(pa.array(np.arange(0, len(orders), every)))
    of_them = lines.filter(pc.is_in(lines["l_orderkey"], picked["o_orderkey"].combine_chunks()))
    return _with_next_keys(picked, "o_orderkey"), _with_next_keys(of_them, "l_orderkey")


def _with_next_keys(rows: pa.Table, name: str) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, pc.add(rows[name], 8))


class Answers:
    """What DuckDB says."""

    def __init__(self, tables: Mapping[str, Path | pa.Table]) -> None:
        import duckdb

        self._connection = duckdb.connect()
        for name, source in tables.items():
            if isinstance(source, Path):
                self._connection.execute(f"create view {name} as select * from read_parquet('{source}')")
            else:
                self._connection.register(name, source)

    def to(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows that answer a query."""
        return self._connection.execute(query).fetchall()


def differences(found: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> list[str]:
    """Return where two answers differ; numbers may by a millionth, for engines round averages each in its way."""
    if len(found) != len(expected):
        return [f"{len(found)} rows, not {len(expected)}"]
    return [
        f"row {number}: {tuple(one)}, not {tuple(other)}"
        for number, (one, other) in enumerate(zip(found, expected, strict=True))
        if len(one) != len(other) or not all(_is_same(a, b) for a, b in zip(one, other, strict=True))
    ]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float, Decimal)) and isinstance(other, (int, float, Decimal)):
        return math.isclose(float(one), float(other), rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(one, date) and isinstance(other, datetime):
        return one == other.date()
    return bool(one == other)
