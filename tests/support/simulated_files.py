"""A disk in memory that knows what a crash may lose, and that fails when told to: the twin of `LocalFiles`.

    script --> SimulatedFiles --+-- record      every change, numbered: Operation(3, "sync", "log/x/1.log")
                  |             `-- plan        FaultPlan: fail (before, after, in the middle of) or crash at number n
                  v
              crash_images(seed)                the disks that a crash at this moment could leave behind

What survives a crash:
- of a file's bytes: those that were synced, and of the rest any number, cut at any byte; now and then the rest is there
  in length but with pages of zeros in it, since a disk may write unsynced pages in any order; what was reserved may be
  there or not;
- of the names in a directory: those at its last `sync_directory`, with any subset of the changes since then applied in
  order, each whole (a rename never leaves both names or neither);
- directories made by `make_directory`, which is durable by contract.

A crash is a `SimulatedCrash` (a `BaseException`, so that no handler for ordinary errors swallows it), raised by the
operation it was planned for, which then has no effect, and by all later ones. To go through a run: run it once and
count `record`, then run it again with a crash at every number and open every image. A process that is killed while the
machine lives on loses nothing (`restarted`), but what it had not synced can still be lost later.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa

from ebla.errors import StoreLocked
from ebla.storage.files.files import (
    BytesLike,
    FileInfo,
    FileLock,
    OverwrittenFile,
    ReadableFile,
    WritableFile,
    check_path,
    parent_of,
)

Kind = Literal["create", "write", "sync", "truncate", "delete", "replace", "make_directory", "sync_directory"]

_PAGE_BYTES = 4096


class SimulatedCrash(BaseException):
    """The machine has stopped. Only `crash_images` of its disk go on."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A change of the disk. `number` counts from 0; `size` is the length of a write, or what a file is cut to."""

    number: int
    kind: Kind
    path: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: `error` is an errno, or None for a crash.

    `effect` is how much of the operation happens first: 0 nothing, 1 all of it; a write may be given a part.
    """

    error: int | None
    effect: float = 0.0


@dataclass(frozen=True)
class FaultPlan:
    """Which operations fail: those numbered in `at`, and those that `when` returns a fault for.

    `reads` names files that cannot be read, with the errno.
    """

    at: Mapping[int, Fault] = field(default_factory=dict)
    when: Callable[[Operation], Fault | None] = lambda _: None
    reads: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def crash_at(cls, number: int) -> FaultPlan:
        """Crash at operation `number`."""
        return cls(at={number: Fault(None)})

    @classmethod
    def crash_when(cls, matches: Callable[[Operation], bool]) -> FaultPlan:
        """Crash at the first operation that matches."""
        return cls(when=lambda operation: Fault(None) if matches(operation) else None)

    @classmethod
    def fail_at(cls, number: int, error: int = errno.EIO, effect: float = 0.0) -> FaultPlan:
        """Fail operation `number` once."""
        return cls(at={number: Fault(error, effect)})

    @classmethod
    def fail_when(cls, matches: Callable[[Operation], bool], error: int = errno.EIO, effect: float = 0.0) -> FaultPlan:
        """Fail every operation that matches."""
        return cls(when=lambda operation: Fault(error, effect) if matches(operation) else None)

    def fault_of(self, operation: Operation) -> Fault | None:
        """Return what happens to an operation."""
        return self.at.get(operation.number) or self.when(operation)


class _Inode:
    """A file without a name. Files grow only at the end, so what is synced is a beginning.

    One that is overwritten in place has had several contents, of which any may be the one that lasts.
    """

    def __init__(self, data: BytesLike = b"") -> None:
        self.data = bytearray(data)
        self.reserved = 0  # if that is more than there is data, the rest are zeros
        self.synced = len(data)
        self.modified_seconds = 0.0
        self.overwritten: list[bytes] = []

    def copy(self) -> _Inode:
        other = _Inode(self.data)
        other.synced, other.modified_seconds = self.synced, self.modified_seconds
        other.overwritten = [*self.overwritten]
        other.reserved = self.reserved
        return other

    def overwrite(self, data: bytes) -> None:
        self.overwritten = [*(self.overwritten or [bytes(self.data)]), data]
        self.data[:] = data
        self.synced = len(data)

    @property
    def size(self) -> int:
        return max(len(self.data), self.reserved)

    @property
    def content(self) -> bytes:
        return self.with_zeros(self.data)

    def with_zeros(self, data: BytesLike) -> bytes:
        return bytes(data).ljust(self.reserved, b"\0")

    def durable(self) -> bytes:
        return self.overwritten[0] if self.overwritten else bytes(self.data[: self.synced])


@dataclass(frozen=True, slots=True)
class _NameChange:
    """A change of names that no `sync_directory` has made durable yet. A rename is both in one."""

    removed: str | None
    added: tuple[str, _Inode] | None

    def concerns(self, directory: str) -> bool:
        names = [self.removed] if self.removed is not None else []
        names += [self.added[0]] if self.added is not None else []
        return any(parent_of(name) == directory for name in names)

    def apply(self, names: dict[str, _Inode]) -> None:
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None:
            names[self.added[0]] = self.added[1]


class SimulatedFiles:
    """`Files` in memory. Threads may share it; `plan`, `bytes_max` may be set at any time."""

    def __init__(self, plan: FaultPlan | None = None, bytes_max: int | None = None) -> None:
        self.plan = plan or FaultPlan()
        self.bytes_max = bytes_max
        # Guarded by _lock.
        self._lock = threading.RLock()
        self._record: list[Operation] = []
        self._crashed = False
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._pending: list[_NameChange] = []
        self._directories: set[str] = {""}
        self._locks: set[str] = set()
        self._ticks = 0

    # --- Files -----------------------------------------------------------------------------------

    def create(self, path: str) -> WritableFile:
        check_path(path)
        self.make_directory(parent_of(path))
        with self._lock:
            inode = _Inode()

            def effect(_: float) -> None:
                self._free(path)
                self._change_names(None, (path, inode))
                self._touch(inode)

            self._operate("create", path, effect, check=lambda: self._free(path))
            return _SimulatedWritableFile(self, path, inode)

    def write_on(self, path: str) -> WritableFile:
        with self._lock:
            self._check_running()
            return _SimulatedWritableFile(self, path, self._inode(path))

    def open_overwritten(self, path: str) -> OverwrittenFile:
        check_path(path)
        with self._lock:
            self._check_running()
            if path not in self._names:
                self.put(path, b"")
            return _SimulatedOverwrittenFile(self, self._inode(path))

    def read(self, path: str) -> bytes:
        with self._lock:
            return self._readable(path).content

    def open_input(self, path: str) -> Any:
        return pa.BufferReader(self.read(path))

    def open_at(self, path: str) -> ReadableFile:
        with self._lock:
            return _SimulatedReadableFile(self._readable(path))

    def truncate(self, path: str, size: int) -> None:
        with self._lock:

            def check() -> None:
                if not 0 <= size <= self._inode(path).size:
                    raise ValueError(f"cannot cut {path} down to {size} bytes")

            def effect(_: float) -> None:
                inode = self._inode(path)
                inode.data[:] = inode.content[:size]
                inode.synced, inode.reserved = size, 0
                self._touch(inode)

            self._operate("truncate", path, effect, size, check=check)

    def delete(self, path: str) -> None:
        with self._lock:
            self._operate("delete", path, lambda _: self._change_names(path, None), check=lambda: self._inode(path))

    def replace(self, source: str, target: str) -> None:
        with self._lock:

            def check() -> None:
                self._inode(source)
                if parent_of(check_path(target)) not in self._directories:
                    raise FileNotFoundError(errno.ENOENT, "No such directory", target)

            self._operate(
                "replace",
                target,
                lambda _: self._change_names(source, (target, self._inode(source))) if source != target else None,
                check=check,
            )

    def exists(self, path: str) -> bool:
        with self._lock:
            self._check_running()
            return check_path(path) in self._names or path in self._directories

    def size(self, path: str) -> int:
        with self._lock:
            return self._readable(path).size

    def list_directories(self, directory: str) -> list[str]:
        with self._lock:
            self._check_running()
            check_path(directory)
            return sorted(path for path in self._directories if path and parent_of(path) == directory)

    def list(self, directory: str) -> list[FileInfo]:
        with self._lock:
            self._check_running()
            check_path(directory)
            return [
                FileInfo(path, inode.size, inode.modified_seconds)
                for path, inode in sorted(self._names.items())
                if parent_of(path) == directory
            ]

    def make_directory(self, path: str) -> None:
        with self._lock:
            self._check_running()
            if check_path(path) in self._directories:
                return
            self.make_directory(parent_of(path))
            self._operate("make_directory", path, lambda _: self._directories.add(path), check=lambda: self._free(path))

    def remove_directory(self, path: str) -> None:
        with self._lock:

            def check() -> None:
                if any(other.startswith(f"{path}/") for other in (*self._names, *self._directories)):
                    raise OSError(errno.ENOTEMPTY, "Directory not empty", path)

            self._operate("remove_directory", path, lambda _: self._directories.discard(path), check=check)

    def sync_directory(self, path: str) -> None:
        with self._lock:

            def check() -> None:
                if check_path(path) not in self._directories:
                    raise FileNotFoundError(errno.ENOENT, "No such directory", path)

            def effect(_: float) -> None:
                for change in self._pending:
                    if change.concerns(path):
                        change.apply(self._durable_names)
                self._pending = [change for change in self._pending if not change.concerns(path)]

            self._operate("sync_directory", path, effect, check=check)

    def lock(self, path: str) -> FileLock:
        check_path(path)
        with self._lock:
            self._check_running()
            if path in self._locks:
                raise StoreLocked(f"{path}: the store is open for writing already: close it first")
            self._locks.add(path)
            if path not in self._names:
                self.put(path, b"")
            return _SimulatedFileLock(self, path)

    # --- for tests -------------------------------------------------------------------------------

    @property
    def crashed(self) -> bool:
        """Whether the machine has stopped."""
        return self._crashed

    def record(self) -> Sequence[Operation]:
        """Return the operations so far."""
        with self._lock:
            return tuple(self._record)

    def crash(self) -> None:
        """Stop the machine now, between two operations."""
        with self._lock:
            self._crashed = True

    def put(self, path: str, data: bytes) -> None:
        """Put a file there, durably and without an operation: to damage one, or to set a scene."""
        with self._lock:
            inode = _Inode(data)
            self._names[check_path(path)] = inode
            self._durable_names[path] = inode
            while path:
                path = parent_of(path)
                self._directories.add(path)

    def restarted(self) -> SimulatedFiles:
        """Return the disk as the next process finds it after this one was killed: all is there, and no more durable."""
        with self._lock:
            inodes = {id(inode): inode for inode in [*self._names.values(), *self._durable_names.values()]}
            inodes |= {id(change.added[1]): change.added[1] for change in self._pending if change.added is not None}
            copies = {key: inode.copy() for key, inode in inodes.items()}
            files = SimulatedFiles(bytes_max=self.bytes_max)
            files._names = {path: copies[id(inode)] for path, inode in self._names.items()}
            files._durable_names = {path: copies[id(inode)] for path, inode in self._durable_names.items()}
            files._pending = [
                _NameChange(change.removed, change.added and (change.added[0], copies[id(change.added[1])]))
                for change in self._pending
            ]
            files._directories |= self._directories
            files._ticks = self._ticks
            return files

    def image(self, data: Callable[[_Inode], bytes], kept: Iterable[bool]) -> SimulatedFiles:
        """Return the disk on which `data` is left of every file, and the name changes that are `kept` have happened."""
        names = dict(self._durable_names)
        for change, keep in zip(self._pending, kept, strict=True):
            if keep:
                change.apply(names)
        files = SimulatedFiles(bytes_max=self.bytes_max)
        for path, inode in names.items():
            files.put(path, data(inode))
        files._directories |= self._directories
        return files

    def crash_images(self, seed: int = 0, count: int = 8) -> Sequence[SimulatedFiles]:
        """Return disks that a crash now could leave: the extremes, and `count` seeded ones between them."""
        with self._lock:
            dice = random.Random(seed)
            changes = len(self._pending)

            def everything(inode: _Inode) -> bytes:
                return inode.content

            def synced(inode: _Inode) -> bytes:
                return inode.durable()

            def some(inode: _Inode) -> bytes:
                return _torn(inode, dice)

            images = [
                self.image(synced, [False] * changes),
                self.image(everything, [True] * changes),
                self.image(synced, [True] * changes),
                self.image(everything, [False] * changes),
            ]
            for _ in range(count):
                kept = [dice.random() < 0.5 for _ in range(changes)] if dice.random() < 0.5 else [True] * changes
                images.append(self.image(some, kept))
            return images

    # --- inside ----------------------------------------------------------------------------------

    def _operate(
        self,
        kind: Kind,
        path: str,
        effect: Callable[[float], object],
        size: int = 0,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """Number an operation and let it happen, fail or crash. `check` raises what the real one would, before that."""
        with self._lock:
            self._check_running()
            check()
            operation = Operation(len(self._record), kind, path, size)
            fault = self.plan.fault_of(operation)
            if fault is not None and fault.error is None:
                self._crashed = True
                self._check_running()
            self._record.append(operation)
            if fault is None:
                effect(1.0)
                return
            if kind == "write" or fault.effect >= 1.0:
                effect(fault.effect)
            assert fault.error is not None
            raise OSError(fault.error, os.strerror(fault.error), path)

    def _check_running(self) -> None:
        if self._crashed:
            raise SimulatedCrash

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(check_path(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def _readable(self, path: str) -> _Inode:
        self._check_running()
        inode = self._inode(path)
        if path in self.plan.reads:
            raise OSError(self.plan.reads[path], os.strerror(self.plan.reads[path]), path)
        return inode

    def _free(self, path: str) -> None:
        if path in self._names or path in self._directories:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def _change_names(self, removed: str | None, added: tuple[str, _Inode] | None) -> None:
        change = _NameChange(removed, added)
        change.apply(self._names)
        self._pending.append(change)

    def _touch(self, inode: _Inode) -> None:
        self._ticks += 1
        inode.modified_seconds = float(self._ticks)

    def _write(self, path: str, inode: _Inode, data: bytes) -> None:
        def effect(part: float) -> None:
            self._touch(inode)
            length = int(len(data) * part)
            used = sum(len(other.data) for other in self._names.values()) if self.bytes_max is not None else 0
            room = length if self.bytes_max is None else max(self.bytes_max - used, 0)
            inode.data += data[: min(length, room)]
            if room < length:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        self._operate("write", path, effect, len(data))

    def _sync(self, path: str, inode: _Inode) -> None:
        def effect(_: float) -> None:
            inode.synced = len(inode.data)

        self._operate("sync", path, effect)


def _torn(inode: _Inode, dice: random.Random) -> bytes:
    """Return what may be left of a file whose last bytes were not synced."""
    if inode.overwritten:
        return dice.choice(inode.overwritten)
    left = inode.data[: dice.randint(inode.synced, len(inode.data))]
    if dice.random() < 0.25:
        # The length got there, but not all pages did. What was synced stays, also within a page that was not.
        for begin in range(inode.synced // _PAGE_BYTES * _PAGE_BYTES, len(left), _PAGE_BYTES):
            if dice.random() < 0.5:
                page = slice(max(begin, inode.synced), min(begin + _PAGE_BYTES, len(left)))
                left[page] = bytes(page.stop - page.start)
    return inode.with_zeros(left) if dice.random() < 0.5 else bytes(left)


class _SimulatedReadableFile:
    """Sees what becomes of the file, as whoever has it open does."""

    def __init__(self, inode: _Inode) -> None:
        self._inode = inode
        self.size = inode.size

    def read_at(self, size: int, offset: int) -> bytes:
        return self._inode.content[offset : offset + size]


class _SimulatedWritableFile:
    """A file that is open for writing; it stays so when its name goes."""

    def __init__(self, files: SimulatedFiles, path: str, inode: _Inode) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def write(self, data: BytesLike) -> int:
        return self.write_buffers([data])

    def write_buffers(self, parts: Sequence[BytesLike]) -> int:
        self._check_open()
        data = b"".join(parts)
        self._files._write(self._path, self._inode, data)
        return len(data)

    def reserve(self, size: int) -> None:
        # It has no number among the operations: a crash before it and one after it may leave the same.
        with self._files._lock:
            self._check_open()
            self._files._check_running()
            self._inode.reserved = size

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        self._check_open()
        self._files._sync(self._path, self._inode)

    def tell(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the file is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _SimulatedOverwrittenFile:
    """A file that is overwritten in place.

    That has no number among the operations: a crash before it and one after it leave the same, as any content may last.
    """

    def __init__(self, files: SimulatedFiles, inode: _Inode) -> None:
        self._files = files
        self._inode = inode

    def overwrite(self, data: BytesLike) -> None:
        with self._files._lock:
            self._files._check_running()
            self._inode.overwrite(bytes(data))

    def close(self) -> None:
        pass


class _SimulatedFileLock:
    """A lock of one `SimulatedFiles`; an image of it has none."""

    def __init__(self, files: SimulatedFiles, path: str) -> None:
        self._files = files
        self._path: str | None = path

    def release(self) -> None:
        with self._files._lock:
            path, self._path = self._path, None
            if path is not None:
                self._files._locks.discard(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
