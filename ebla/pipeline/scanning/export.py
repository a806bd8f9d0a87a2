"""Exporting a table: one snapshot of it, as plain Parquet, CSV or JSON files that any program reads.

    scan at one txn --> tasks write    .users.ebla-export-<id>/part-*      beside the place they are for
                   --> checksums       .users.ebla-export-<id>/_ebla_export.json
                   --> rename          users/                              there as a whole, or not at all

Every section of the scan is written by a task (`export_task`); where tasks run, on Spark or in this process, `engine`
decides.

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
| float that is no number      | ``NaN``, ``Infinity``, ``-Infinity``            | ``"NaN"``, ``"Infinity"``, ...   |

CSV has a header and quotes as RFC 4180 says: a quote in a value is doubled, and a value may span lines. Parquet has the
types of `ebla.pipeline.spark.types`, and timestamps in microseconds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebla.arguments import checked_callback, checked_choice, checked_flag, checked_path
from ebla.client.database import Database
from ebla.client.moments import AsOf, time_of
from ebla.direct.clusters import forget_cluster
from ebla.direct.holding import Holding
from ebla.direct.opens import forget
from ebla.direct.place import Place
from ebla.errors import RequestError, StoreError
from ebla.model.where import Where
from ebla.pipeline.scanning.export_manifest import (
    MANIFEST_NAME,
    ExportedColumn,
    ExportManifest,
    files_of,
    sync_directory,
    write_manifest,
)
from ebla.pipeline.scanning.export_task import ExportFormat, ExportTask, written_schema
from ebla.pipeline.scanning.sections import SectionPlan, plan_scan
from ebla.pipeline.scanning.size import bytes_asked
from ebla.pipeline.spark.engine import Engine, InProcess, SparkChoice, choose_engine
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.progress import JobProgress, Report
from ebla.pipeline.spark.types import spark_name

__all__ = ["ExportFormat", "ExportSummary", "check_target", "export"]

FORMATS: tuple[ExportFormat, ...] = ("parquet", "csv", "json")


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
    spark: SparkChoice = None,
    progress: Report | None = None,
) -> ExportSummary:
    """Write the rows that ``table.scan`` with the same arguments gives into files of a new directory.

    `source` is a database that this process has open, or the root of a store that anybody may have open. The directory
    must not exist, or be empty; with `overwrite` it may hold an earlier export, which is replaced at the very end.
    `spark` is the SparkSession to use, True for the running one or a new one, False for none: this process then does
    the work. Unless it is said, little data is written by this process, and much by Spark if it is installed.
    `progress` is called now and then with how far the job is.
    """
    began = time.monotonic()
    checked_choice("format", format, FORMATS)
    checked_callback("progress", progress)
    overwrite = checked_flag("overwrite", overwrite)
    root = source.path if isinstance(source, Database) else checked_path("the directory of a store", source)
    target = check_target(path, root, overwrite=overwrite)
    bytes_ = bytes_asked(Place.of(source), table, columns=columns, start=start, stop=stop, prefix=prefix)
    engine = choose_engine(spark, bytes_, "an export on Spark")
    with unwrapping(), Holding() as holding:
        planned = plan_scan(
            source,
            table,
            columns=columns,
            start=start,
            stop=stop,
            prefix=prefix,
            as_of=as_of,
            where=where,
            cores=engine.parallelism,
            native=False,
            holding=holding,
            what="export",
        )
        with _staging(target) as staging:
            count = _write(engine, planned, staging, format, progress)
            if progress is not None:
                progress(JobProgress("checking"))
            asked = [None if one is None else repr(one) for one in (start, stop, prefix)]
            asked.append(None if where is None else str(where))
            manifest = _manifest(planned, staging, format, count, asked)
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


# --- the manifest ----------------------------------------------------------------------------------


def _write(engine: Engine, planned: SectionPlan, staging: Path, format: ExportFormat, progress: Report | None) -> int:
    """Write the rows of a planned scan to files; return how many there were."""
    task = ExportTask(planned.target, planned.schema, str(staging), format)
    # A file without rows says what the columns are.
    portions = list(enumerate(planned.sections or (None,)))
    try:
        written = dict(engine.run(task.run, portions, group=staging.name, phase="writing", report=progress))
    finally:
        if isinstance(engine, InProcess):
            # Workers of Spark keep what is open for the next task; this process is the user's.
            if planned.target.cluster:
                forget_cluster(planned.target.cluster)
            else:
                forget(planned.target.root)
    for entry in staging.iterdir():
        if entry.name not in written:
            entry.unlink()  # an attempt that was lost, or ran beside the one that counts
    return sum(written.values())


def _manifest(
    planned: SectionPlan, staging: Path, format: ExportFormat, count: int, asked: list[str | None]
) -> ExportManifest:
    names = [entry.name for entry in staging.iterdir()]
    files = files_of(staging, names, sync=True)
    schema = planned.projection.schema
    stored = planned.projection.arrow_schema
    written = written_schema(planned.schema, format)
    return ExportManifest(
        table=planned.target.table,
        format=format,
        key=list(schema.key_names),
        columns=[
            ExportedColumn(field.name, str(stored.field(field.name).type), spark_name(field.type)) for field in written
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
    target, store = checked_path("the directory of an export", path).resolve(), root.resolve()
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
