"""Checking a backup without restoring it: what it builds on, every file's SHA-256, and the rows that they hold.

    manifest and chain  -->  tasks: every file read and hashed  -->  every table read as a value, counted and compared

Nothing is written, and no store is needed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from ebla.arguments import checked_callback, checked_path
from ebla.errors import Corruption
from ebla.pipeline.backups.backup import name_files
from ebla.pipeline.backups.copying import Copy, copy_files
from ebla.pipeline.backups.manifest import BackedUpTable, BackupManifest, check_chain, list_backups
from ebla.pipeline.backups.row_counting import Counter
from ebla.pipeline.spark.engine import SparkChoice, choose_engine
from ebla.pipeline.spark.progress import Report

__all__ = ["BackupCheck", "check_backup", "compare_rows"]


@dataclass(frozen=True)
class BackupCheck:
    """What was read of a backup that is whole; `rows` is None if they were not counted when it was made."""

    id: str
    txn: int
    tables: tuple[str, ...]
    rows: int | None
    files: int
    bytes: int
    seconds: float


def check_backup(
    path: str | os.PathLike[str],
    at: str | int | None = None,
    *,
    spark: SparkChoice = None,
    progress: Report | None = None,
) -> BackupCheck:
    """Read all of a backup below `path`, the newest or that of an id or txn, and compare it with its manifest.

    `spark` says where the work is done: a session or True on Spark, False in this process; None lets the size decide.
    Raises `MissingFile` or `Corruption`, with the file or backup, if it could not be restored as it was.
    """
    began = time.monotonic()
    checked_callback("progress", progress)
    where = checked_path("the directory of backups", path).resolve()
    manifest = list_backups(where).find(at, where)
    check_chain(where, manifest)
    engine = choose_engine(spark, sum(file.bytes for file in manifest.files), "check_backup")
    paths = [(str(where / file.backup / file.path), file) for file in manifest.files]
    copies = [Copy(full, full, None, file.bytes, file.sha256) for full, file in paths]
    copy_files(engine, f"ebla-check-{manifest.id}", "reading", copies, progress)
    counted = [saved for saved in manifest.tables if saved.rows is not None]
    counter = Counter(engine, f"ebla-check-rows-{manifest.id}", "counting", progress)
    for saved in counted:
        metadata = name_files(saved.table_metadata(str(where / manifest.id)), manifest.files)
        compare_rows(counter.in_files(str(where), metadata, manifest.txn), saved, manifest)
    return BackupCheck(
        id=manifest.id,
        txn=manifest.txn,
        tables=tuple(saved.name for saved in manifest.tables),
        rows=sum(saved.rows or 0 for saved in counted) if len(counted) == len(manifest.tables) else None,
        files=len(copies),
        bytes=sum(copy.bytes for copy in copies),
        seconds=time.monotonic() - began,
    )


def compare_rows(found: tuple[int, str], saved: BackedUpTable, manifest: BackupManifest) -> None:
    """Raise `Corruption` unless rows and checksum are those of a table when it was backed up."""
    if found != (saved.rows, found[1] if saved.checksum is None else saved.checksum):
        raise Corruption(
            manifest.id,
            f"{saved.name!r} has {found[0]} rows with checksum {found[1]} in the backup, and had {saved.rows} with "
            f"{saved.checksum} when it was made: use another backup, and report it; nothing was changed",
        )
