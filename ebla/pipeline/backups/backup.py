"""Backing up tables: their fragments byte for byte, at one txn, and what was only in memory as fragments of its own.

    capture    tables at txn T, held                                              capture.py
    plan       every file they name, less those that earlier backups have         (incremental)
    copy       tasks, with checksums                                              copying.py
    count      rows and their checksum, read from the store at T                  row_counting.py
    manifest   written last: before it there is no backup

Files are immutable, and ids never come twice. So an incremental backup is a difference of sets, versions, erasures,
timestamps and history come along as they are, and a backup of an altered, split or compacted table needs no care.
A backup that fails removes what it wrote; one that is killed leaves a directory without a manifest.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import ebla
from ebla.arguments import checked_callback, checked_flag, checked_path
from ebla.client.database import Database
from ebla.client.moments import time_of
from ebla.direct.capture import Capture, captured, with_memory
from ebla.direct.files import LocalFiles
from ebla.direct.place import Place, named_tables
from ebla.errors import (
    HistoryGone,
    MissingFile,
    RequestError,
    StaleRoute,
    StoreError,
    TableUnloaded,
    Unavailable,
    UnknownTable,
)
from ebla.metadata.values.restoring import every_reference, pack_metadata, renamed_files
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.pipeline.backups.copying import Copy, copy_files, leftover_of
from ebla.pipeline.backups.manifest import (
    LOCK_NAME,
    BackedUpFile,
    BackedUpTable,
    BackupManifest,
    Backups,
    group_of,
    list_backups,
    read_manifest,
    write_manifest,
)
from ebla.pipeline.backups.row_counting import Counter
from ebla.pipeline.spark.engine import Engine, SparkChoice, choose_engine
from ebla.pipeline.spark.progress import Report

__all__ = ["BackupSummary", "backup", "check_backup_path", "name_files"]


@dataclass(frozen=True)
class BackupSummary:
    """What a backup has: of `files` and `bytes` that it needs, the `new` ones lie in it."""

    id: str
    path: str
    kind: str
    base: str | None
    tables: tuple[str, ...]
    txn: int
    rows: int | None
    files: int
    bytes: int
    new_files: int
    new_bytes: int
    seconds: float


def backup(
    source: Database | str | os.PathLike[str],
    tables: str | Sequence[str] | None,
    path: str | os.PathLike[str],
    *,
    since: str | int | None = None,
    checksum: bool = True,
    spark: SparkChoice = None,
    progress: Report | None = None,
) -> BackupSummary:
    """Back up a table, several, or all (None), as they are at one moment, into a new directory below `path`.

    `since` makes it incremental: files that the backup of that id or txn has, or ``"last"``, are not copied again.
    `source` is a database that this process has open, or the root of a store that anybody may have open. Without
    `checksum` the rows are not counted, and a restore compares files only. `spark` says where the work is done: a
    session or True on Spark, False in this process; None lets the size decide. Raises `RequestError` if there is no
    such backup or it is of another store, and `UnknownTable` for a table that is not there.
    """
    began = time.monotonic()
    checked_callback("progress", progress)
    checksum = checked_flag("checksum", checksum)
    names = named_tables([tables] if isinstance(tables, str) else tables)
    if names is not None and (not names or len(set(names)) != len(names)):
        raise RequestError("no table is named, or one twice: name each once, or none to back up all")
    place = Place.of(source)
    target = check_backup_path(path, Path(place.root))
    known = list_backups(target) if target.is_dir() else Backups([], [], {})
    base = None
    if since is not None:  # to build on an older one costs nothing but bytes
        is_last = isinstance(since, str) and since == "last"
        base = known.newest_readable(target) if is_last else known.find(since, target)
    # A read-only open may be older than the snapshot: others read by the root.
    reader = source if isinstance(source, Database) and not source.read_only else place.root
    now = datetime.now(UTC)
    # Backups of one txn are in the order in which they were made.
    backup_id = f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03}-{uuid.uuid4().hex[:8]}"
    with captured(source, names, backup_id) as capture:
        _check_base(base, capture, target)
        with _directory(target / backup_id) as directory:
            _check_not_pruned(base, target)
            metadata = _with_memory(capture, directory)
            engine = choose_engine(spark, _bytes_of(metadata), "backup")
            files = _copy(place, engine, backup_id, metadata, base, target, progress)
            counted: dict[str, tuple[int | None, str | None]] = dict.fromkeys(metadata, (None, None))
            if checksum:
                counter = Counter(engine, f"ebla-backup-rows-{backup_id}", "counting", progress)
                for name, one in metadata.items():
                    counted[name] = _count(reader, name, one, capture.txn, files, target, counter)
            manifest = BackupManifest(
                id=backup_id,
                kind="full" if base is None else "incremental",
                store=capture.store,
                txn=capture.txn,
                time=time_of(capture.txn).isoformat(),
                base=None if base is None else base.id,
                chain=_chain(files, backup_id, known),
                tables=[_table(name, one, *counted[name]) for name, one in metadata.items()],
                files=files,
                made_by=f"ebla {ebla.__version__}",
            )
            _finish(directory, manifest)
    own = manifest.own_files()
    rows = [one.rows for one in manifest.tables if one.rows is not None]
    return BackupSummary(
        id=backup_id,
        path=str(target / backup_id),
        kind=manifest.kind,
        base=manifest.base,
        tables=tuple(metadata),
        txn=manifest.txn,
        rows=sum(rows) if checksum else None,
        files=len(files),
        bytes=sum(file.bytes for file in files),
        new_files=len(own),
        new_bytes=sum(file.bytes for file in own),
        seconds=time.monotonic() - began,
    )


def check_backup_path(path: str | os.PathLike[str], root: Path) -> Path:
    """Return the directory in which backups lie; `RequestError` if they may not."""
    target, store = checked_path("the directory of backups", path).resolve(), root.resolve()
    if target.is_relative_to(store) or store.is_relative_to(target):
        raise RequestError(f"{path} and the store {root} are one in the other: back up to another place")
    if target.exists() and not target.is_dir():
        raise RequestError(f"{path} is a file: back up to a directory")
    return target


def _check_base(base: BackupManifest | None, capture: Capture, target: Path) -> None:
    if base is None:
        return
    if base.store != capture.store:
        raise RequestError(f"backup {base.id} in {target} is of another store: make a full one, or use another place")
    if base.txn > capture.txn:
        raise RequestError(
            f"backup {base.id} is newer than the store, which is at txn {capture.txn}: is this an old copy of it? "
            "make a full one"
        )


def _check_not_pruned(base: BackupManifest | None, target: Path) -> None:
    """Look for the base once more now that others can see that a backup is being made: from here on it stays."""
    if base is None:
        return
    try:
        read_manifest(target / base.id)
    except MissingFile:
        raise Unavailable(f"backup {base.id} was removed meanwhile: retry, or make a full one") from None


# --- files ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _directory(directory: Path) -> Iterator[Path]:
    """Lend a fresh directory under a lock, and remove it unless it becomes a backup."""
    files = LocalFiles(directory)
    try:
        lock = files.lock(LOCK_NAME)
    except OSError as error:
        raise StoreError(f"{directory} cannot be made: {error}: check the path and its permissions") from error
    try:
        yield directory
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        with contextlib.suppress(OSError):
            files.delete(LOCK_NAME)
        lock.release()


def _with_memory(capture: Capture, directory: Path) -> dict[str, TableMetadata]:
    """Write what is only in memory into the backup; return METADATA of all tables with it."""
    files = LocalFiles(directory)
    try:
        made = {
            name: with_memory(view, capture.txn, files, lambda table_id: f"fragments/{table_id}/{uuid.uuid4()}.parquet")
            for name, view in capture.views.items()
        }
        for one in made.values():
            files.make_directory(f"fragments/{one.table_id}")
            for file in one.files():  # a clone names files below other ids than its own
                files.make_directory(file.rpartition("/")[0])
    except OSError as error:
        raise StoreError(f"{directory} cannot be written: {error}: free space, then retry") from error
    return made


def _bytes_of(metadata: dict[str, TableMetadata]) -> int:
    return sum(ref.bytes for one in metadata.values() for ref in every_reference(one).values())


def _copy(
    place: Place,
    engine: Engine,
    backup_id: str,
    metadata: dict[str, TableMetadata],
    base: BackupManifest | None,
    target: Path,
    progress: Report | None,
) -> list[BackedUpFile]:
    """Copy what earlier backups do not have; return every file that this one needs, and where it is."""
    needed = {file: ref for one in metadata.values() for file, ref in every_reference(one).items()}
    there = {} if base is None else {file.path: file for file in base.files}
    files: list[BackedUpFile] = []
    copies: list[Copy] = []
    for file, ref in sorted(needed.items()):
        held = there.get(file)
        if held is not None and _is_there(target / held.backup / file, ref.bytes):
            files.append(held)
            continue
        full = target / backup_id / file
        # What was in memory lies in the backup already. It is read once more for its checksum.
        source = full if full.exists() else Path(place.root) / file
        aside = (str(full.parent / "."), ".part")
        copies.append(Copy(str(source), str(full), aside, ref.bytes))
    try:
        done = copy_files(engine, f"ebla-backup-{backup_id}", "copying", copies, progress)
    except MissingFile as error:
        raise MissingFile(f"{error}; the table is damaged, see `ebla verify`") from None
    for copy in copies:
        path = str(Path(copy.target).relative_to(target / backup_id))
        files.append(BackedUpFile(path, copy.bytes, done[copy.target], backup_id))
    return sorted(files, key=lambda file: file.path)


def _is_there(path: Path, size: int) -> bool:
    """Tell whether an earlier backup still has a file: what was lost there is copied once more."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _chain(files: Sequence[BackedUpFile], backup_id: str, known: Backups) -> list[str]:
    used = {file.backup for file in files} - {backup_id}
    return [one.id for one in known.complete if one.id in used]


def _finish(directory: Path, manifest: BackupManifest) -> None:
    files = LocalFiles(directory)
    try:
        for table in files.list_directories("fragments"):
            for info in files.list(table):
                if leftover_of(info.path.rpartition("/")[2]):
                    files.delete(info.path)
            files.sync_directory(table)
        files.sync_directory("fragments")
        write_manifest(directory, manifest)
    except OSError as error:
        raise StoreError(f"{directory} cannot be written: {error}: free space, then retry") from error


def _table(name: str, metadata: TableMetadata, rows: int | None, checksum: str | None) -> BackedUpTable:
    schema = metadata.schema
    return BackedUpTable(
        name=name,
        table_id=metadata.table_id,
        schema_version=schema.version,
        key={column.name: str(column.type) for column in schema.key},
        groups=[group_of(group) for group in schema.groups],
        splits=[tablet.first.hex() for tablet in metadata.tablets[1:]],
        rows=rows,
        checksum=checksum,
        metadata=pack_metadata(metadata),
    )


# --- rows ----------------------------------------------------------------------------------------


def _count(
    source: Database | str | os.PathLike[str],
    name: str,
    metadata: TableMetadata,
    txn: int,
    files: Sequence[BackedUpFile],
    target: Path,
    counter: Counter,
) -> tuple[int, str]:
    """Return the number of rows that the store shows at the txn, and their checksum.

    If the table was dropped, altered, unloaded or replaced, the store cannot tell (any more); then the backup does.
    """
    with contextlib.suppress(UnknownTable, TableUnloaded, StaleRoute, HistoryGone):
        if _is_same(source, name, metadata):
            found = counter.in_store(source, name, txn)
            if _is_same(source, name, metadata):  # else it may have become another before it was planned
                return found
    return counter.in_files(str(target), name_files(metadata, files), txn)


def _is_same(source: Database | str | os.PathLike[str], name: str, metadata: TableMetadata) -> bool:
    now = Place.of(source).metadata(name)
    return now is not None and (now.table_id, now.schema.version) == (metadata.table_id, metadata.schema.version)


def name_files(metadata: TableMetadata, files: Sequence[BackedUpFile]) -> TableMetadata:
    """Return METADATA of a table with its files where they are below a directory of backups."""
    return renamed_files(metadata, {file.path: f"{file.backup}/{file.path}" for file in files})
