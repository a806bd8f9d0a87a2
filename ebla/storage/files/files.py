"""The one seam between the store and the disk: every file of a store is made, read and removed through `Files`.

    Files (protocol)
    |-- LocalFiles(root)        a directory of this machine (local_files.py)
    |   `-- DirectFiles(root)   the same; what it writes goes past the page cache (direct_files.py)
    `-- (tests) SimulatedFiles  the same in memory; knows what a crash may lose, and fails when told to

Paths are relative to the root, written with ``/``; ``""`` is the root itself. Nothing reaches outside the root.

What is durable, that is, still there after a power cut:
- the bytes of a file after `WritableFile.sync`, `truncate`;
- the name of a file (created, replaced, deleted) after `sync_directory` on the directory it is in, and not before,
  even if its bytes were synced: a writer that must not lose a file syncs both;
- a directory made by `make_directory` (or by `create`, for a missing parent) when the call returns.

Errors of the operating system come through as `OSError` (`FileNotFoundError`, `FileExistsError`, ENOSPC, EIO...): what
they mean depends on the file, so the caller says it. One always means the same, that no descriptor is left to open a
file with, and comes as `TooManyFiles`, which is an `OSError` as well. Pyarrow's own local streams cannot be synced,
which is why `WritableFile` is a Python file; it has what `pa.PythonFile` needs, so Parquet can be written straight into
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

__all__ = [
    "BytesLike",
    "FileInfo",
    "FileLock",
    "Files",
    "OverwrittenFile",
    "ReadableFile",
    "WritableFile",
    "check_path",
    "parent_of",
]

# Anything with the buffer protocol; pa.Buffer is one too.
BytesLike: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as a directory listing shows it; `path` is relative to the root of the store."""

    path: str
    size: int
    modified_seconds: float


class WritableFile(Protocol):
    """A new file being written from its beginning, or an old one from its end on. One thread at a time."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    def write(self, data: BytesLike) -> int:
        """Write all of `data` or raise; after an error, nobody knows how much of it is in the file."""

    def write_buffers(self, buffers: Sequence[BytesLike]) -> int:
        """Write the buffers one after the other as one write, without joining them in memory first."""

    def reserve(self, size: int) -> None:
        """Have the file be so long already: beyond what was written it reads as zeros, and `write` goes on as before.

        Writes that do not make a file longer are cheaper to sync. It is durable, or not, as a write is. To reserve what
        `tell` returns gives back what is left.
        """

    def flush(self) -> None:
        """Have all that was written where it can be read. It does not sync."""

    def sync(self) -> None:
        """Make everything written so far durable. If it fails, what is on disk is unknown: never retry it."""

    def tell(self) -> int:
        """Return the number of bytes written, now and before."""

    def close(self) -> None:
        """Close the file, without syncing it; what was not flushed may be lost. Closing twice is allowed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class OverwrittenFile(Protocol):
    """A few bytes that are replaced in place, again and again. One thread at a time."""

    def overwrite(self, data: BytesLike) -> None:
        """Put `data`, always of the same length, in the place of what is there. It is not synced.

        A process that is killed leaves what it wrote last; a power cut may leave anything that was written since the
        file was opened, or what was there before.
        """

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""


class ReadableFile(Protocol):
    """A file that is read in places. Threads may share it; it is closed when nobody has it any more."""

    @property
    def size(self) -> int:
        """Its bytes, when it was opened."""

    @property
    def read_at(self) -> Callable[[int, int], bytes]:
        """Return up to so many bytes, the first argument, from a place on: fewer only where the file ends.

        Whoever keeps this has to keep the file, too.
        """


class FileLock(Protocol):
    """An exclusive lock that is held until `release`, or until the process ends in whatever way."""

    def release(self) -> None:
        """Give the lock up. Releasing twice is allowed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Files(Protocol):
    """The files of one store. Safe to use from several threads."""

    def create(self, path: str) -> WritableFile:
        """Make a new file and open it for writing; `FileExistsError` if the name is taken.

        Missing parent directories are made durably. The name itself is durable after `sync_directory`.
        """

    def write_on(self, path: str) -> WritableFile:
        """Open a file that is there for writing from its end on."""

    def open_overwritten(self, path: str) -> OverwrittenFile:
        """Open a small file whose bytes are replaced in place; it is made if it is missing, and its name durable."""

    def read(self, path: str) -> bytes:
        """Return the whole content of a file."""

    def open_input(self, path: str) -> Any:
        """Open a file for random access, as a `pa.NativeFile`. Several threads may call its ``read_at``."""

    def open_at(self, path: str) -> ReadableFile:
        """Open a file to be read in small pieces, one by one: less to do for each than with `open_input`."""

    def truncate(self, path: str, size: int) -> None:
        """Cut a file down to `size` bytes, durably. `ValueError` if it is shorter already."""

    def delete(self, path: str) -> None:
        """Remove a file. Durable after `sync_directory`."""

    def remove_directory(self, path: str) -> None:
        """Remove a directory that is empty and in which nobody will make anything again; `OSError` if it is not."""

    def replace(self, source: str, target: str) -> None:
        """Rename a file over `target`, in one step. Durable after `sync_directory`."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of that name."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def list_directories(self, directory: str) -> list[str]:
        """Return the paths of the directories in a directory, sorted; nothing if there is no directory."""

    def list(self, directory: str) -> list[FileInfo]:
        """Return the files (not directories) in a directory, sorted by path; nothing if there is no directory."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, durably. It may exist already."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable: files created in it, deleted from it, renamed in it."""

    def lock(self, path: str) -> FileLock:
        """Take the lock at `path` or raise `StoreLocked` at once. The file is made if missing, and stays."""


def check_path(path: str) -> str:
    """Return `path` if it is a plain relative path below the root (or ``""``, the root), else raise `ValueError`."""
    if (path and any(part in ("", ".", "..") for part in path.split("/"))) or "\0" in path:
        raise ValueError(f"{path!r} is not a plain path below the root of the store")
    return path


def parent_of(path: str) -> str:
    """Return the directory that a path is in; ``""`` for a name in the root."""
    return path.rpartition("/")[0]
