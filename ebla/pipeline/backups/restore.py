"""Restoring a table from a backup: into a store as a new table, or in the place of one.

    find      the backup, what it builds on, every file with its size              nothing is written yet
    begin     an intent: files with the job's name are about to come
    copy      tasks; the SHA-256 of every file is compared with the manifest        copying.py
    check     rows and their checksum, read from the copies, against the manifest   table_value.py
    commit    one METADATA creation, by whoever has the store open                  tablet/jobs/restorer.py

What is damaged or missing is found before anything changes, and named. A restore that fails removes its copies; one
that is killed leaves them to garbage collection.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ebla.arguments import checked_callback, checked_flag, checked_path
from ebla.client.database import Database
from ebla.client.embedded.opening import new_id
from ebla.direct.files import LocalFiles, parent_of
from ebla.direct.jobs_at import parts_of
from ebla.direct.place import Place
from ebla.errors import Corruption, EblaError, OutcomeUnknown, StoreError, TableExists, UnknownTable
from ebla.metadata.values.restoring import every_reference, pack_metadata, restored
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.declaration import check_table_name
from ebla.pipeline.backups.checking import compare_rows
from ebla.pipeline.backups.copying import Copy, copy_files
from ebla.pipeline.backups.manifest import BackupManifest, check_chain, list_backups
from ebla.pipeline.backups.row_counting import Counter
from ebla.pipeline.spark.engine import Engine, SparkChoice, choose_engine
from ebla.pipeline.spark.progress import Report
from ebla.service.job_files import job_of
from ebla.service.job_orders import RestoreCommit

__all__ = ["RestoreSummary", "restore"]


@dataclass(frozen=True)
class RestoreSummary:
    """What was restored: as of `backup_txn` in the backup, seen from `txn` on in the store.

    `rows` is None if they were not checked.
    """

    table: str
    backup: str
    backup_txn: int
    in_place: bool
    txn: int
    rows: int | None
    files: int
    bytes: int
    seconds: float


def restore(
    path: str | os.PathLike[str],
    source: Database | str | os.PathLike[str],
    table: str,
    *,
    of: str | None = None,
    at: str | int | None = None,
    in_place: bool = False,
    check: bool = True,
    spark: SparkChoice = None,
    progress: Report | None = None,
) -> RestoreSummary:
    """Make a table of what a backup below `path` has: the newest, or the one of an id or txn `at`.

    `of` is the table's name in the backup, if it is not `table`: no other is ever taken for it. With `in_place`, the
    table of that name is replaced, in one step; what it held, and its history, is gone then. `source` is a database
    that this process has open, or the root of a store that anybody may have open, not necessarily the one that was
    backed up. Without `check`, files are compared with the manifest, and rows are not. `spark` says where the work is
    done: a session or True on Spark, False in this process; None lets the size decide.

    Raises `TableExists` if there is such a table and `in_place` is not asked for; `MissingFile` or `Corruption`, with
    the file or backup, if something is missing or damaged; `ClockSkew` if the backup is from the future. In all these
    cases nothing was changed.
    """
    began = time.monotonic()
    place = Place.of(source)
    checked_callback("progress", progress)
    in_place, check = checked_flag("in_place", in_place), checked_flag("check", check)
    where = checked_path("the directory of backups", path)
    manifest = list_backups(where).find(at, where)
    saved = manifest.table(table if of is None else of)
    table = check_table_name(table)
    former = former_table(place, table, in_place)
    metadata = saved.table_metadata(str(where / manifest.id))
    check_chain(where, manifest)
    needed = every_reference(metadata)
    engine = choose_engine(spark, sum(ref.bytes for ref in needed.values()), "restore")
    job = f"restore-{uuid.uuid4().hex[:12]}"
    table_id = new_id()
    copies = place.begin_copies(job, needed)
    is_known = True
    keep: Collection[str] = ()
    try:
        made = restored(metadata, table_id, copies, new_id, in_place=in_place)
        _copy(place, engine, job, metadata, copies, manifest, where, progress)
        if check and saved.rows is not None:
            counter = Counter(engine, f"ebla-{job}-rows", "checking", progress)
            compare_rows(counter.in_files(place.root, made, manifest.txn), saved, manifest)
        try:
            result = place.carry_out(RestoreCommit(job, table_id, table, pack_metadata(made), former))
        except BaseException as error:
            # Also an interruption: what was asked for may still be done, and then the copies are needed.
            is_known = isinstance(error, EblaError) and not isinstance(error, OutcomeUnknown)
            raise
        keep = tuple(copies.values())  # a compaction may have replaced some since, and somebody may be reading them
    finally:
        if is_known:
            for part in parts_of(copies.values()):
                with contextlib.suppress(EblaError, OSError):  # what stays is garbage, and is collected later
                    place.end(part, keep)
    refs = every_reference(made).values()
    return RestoreSummary(
        table=table,
        backup=manifest.id,
        backup_txn=manifest.txn,
        in_place=in_place,
        txn=result.txn,
        rows=saved.rows if check else None,
        files=len(refs),
        bytes=sum(ref.bytes for ref in refs),
        seconds=time.monotonic() - began,
    )


def former_table(place: Place, table: str, in_place: bool) -> str | None:
    """Return the id of the table that is to be replaced, None for a new one."""
    there = place.metadata(table)
    if in_place and there is None:
        raise UnknownTable(f"there is no table {table!r} to be replaced: restore it without in_place")
    if there is not None and not in_place:
        raise TableExists(
            f"there is a table {table!r} already: restore it under another name, or --in-place (in_place=True)"
        )
    return None if there is None else there.table_id


def _copy(
    place: Place,
    engine: Engine,
    job: str,
    metadata: TableMetadata,
    targets: Mapping[str, str],
    manifest: BackupManifest,
    where: Path,
    progress: Report | None,
) -> None:
    """Copy the files of a table into the store, durably."""
    known = {file.path: file for file in manifest.files}
    copies: list[Copy] = []
    for path, ref in every_reference(metadata).items():
        file = known.get(path)
        if file is None or file.bytes != ref.bytes:
            raise Corruption(str(where / manifest.id), f"{path} is needed, and the manifest does not have it")
        target = f"{place.root}/{targets[path]}"
        aside = (f"{parent_of(target)}/{job_of(target)}-", ".parquet")
        source = str((where / file.backup / path).resolve())
        copies.append(Copy(source, target, aside, file.bytes, file.sha256))
    files = LocalFiles(place.root)
    directories = sorted(set(map(parent_of, targets.values())))
    try:
        for directory in directories:
            files.make_directory(directory)
        copy_files(engine, f"ebla-{job}", "copying", copies, progress)
        for directory in directories:
            files.sync_directory(directory)
    except OSError as error:
        raise StoreError(f"{place.root} cannot be written: {error}: free space, then retry") from error
