"""The manifest of a backup, and the directory in which backups lie side by side.

    backups/
      20261116T044512907-1a2b3c4d/          a full one
        _ebla_backup.json                  tables, schemas, txn, every file that it needs: written last
        fragments/<table id>/<id>.parquet
      20261117T044501313-5e6f7a8b/          an incremental one: what the one before does not have
        _ebla_backup.json                  every file that it needs, and which backup has it
        fragments/<table id>/<id>.parquet
      20261118T044500108-9c0d1e2f/          no manifest: not a backup; it is being made, or has failed

A manifest carries a checksum of itself. The format is told in docs/formats/backup.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ebla.arguments import checked_names, checked_path
from ebla.direct.files import LocalFiles
from ebla.errors import Corruption, FormatTooNew, MissingFile, RequestError, StoreError, StoreLocked, shown
from ebla.metadata.values.restoring import unpack_metadata
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.schema import GroupSchema

__all__ = [
    "LOCK_NAME",
    "MANIFEST_NAME",
    "BackedUpFile",
    "BackedUpGroup",
    "BackedUpTable",
    "BackupManifest",
    "Backups",
    "check_chain",
    "group_of",
    "list_backups",
    "read_manifest",
    "remove_unfinished",
    "write_manifest",
]

MANIFEST_NAME = "_ebla_backup.json"
LOCK_NAME = "_lock"
# 1: rows were summed up by Spark's own hash, which only Spark can repeat.
FORMAT_VERSION = 2
_ID = re.compile(r"\d{8}T\d{9}-[0-9a-f]{8}")


class BackedUpFile(msgspec.Struct, frozen=True):
    """A fragment that a backup needs: its path in `backup`, the backup that has it."""

    path: str
    bytes: int
    sha256: str
    backup: str


class BackedUpGroup(msgspec.Struct, frozen=True):
    """A group and its settings, for people; what a restore goes by is METADATA."""

    name: str
    layout: str
    columns: dict[str, str]
    families: list[str]
    compression: str
    block_bytes: int
    max_versions: int | None
    max_age_microseconds: int | None
    purge_join: str
    in_memory: bool
    lookup_at_once: bool = False


class BackedUpTable(msgspec.Struct, frozen=True):
    """A table: what a reader at the backup's txn sees of it, and its METADATA, packed."""

    name: str
    table_id: str
    schema_version: int
    key: dict[str, str]
    groups: list[BackedUpGroup]
    splits: list[str]  # the first rows of all tablets but the first, in hexadecimal digits
    rows: int | None  # None: not counted, and no checksum
    checksum: str | None  # None also if it was made by an earlier version, in another way: only rows are compared then
    metadata: bytes

    def table_metadata(self, where: str) -> TableMetadata:
        """Return its METADATA; `Corruption` of `where` if that cannot be read."""
        return unpack_metadata(self.metadata, where)


class BackupManifest(msgspec.Struct, frozen=True):
    """What a backup is. `chain` are the backups that have its files, oldest first, without itself."""

    id: str
    kind: str  # full or incremental
    store: str  # the id of the store that it is of
    txn: int
    time: str
    base: str | None
    chain: list[str]
    tables: list[BackedUpTable]
    files: list[BackedUpFile]
    made_by: str

    def own_files(self) -> list[BackedUpFile]:
        """Return the files that lie in this very backup."""
        return [file for file in self.files if file.backup == self.id]

    def table(self, name: str) -> BackedUpTable:
        """Return the table of that name, and never another: a restore in place would replace one table by it."""
        for table in self.tables:
            if isinstance(name, str) and table.name == name:
                return table
        names = ", ".join(sorted(table.name for table in self.tables))
        raise RequestError(
            f"backup {self.id} has no table {shown(name)}, it has {names or 'none'}: "
            "say which of them with --of (of=...), or another backup with --at (at=...)"
        )


class _Envelope(msgspec.Struct, frozen=True):
    format_version: int
    sha256: str
    manifest: msgspec.Raw


class Backups(msgspec.Struct, frozen=True):
    """What lies in a directory: backups by txn, what is no backup (yet), and manifests that cannot be read."""

    complete: list[BackupManifest]
    unfinished: list[str]
    damaged: dict[str, str]

    def find(self, at: str | int | None, path: Path) -> BackupManifest:
        """Return a backup by id, the beginning of one, or txn; the newest for None or ``last``.

        `Corruption` if the newest cannot be read: an older one is taken only by whoever names it.
        """
        if at is None or (isinstance(at, str) and at == "last"):
            newest = self.newest_readable(path)
            if later := max((name for name in self.damaged if name > newest.id), default=None):
                raise Corruption(
                    str(path / later / MANIFEST_NAME),
                    f"it is the newest backup here; the newest that can be read is {newest.id}, take it by that name",
                )
            return newest
        if isinstance(at, bool) or not isinstance(at, (str, int)) or (isinstance(at, int) and abs(at) >= 1 << 63):
            raise RequestError(f"a backup is named by its id or its txn, not by {shown(at)}")
        text = str(at)
        of_txn = [one for one in self.complete if text == str(one.txn)]
        if of_txn:
            return of_txn[-1]  # several of one txn are of the same moment
        found = [one for one in self.complete if len(text) >= 4 and one.id.startswith(text)]
        if len(found) == 1:
            return found[0]
        if found:
            raise RequestError(f"{text} may be any of {', '.join(one.id for one in found)}: say more of it")
        for name, reason in self.damaged.items():
            if name.startswith(text):
                raise Corruption(str(path / name / MANIFEST_NAME), reason)
        raise RequestError(f"there is no backup {text} in {path}: {self._instead()}")

    def newest_readable(self, path: Path) -> BackupManifest:
        """Return the newest backup whose manifest can be read; `MissingFile` if there is none."""
        if self.complete:
            return self.complete[-1]
        raise MissingFile(f"there is no backup in {path}: {self._instead()}")

    def _instead(self) -> str:
        if self.complete:
            return f"there are {', '.join(one.id for one in self.complete)}"
        if self.damaged:
            return f"the manifest of {', '.join(sorted(self.damaged))} is damaged"
        return "the directory has none that is complete"


def group_of(group: GroupSchema) -> BackedUpGroup:
    """Describe a group for people."""
    return BackedUpGroup(
        name=group.name,
        layout=group.layout,
        columns={column.name: str(column.type) for column in group.columns},
        families=[family.name for family in group.families],
        compression=group.compression,
        block_bytes=group.block_bytes,
        max_versions=group.max_versions,
        max_age_microseconds=group.max_age_microseconds,
        purge_join=group.purge_join,
        in_memory=group.in_memory,
        lookup_at_once=group.lookup_at_once,
    )


# --- one manifest --------------------------------------------------------------------------------


def write_manifest(directory: Path, manifest: BackupManifest) -> None:
    """Make a backup of what lies in a directory: durable, and there as a whole or not at all."""
    body = msgspec.json.encode(manifest)
    envelope = _Envelope(FORMAT_VERSION, hashlib.sha256(body).hexdigest(), msgspec.Raw(body))
    files = LocalFiles(directory)
    fresh = f"{MANIFEST_NAME}.new"
    with files.create(fresh) as file:
        file.write(msgspec.json.encode(envelope))
        file.sync()
    files.replace(fresh, MANIFEST_NAME)
    files.sync_directory("")


def read_manifest(directory: Path) -> BackupManifest:
    """Read a manifest; `MissingFile` if there is none, `Corruption` if it is not as it was written."""
    file = directory / MANIFEST_NAME
    try:
        envelope = msgspec.json.decode(file.read_bytes(), type=_Envelope)
        if envelope.format_version > FORMAT_VERSION:
            raise FormatTooNew(
                f"{file} has format {envelope.format_version}: use the version of Ebla that made it, or a later one"
            )
        if hashlib.sha256(bytes(envelope.manifest)).hexdigest() != envelope.sha256:
            raise Corruption(str(file), "its checksum is wrong: take another backup, or a copy of this one")
        manifest = msgspec.json.decode(envelope.manifest, type=BackupManifest)
        if envelope.format_version == 1:
            tables = [msgspec.structs.replace(table, checksum=None) for table in manifest.tables]
            manifest = msgspec.structs.replace(manifest, tables=tables)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFile(f"{directory} has no {MANIFEST_NAME}: it is not a backup, or one that failed") from None
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error}: mend the cause, then retry") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as reason:
        raise Corruption(str(file), f"it is not the manifest of a backup: {reason}") from None
    if manifest.id != directory.name:
        raise Corruption(str(file), f"it is the manifest of {manifest.id}: give the directory that name again")
    return manifest


def check_chain(path: Path, manifest: BackupManifest) -> None:
    """Raise unless all that a backup builds on is there, in order, and every file has its size.

    `MissingFile` names the backup or the file that is not there. What is in the files is checked when they are read.
    """
    before: BackupManifest | None = None
    for link in manifest.chain:
        if not (path / link).is_dir():
            raise MissingFile(
                f"backup {manifest.id} builds on {link}, which is not in {path}: bring it back, or use another"
            )
        try:
            found = read_manifest(path / link)
        except MissingFile:
            raise MissingFile(
                f"backup {manifest.id} builds on {link}, which has no {MANIFEST_NAME}: bring it back, or use another"
            ) from None
        for later in (manifest, before):
            if later is not None and found.store != later.store:
                raise Corruption(str(path / link / MANIFEST_NAME), f"{later.id} builds on it, and is of another store")
        if found.txn > manifest.txn or (before is not None and found.txn < before.txn):
            raise Corruption(
                str(path / link / MANIFEST_NAME), f"it is out of order in the chain of {manifest.id}: {manifest.chain}"
            )
        before = found
    for file in manifest.files:
        there = path / file.backup / file.path
        try:
            size = there.stat().st_size
        except FileNotFoundError:
            raise MissingFile(f"{there} is gone, and backup {manifest.id} needs it: bring it back") from None
        except OSError as error:
            raise StoreError(f"{there} cannot be looked at: {error}: mend the cause, then retry") from error
        if size != file.bytes:
            raise Corruption(
                str(there), f"it has {size} bytes, and had {file.bytes} when backup {file.backup} was made"
            )


# --- the directory -------------------------------------------------------------------------------


def list_backups(path: str | os.PathLike[str]) -> Backups:
    """Look at a directory of backups; `MissingFile` if there is none."""
    root = checked_path("the directory of backups", path)
    if not root.is_dir():
        raise MissingFile(f"{path} is not a directory of this machine: give the one that backups were made in")
    complete: list[BackupManifest] = []
    unfinished: list[str] = []
    damaged: dict[str, str] = {}
    for entry in sorted(root.iterdir()):
        if not _ID.fullmatch(entry.name) or not entry.is_dir():
            continue
        try:
            complete.append(read_manifest(entry))
        except MissingFile:
            unfinished.append(entry.name)
        except (Corruption, FormatTooNew) as error:
            damaged[entry.name] = str(error)
    return Backups(sorted(complete, key=lambda one: (one.txn, one.id)), unfinished, damaged)


def remove_unfinished(path: str | os.PathLike[str], unfinished: Iterable[str]) -> list[str]:
    """Remove what failed backups have left, and return it; what a process is still making stays.

    A directory that lost its manifest looks the same. It stays if a backup needs its files, or may need them: a later
    one whose manifest cannot be read.
    """
    there = list_backups(path)
    needed = {name for one in there.complete for name in (*one.chain, *(file.backup for file in one.files))}
    removed = []
    for name in checked_names("unfinished", unfinished):
        # Nothing but what lies here: "" would be all backups, and ".." what is beside them.
        if name not in there.unfinished or name in needed or any(name < later for later in there.damaged):
            continue
        directory = Path(path) / name
        files = LocalFiles(directory)
        with contextlib.suppress(StoreLocked), files.lock(LOCK_NAME):
            if not (directory / MANIFEST_NAME).exists():
                shutil.rmtree(directory)
                removed.append(name)
    return removed
