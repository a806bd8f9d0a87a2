"""The one seam between the store and the disk: every file of a store is made, read and removed through `Files`.

    Files (protocol)
    |-- LocalFiles(root)        a directory of this machine, through os.open / os.write / fdatasync
    |   `-- DirectFiles(root)   the same; what it writes goes past the page cache
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

import contextlib
import fcntl
import os
import stat
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

import pyarrow as pa

from ebla.errors import StoreLocked, TooManyFiles
from ebla.storage.files.late_close import close_later

__all__ = [
    "BytesLike",
    "FileInfo",
    "FileLock",
    "Files",
    "LocalFiles",
    "LocalWritableFile",
    "WritableFile",
    "check_path",
    "open_descriptor",
    "parent_of",
]

# Anything with the buffer protocol; pa.Buffer is one too.
BytesLike: TypeAlias = bytes | bytearray | memoryview

# Linux takes at most this many buffers in one writev.
_PARTS_MAX = 1024
# Files from this size on are deleted in two steps: the name now, the space beside.
LATE_CLOSE_BYTES_MIN = 1 << 20

_sync_data = getattr(os, "fdatasync", os.fsync)


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
        """Write all of `data` or raise; after an error an unknown part of it may be in the file."""

    def write_parts(self, parts: Sequence[BytesLike]) -> int:
        """Write the parts one after the other as one write, without joining them in memory first."""

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

    def read(self, path: str) -> bytes:
        """Return the whole content of a file."""

    def open_input(self, path: str) -> Any:
        """Open a file for random access, as a `pa.NativeFile`. Several threads may call its ``read_at``."""

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


class LocalFiles:
    """`Files` in a directory of this machine. The directory is made by the first `create` or `make_directory`."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        # Directories whose own names this instance has synced. Only grows, so threads need no lock for it.
        self._durable_directories: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalFiles({str(self.root)!r})"

    def _full(self, path: str) -> str:
        return f"{self.root}/{check_path(path)}" if path else str(self.root)

    def create(self, path: str) -> WritableFile:
        """Open with O_EXCL: a name is never written twice."""
        full = self._full(path)
        self.make_directory(parent_of(path))
        return LocalWritableFile(open_descriptor(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL))

    def write_on(self, path: str) -> WritableFile:
        """Open with O_APPEND."""
        descriptor = open_descriptor(self._full(path), os.O_WRONLY | os.O_APPEND)
        return LocalWritableFile(descriptor, os.fstat(descriptor).st_size)

    def read(self, path: str) -> bytes:
        """Read the file in one go."""
        with open(self._full(path), "rb", buffering=0, opener=open_descriptor) as file:
            return file.readall()

    def open_input(self, path: str) -> Any:
        """Open with `pa.OSFile`, which reads with pread."""
        # Not a memory map: a file cut under a map kills the process, and maps of many fragments fill the address
        # space; reads of whole column chunks gain nothing from one.
        full = self._full(path)
        try:
            return pa.OSFile(full, "rb")
        except OSError as error:
            if TooManyFiles.is_meant_by(error):
                raise TooManyFiles.at(full, error) from error
            raise

    def truncate(self, path: str, size: int) -> None:
        """Cut, if there is anything to cut, and fsync: the length is what must last."""
        descriptor = open_descriptor(self._full(path), os.O_RDWR)
        try:
            there = os.fstat(descriptor).st_size
            if not 0 <= size <= there:
                raise ValueError(f"cannot cut {path} down to {size} bytes: it has {there}")
            if size < there:
                os.ftruncate(descriptor, size)  # which would make even a file that is durable as it is dirty
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def delete(self, path: str) -> None:
        """Unlink; whoever has the file open can read on. The space of a large file goes a moment later."""
        full = self._full(path)
        descriptor = _opened_if_large(full)
        try:
            os.unlink(full)
        finally:
            if descriptor is not None:
                close_later(descriptor)

    def remove_directory(self, path: str) -> None:
        """Remove it, and forget that it was durable."""
        os.rmdir(self._full(path))
        self._durable_directories.discard(path)

    def replace(self, source: str, target: str) -> None:
        """Rename within the root."""
        os.replace(self._full(source), self._full(target))

    def exists(self, path: str) -> bool:
        """Ask the file system now."""
        return os.path.exists(self._full(path))

    def size(self, path: str) -> int:
        """Ask the file system now."""
        return os.stat(self._full(path)).st_size

    def list_directories(self, directory: str) -> list[str]:
        """Scan the directory for directories."""
        prefix = f"{directory}/" if directory else ""
        return sorted(prefix + entry.name for entry in self._entries(directory) if entry.is_dir(follow_symlinks=False))

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        full = self._full(directory)
        try:
            with os.scandir(full) as entries:
                return [*entries]
        except FileNotFoundError:
            return []
        except OSError as error:
            if TooManyFiles.is_meant_by(error):
                raise TooManyFiles.at(full, error) from error
            raise

    def list(self, directory: str) -> list[FileInfo]:
        """Scan the directory for files; those that vanish meanwhile are left out."""
        prefix = f"{directory}/" if directory else ""
        found = []
        for entry in self._entries(directory):
            try:
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append(FileInfo(prefix + entry.name, status.st_size, status.st_mtime))
            except FileNotFoundError:
                continue  # deleted since the directory was read
        return sorted(found, key=lambda info: info.path)

    def make_directory(self, path: str) -> None:
        """Make the directory and sync the one above it, down from the root."""
        if path in self._durable_directories:
            return
        full = self._full(path)
        if path:
            # The parents first: a directory is durable only if the whole way to it is. One that exists already may
            # have been made by a process that died before its sync, so it is synced again, once per instance.
            self.make_directory(parent_of(path))
            try:
                os.mkdir(full)
            except FileExistsError:
                if not os.path.isdir(full):
                    raise
            _sync_directory(os.path.dirname(full))
        elif not self.root.is_dir():
            _make_root(self.root)
        self._durable_directories.add(path)

    def sync_directory(self, path: str) -> None:
        """Fsync the directory."""
        _sync_directory(self._full(path))

    def lock(self, path: str) -> FileLock:
        """Take an flock, and leave the process id in the file for those who come too late."""
        full = self._full(path)
        self.make_directory(parent_of(path))
        descriptor = open_descriptor(full, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise StoreLocked(_locked_message(full, holder)) from None
        except BaseException:
            os.close(descriptor)
            raise
        # The number is only told to those who find the lock taken; the lock itself is the kernel's.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return _LocalFileLock(descriptor)


def open_descriptor(full: str, flags: int) -> int:
    """Open a file as `os.open` does; `TooManyFiles` if there is no descriptor left."""
    try:
        return os.open(full, flags, 0o666)
    except OSError as error:
        if TooManyFiles.is_meant_by(error):
            raise TooManyFiles.at(full, error) from error
        raise


def _opened_if_large(full: str) -> int | None:
    """Open a file whose blocks take long to free; None for others, and where it cannot be opened."""
    with contextlib.suppress(OSError):
        status = os.lstat(full)
        if status.st_size >= LATE_CLOSE_BYTES_MIN and stat.S_ISREG(status.st_mode):
            return os.open(full, os.O_RDONLY | os.O_NOFOLLOW)
    return None


def _make_root(root: Path) -> None:
    """Make the root and what is missing above it, syncing every directory that got a new name in it."""
    missing = [root, *root.parents]
    missing = missing[: next(index for index, directory in enumerate(missing) if directory.is_dir())]
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        _sync_directory(str(directory.parent))


def _sync_directory(full: str) -> None:
    descriptor = open_descriptor(full, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked_message(full: str, holder: str) -> str:
    if holder == str(os.getpid()):
        return f"{full}: this process has the store open for writing already: use that one, or close it first"
    who = f"process {holder}" if holder.isdigit() else "another process"
    return f"{full}: {who} has the store open for writing: close it there, or open it here with read_only=True"


class LocalWritableFile:
    """An unbuffered file descriptor that was opened for writing."""

    def __init__(self, descriptor: int, position: int = 0) -> None:
        self._descriptor = descriptor
        self._position = position

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._descriptor < 0

    def write(self, data: BytesLike) -> int:
        """Write all of it, however often the kernel has to be asked."""
        length = memoryview(data).nbytes
        done = os.write(self._open_descriptor(), data)
        self._position += done
        if done < length:
            self._write_rest(memoryview(data).cast("B")[done:])
        return length

    def write_parts(self, parts: Sequence[BytesLike]) -> int:
        """Write with writev."""
        length = 0
        for begin in range(0, len(parts), _PARTS_MAX):
            some = parts[begin : begin + _PARTS_MAX]
            expected = sum(memoryview(part).nbytes for part in some)
            done = os.writev(self._open_descriptor(), some)
            self._position += done
            if done < expected:
                self._write_rest(memoryview(b"".join(some))[done:])
            length += expected
        return length

    def _write_rest(self, rest: memoryview) -> None:
        # The kernel may take a part only (a signal, 2 GiB at once, the disk filling up): the next call either goes on
        # or says why not.
        while rest:
            done = os.write(self._descriptor, rest)
            self._position += done
            rest = rest[done:]

    def _open_descriptor(self) -> int:
        if self._descriptor < 0:
            raise ValueError("the file is closed")
        return self._descriptor

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def sync(self) -> None:
        """Make the bytes durable."""
        _sync_data(self._open_descriptor())

    def tell(self) -> int:
        """Return the number of bytes written, now and before."""
        return self._position

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _LocalFileLock:
    """An flock: it belongs to the open descriptor, so that it goes when the process does."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _held_locks.add(self)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


# A forked child shares its parent's descriptors and would keep the lock after the parent's death. It lets go of them
# at once; the parent keeps the lock, since flock ends with the last descriptor.
_held_locks: weakref.WeakSet[_LocalFileLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in [*_held_locks]:
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
