"""Exporting a table: one snapshot of it, as plain Parquet, CSV or JSON files that any program reads.

    scan at one txn --> Spark writes   .users.ebla-export-<id>/part-*      beside the place they are for
                   --> checksums       .users.ebla-export-<id>/_ebla_export.json
                   --> rename          users/                              there as a whole, or not at all

An export that fails leaves nothing; one that is killed leaves a directory whose name begins with a dot. With
`overwrite`, the export that was there stays until the new one is complete.

What CSV and JSON have no words for:

| value                        | CSV                                             | JSON                             |
|------------------------------|-------------------------------------------------|----------------------------------|
| bytes                        | base64                                          | base64                           |
| list, struct, map of cells   | JSON text (bytes in it base64, nulls written)   | array, object, object            |
| null                         | nothing; an empty string is ``""``              | null (the field is there)        |
| timestamp                    | ISO 8601, microseconds, in UTC (``Z``)          | the same                         |
| timestamp without a zone     | ISO 8601, microseconds, no offset               | the same                         |
| duration                     | a whole number of microseconds                  | the same (inside others: text)   |
| float that is no number      | ``NaN``, ``Inf``, ``-Inf``                      | ``"NaN"``, ``"Infinity"``, ...   |

CSV has a header and quotes as RFC 4180 says: a quote in a value is doubled, and a value may span lines. Parquet has the
types of `ebla.pipeline.types`, and timestamps in microseconds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.types import ArrayType, BinaryType, DataType, DayTimeIntervalType, MapType, StructType

from ebla.client.database import Database
from ebla.client.moments import AsOf, time_of
from ebla.errors import RequestError, StoreError
from ebla.pipeline.export_manifest import (
    MANIFEST_NAME,
    ExportedColumn,
    ExportManifest,
    files_of,
    sync_directory,
    write_manifest,
)
from ebla.pipeline.failures import unwrapping
from ebla.pipeline.holding import Holding
from ebla.pipeline.progress import JobProgress, Report, watched
from ebla.pipeline.scan import frame_of
from ebla.pipeline.sections import SectionPlan, plan_scan
from ebla.pipeline.session import session
from ebla.where import Where

__all__ = ["ExportFormat", "ExportSummary", "check_target", "export"]

ExportFormat: TypeAlias = Literal["parquet", "csv", "json"]
FORMATS: tuple[ExportFormat, ...] = ("parquet", "csv", "json")

_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_LOCAL_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_TEXT_OPTIONS = {"timestampFormat": _MOMENT, "timestampNTZFormat": _LOCAL_MOMENT, "timeZone": "UTC"}
JSON_OPTIONS = {**_TEXT_OPTIONS, "ignoreNullFields": "false"}
_OPTIONS: dict[str, dict[str, str]] = {
    "parquet": {},
    "csv": {
        **_TEXT_OPTIONS,
        "header": "true",
        "escape": '"',
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
    "json": JSON_OPTIONS,
}
# Spark's default is a type that Parquet gave up long ago.
_TIMESTAMP_SETTING = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


@dataclass(frozen=True)
class ExportSummary:
    """What an export wrote, and the txn of the snapshot it wrote."""

    table: str
    path: str
    format: ExportFormat
    txn: int
    rows: int
    files: int
    bytes: int
    seconds: float


def export(
    source: Database | str | os.PathLike[str],
    table: str,
    path: str | os.PathLike[str],
    *,
    format: ExportFormat = "parquet",
    columns: Sequence[str] | None = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    as_of: AsOf | None = None,
    where: Where | None = None,
    overwrite: bool = False,
    spark: SparkSession | None = None,
    progress: Report | None = None,
) -> ExportSummary:
    """Write the rows that ``table.scan`` with the same arguments gives into files of a new directory.

    `source` is a database that this process has open, or the root of a store that anybody may have open. The directory
    must not exist, or be empty; with `overwrite` it may hold an earlier export, which is replaced at the very end.
    `progress` is called now and then with how far the job is.
    """
    began = time.monotonic()
    if format not in FORMATS:
        raise RequestError(f"format is {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not {format!r}")
    root = source.path if isinstance(source, Database) else Path(source)
    target = check_target(path, root, overwrite=overwrite)
    if spark is None:
        spark = session()
    with unwrapping(), Holding() as holding:
        cores = spark.sparkContext.defaultParallelism
        planned = plan_scan(
            source,
            table,
            columns=columns,
            start=start,
            stop=stop,
            prefix=prefix,
            as_of=as_of,
            where=where,
            cores=cores,
            holding=holding,
            what="export",
        )
        with warnings.catch_warnings():
            # PySpark warns that pandas 3 is new to it. Only Arrow is moved here.
            warnings.simplefilter("ignore", FutureWarning)
            rows = _in_words(frame_of(planned, spark), format)
        with _staging(target) as staging:
            with watched(spark, staging.name, "writing", progress):
                count = _write(rows, staging, format, spark)
            if progress is not None:
                progress(JobProgress("checking"))
            asked = [None if one is None else repr(one) for one in (start, stop, prefix)]
            asked.append(None if where is None else str(where))
            manifest = _manifest(planned, rows, staging, format, count, asked)
            write_manifest(staging, manifest)
            _publish(staging, target)
    return ExportSummary(
        table=table,
        path=str(target),
        format=format,
        txn=manifest.txn,
        rows=manifest.rows,
        files=len(manifest.files),
        bytes=manifest.bytes,
        seconds=time.monotonic() - began,
    )


# --- rows ----------------------------------------------------------------------------------------


def _in_words(rows: DataFrame, format: ExportFormat) -> DataFrame:
    """Return rows of which the format can write every column."""
    if format == "parquet":
        return rows
    columns = [_word(field.name, field.dataType, format) for field in rows.schema.fields]
    return rows.select(columns)


def _word(name: str, kind: DataType, format: ExportFormat) -> Column:
    quoted = f"`{name.replace('`', '``')}`"
    value = F.col(quoted)
    if isinstance(kind, DayTimeIntervalType):
        value = F.expr(f"{quoted} div interval '0.000001' second")
    elif format == "csv" and isinstance(kind, BinaryType):
        value = F.base64(value)
    elif format == "csv" and isinstance(kind, (ArrayType, MapType, StructType)):
        value = F.to_json(value, JSON_OPTIONS)
    return value.alias(name)


def _write(rows: DataFrame, staging: Path, format: ExportFormat, spark: SparkSession) -> int:
    """Have Spark write the rows; return how many there were."""
    counted = Observation()
    name, value = _TIMESTAMP_SETTING
    before = spark.conf.get(name) or value
    spark.conf.set(name, value)
    try:
        observed = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
        observed.write.format(format).options(**_OPTIONS[format]).mode("append").save(f"file://{staging}")
    finally:
        spark.conf.set(name, before)
    for entry in staging.iterdir():  # Hadoop's checksums and its mark of success: the manifest has both
        if not entry.name.startswith("part-"):
            entry.unlink()
    return int(counted.get["rows"])


def _manifest(
    planned: SectionPlan, rows: DataFrame, staging: Path, format: ExportFormat, count: int, asked: list[str | None]
) -> ExportManifest:
    names = [entry.name for entry in staging.iterdir()]
    files = files_of(staging, names, sync=True)
    schema = planned.projection.schema
    stored = planned.projection.arrow_schema
    return ExportManifest(
        table=planned.target.table,
        format=format,
        key=list(schema.key_names),
        columns=[
            ExportedColumn(field.name, str(stored.field(field.name).type), field.dataType.simpleString())
            for field in rows.schema.fields
        ],
        schema_version=schema.version,
        txn=planned.target.as_of,
        time=time_of(planned.target.as_of).isoformat(),
        rows=count,
        bytes=sum(file.bytes for file in files),
        files=files,
        start=asked[0],
        stop=asked[1],
        prefix=asked[2],
        where=asked[3],
    )


# --- the directory -------------------------------------------------------------------------------


def check_target(path: str | os.PathLike[str], root: Path, *, overwrite: bool = False) -> Path:
    """Return the directory that an export makes; `RequestError` if it may not."""
    if "://" in os.fspath(path):
        raise RequestError(f"{path} is not a path of this machine: export to a directory, and copy it from there")
    target, store = Path(path).resolve(), root.resolve()
    if target.is_relative_to(store) or store.is_relative_to(target):
        raise RequestError(f"{path} and the store {root} are one in the other: export to another place")
    if target.exists() and not target.is_dir():
        raise RequestError(f"{path} is a file: export to a directory that is not there yet")
    if not target.exists() or not any(target.iterdir()):
        return target
    if not overwrite:
        raise RequestError(f"{path} is not empty: export to a directory that is not there yet, or overwrite it")
    if not (target / MANIFEST_NAME).exists():
        # To overwrite is to remove, and whose files these are is not known.
        raise RequestError(f"{path} holds something else than an export: remove it yourself, or export elsewhere")
    return target


@contextlib.contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """Lend a fresh directory beside the target, and remove it unless it was renamed."""
    staging = target.with_name(f".{target.name}.ebla-export-{uuid.uuid4()}")
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise StoreError(f"{target} cannot be made: {error}: check the path and its permissions") from error
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, target: Path) -> None:
    try:
        if target.exists() and any(target.iterdir()):
            former = target.with_name(f".{target.name}.ebla-former-{uuid.uuid4()}")
            target.rename(former)
            staging.rename(target)
            shutil.rmtree(former, ignore_errors=True)
        else:
            staging.rename(target)  # also onto an empty directory
        sync_directory(target.parent)
    except OSError as error:
        raise StoreError(f"{target} cannot be made: {error}: nothing was exported") from error
