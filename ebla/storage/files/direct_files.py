"""Files that are written past the system's page cache: for tasks that write much, and will not read it.

    write --> | being filled | --> when it is full, by a thread of the file --> disk
              a buffer of whole pages

Ordinary writes are copied to the page cache, which needs a page of memory for every 4 KiB, and has to bring it to the
disk later. Where a machine gets its memory page by page, as virtual ones do, that may cost as much as the making of the
Parquet pages, and what others read is pushed out of the cache. So a task of many megabytes has whole pages written to
the disk itself, while it goes on.

What is left at the end of a file is not a whole page and goes the ordinary way. So does everything where the
file system does not know the other one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ebla.storage.files.files import BytesLike, WritableFile, parent_of
from ebla.storage.files.local_file import LocalWritableFile, open_descriptor
from ebla.storage.files.local_files import LocalFiles

__all__ = ["DirectFiles"]

BUFFER_BYTES = 1 << 20
# One is filled, one is on its way, one waits.
BUFFERS = 3

_DIRECT = getattr(os, "O_DIRECT", 0)  # not every system has it


class DirectFiles(LocalFiles):
    """`LocalFiles`, but for how new files are written. For those that get megabytes: each has buffers and a thread."""

    def create(self, path: str) -> WritableFile:
        """Open with O_EXCL: a name is never written twice."""
        full = self._full(path)
        self.make_directory(parent_of(path))
        try:
            return _DirectFile(open_descriptor(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _DIRECT))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(full)  # some make the file before they refuse to open it
        return super().create(path)


class _DirectFile(LocalWritableFile):
    """A file that is written in whole pages up to its first `flush` or `sync`, from then on in the ordinary way.

    What was written and not flushed is lost when it is closed.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._filling: mmap.mmap | None = mmap.mmap(-1, BUFFER_BYTES)
        self._filled = 0
        self._going: deque[tuple[Future[None], mmap.mmap]] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def write(self, data: BytesLike) -> int:
        rest = memoryview(data).cast("B")
        length, descriptor = len(rest), self._open_descriptor()
        while rest and self._filling is not None:
            end = min(self._filled + len(rest), BUFFER_BYTES)
            taken = end - self._filled
            self._filling[self._filled : end] = rest[:taken]
            self._filled, rest = end, rest[taken:]
            if end == BUFFER_BYTES:
                self._send(self._filling)
                self._filling, self._filled = self._empty_buffer(), 0
        _write_all(descriptor, rest)
        self._position += length
        return length

    def write_buffers(self, buffers: Sequence[BytesLike]) -> int:
        return sum(self.write(buffer) for buffer in buffers)

    def _send(self, buffer: mmap.mmap) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "ebla-direct")
        self._going.append((self._pool.submit(_write_all, self._descriptor, memoryview(buffer)), buffer))

    def _empty_buffer(self) -> mmap.mmap:
        if len(self._going) + 1 < BUFFERS:
            return mmap.mmap(-1, BUFFER_BYTES)
        future, buffer = self._going.popleft()
        future.result()
        return buffer

    def flush(self) -> None:
        """Have all that was written in the file, where others can read it."""
        descriptor = self._open_descriptor()
        while self._going:
            self._going.popleft()[0].result()
        if self._filling is not None:
            rest, self._filling = memoryview(self._filling)[: self._filled], None
            _go_ordinary_way(descriptor)
            _write_all(descriptor, rest)

    def sync(self) -> None:
        self.flush()
        super().sync()

    def close(self) -> None:
        # The thread first: it writes to the descriptor.
        if not self.closed and self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        super().close()


def _write_all(descriptor: int, rest: memoryview) -> None:
    """Write everything. What is left after a short write is no whole page, and some disks want larger ones."""
    while rest:
        try:
            done = os.write(descriptor, rest)
        except OSError as error:
            if error.errno != errno.EINVAL or not _go_ordinary_way(descriptor):
                raise
            continue
        if done < len(rest):
            _go_ordinary_way(descriptor)
        rest = rest[done:]


def _go_ordinary_way(descriptor: int) -> bool:
    """Write through the page cache from now on; False if that is so already."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not flags & _DIRECT:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
    return True
