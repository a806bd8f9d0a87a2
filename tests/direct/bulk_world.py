"""Small bulk jobs against a database: written here, committed as asked."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import ebla
from ebla.client.database import Database
from ebla.client.table import Table
from ebla.direct.bulk_writer import BulkWriter
from ebla.service.job_orders import BulkCommit, BulkFragment
from ebla.storage.files.files import Files
from ebla.storage.files.local_files import LocalFiles
from tests.support.inside import carry_out, engine_of, state_of

USERS = ebla.Schema(
    key={"user": "string", "day": "int32"},
    groups=[
        ebla.Group("profile", columns={"name": "string", "age": "int64"}),
        ebla.Group("scores", columns={"score": "double", "tags": pa.list_(pa.string())}),
        ebla.Group("events", families=["click", "view"], max_versions=3),
    ],
)
NUMBERS = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"a": "int64", "b": "string"})])


def now_microseconds() -> int:
    return time.time_ns() // 1_000


def writer_for(table: Table, job: str, files: Files | None = None, partition: int = 0, **options: Any) -> BulkWriter:
    """A writer for a table of a store on this disk."""
    options.setdefault("is_sorted", False)
    options.setdefault("stamp_microseconds", now_microseconds())
    return BulkWriter(files or files_of(table), state_of(table).id, table.schema, job, partition, **options)


def files_of(table: Table) -> Files:
    return engine_of(table).files


def commit_of(table: Table, job: str, fragments: Iterable[BulkFragment], *, overwrite: bool = False) -> BulkCommit:
    return BulkCommit(job, state_of(table).id, table.schema.version, tuple(fragments), overwrite)


def written(table: Table, job: str, *batches: pa.RecordBatch, overwrite: bool = False, **options: Any) -> BulkCommit:
    """Write batches as one task and return the commit that is due."""
    writer = writer_for(table, job, **options)
    for batch in batches:
        writer.write(batch)
    return commit_of(table, job, writer.finish(), overwrite=overwrite)


def loaded(
    db: Database, table: Table, job: str, *batches: pa.RecordBatch, overwrite: bool = False, **options: Any
) -> int:
    """Write and commit batches; return the txn."""
    return carry_out(db, written(table, job, *batches, overwrite=overwrite, **options)).txn


def numbers(keys: Iterable[int], add: int = 0) -> pa.RecordBatch:
    """Rows of `NUMBERS`: a is the key plus `add`."""
    keys = list(keys)
    return pa.record_batch({"k": pa.array(keys, pa.int64()), "a": pa.array([key + add for key in keys], pa.int64())})


def rows_of(table: Table, **options: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**options)]


def a_by_k(table: Table, **options: Any) -> dict[int, int]:
    return {row["k"]: row["a"] for row in table.scan(**options)}


__all__ = [
    "NUMBERS",
    "USERS",
    "LocalFiles",
    "a_by_k",
    "commit_of",
    "files_of",
    "loaded",
    "now_microseconds",
    "numbers",
    "rows_of",
    "writer_for",
    "written",
]
