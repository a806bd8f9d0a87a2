"""The manifest of an export: what the files in a directory are, so that a reader can tell a whole export from a part.

    users.export/
      part-00000-....parquet
      part-00001-....parquet
      _ebla_export.json          table, schema, txn and time, rows; name, bytes and SHA-256 of every file

It is written last: a directory without it is not an export. Its name begins with an underscore, so that Spark, DuckDB
and others that read the directory pass it over.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ebla.errors import Corruption, MissingFile

__all__ = ["MANIFEST_NAME", "ExportManifest", "ExportedColumn", "ExportedFile", "check_export", "read_manifest"]

MANIFEST_NAME = "_ebla_export.json"
FORMAT_VERSION = 1
_HASHING_THREADS = 4


class ExportedColumn(msgspec.Struct, frozen=True):
    """A column: its name, its type in the table, and the type in which Spark wrote it."""

    name: str
    type: str
    written_as: str


class ExportedFile(msgspec.Struct, frozen=True):
    """A file of an export, by its name in the directory."""

    name: str
    bytes: int
    sha256: str


class ExportManifest(msgspec.Struct, frozen=True):
    """What an export holds. `txn` and `time` are those of the snapshot."""

    table: str
    format: str
    key: list[str]
    columns: list[ExportedColumn]
    schema_version: int
    txn: int
    time: str
    rows: int
    bytes: int
    files: list[ExportedFile]
    start: str | None = None
    stop: str | None = None
    prefix: str | None = None
    where: str | None = None
    format_version: int = FORMAT_VERSION


def read_manifest(path: str | os.PathLike[str]) -> ExportManifest:
    """Read the manifest of an export; `MissingFile` if there is none: then it is not a whole export."""
    file = Path(path) / MANIFEST_NAME
    try:
        return msgspec.json.decode(file.read_bytes(), type=ExportManifest)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFile(f"{path} has no {MANIFEST_NAME}: it is not an export, or one that did not finish") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as reason:
        raise Corruption(str(file), f"it is not the manifest of an export: {reason}") from None


def check_export(path: str | os.PathLike[str]) -> ExportManifest:
    """Compare the files of an export with its manifest; raise `MissingFile` or `Corruption` if they differ."""
    manifest = read_manifest(path)
    present = {file.name: file for file in files_of(Path(path), [one.name for one in manifest.files])}
    for file in manifest.files:
        if present[file.name] != file:
            raise Corruption(str(Path(path) / file.name), "size or checksum are not those in the manifest")
    return manifest


def files_of(directory: Path, names: Iterable[str], *, sync: bool = False) -> list[ExportedFile]:
    """Return sizes and checksums of files; with `sync`, they are durable then."""
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        return list(pool.map(lambda name: _describe(directory, name, sync=sync), sorted(names)))


def _describe(directory: Path, name: str, *, sync: bool) -> ExportedFile:
    try:
        with open(directory / name, "rb") as file:
            if sync:
                os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return ExportedFile(name, file.tell(), digest)
    except FileNotFoundError:
        raise MissingFile(f"{directory / name} is gone, but the manifest names it") from None


def write_manifest(directory: Path, manifest: ExportManifest) -> None:
    """Write the manifest in one step: it is there with all it says, or not at all."""
    fresh = directory / f".{MANIFEST_NAME}.{os.getpid()}"
    with open(fresh, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, directory / MANIFEST_NAME)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
