"""`Files` in a directory of this machine, through os.open, os.write, fdatasync and flock."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa

from ebla.errors import TooManyFiles
from ebla.storage.files.file_lock import take_lock
from ebla.storage.files.files import (
    FileInfo,
    FileLock,
    OverwrittenFile,
    ReadableFile,
    WritableFile,
    check_path,
    parent_of,
)
from ebla.storage.files.late_close import close_later
from ebla.storage.files.local_file import LocalOverwrittenFile, LocalReadableFile, LocalWritableFile, open_descriptor

__all__ = ["LocalFiles"]

# Files from this size on are deleted in two steps: the name now, the space beside.
LATE_CLOSE_BYTES_MIN = 1 << 20


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
        """Go to its end. Not by O_APPEND: what is reserved lies behind the end of what was written."""
        descriptor = open_descriptor(self._full(path), os.O_WRONLY)
        return LocalWritableFile(descriptor, os.lseek(descriptor, 0, os.SEEK_END))

    def open_overwritten(self, path: str) -> OverwrittenFile:
        """Open with O_CREAT, and sync the directory if the file is new."""
        full = self._full(path)
        self.make_directory(parent_of(path))
        is_new = not os.path.exists(full)
        file = LocalOverwrittenFile(open_descriptor(full, os.O_WRONLY | os.O_CREAT))
        if is_new:
            self.sync_directory(parent_of(path))
        return file

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

    def open_at(self, path: str) -> ReadableFile:
        """Open for pread."""
        return LocalReadableFile(open_descriptor(self._full(path), os.O_RDONLY))

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
        return take_lock(full)


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
