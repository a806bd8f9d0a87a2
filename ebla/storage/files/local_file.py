"""Open files of this machine: the descriptors that `LocalFiles` hands out for writing and for locks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from ebla.errors import TooManyFiles
from ebla.storage.files.files import BytesLike

__all__ = ["Descriptor", "LocalOverwrittenFile", "LocalReadableFile", "LocalWritableFile", "open_descriptor"]

# Linux takes at most this many buffers in one writev.
_BUFFERS_MAX = 1024

_sync_data = getattr(os, "fdatasync", os.fsync)


def open_descriptor(full: str, flags: int) -> int:
    """Open a file as `os.open` does; `TooManyFiles` if there is no descriptor left."""
    try:
        return os.open(full, flags, 0o666)
    except OSError as error:
        if TooManyFiles.is_meant_by(error):
            raise TooManyFiles.at(full, error) from error
        raise


class Descriptor:
    """A file descriptor that is closed once. It outlives the object: a lock is held until released."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._descriptor < 0

    def _open_descriptor(self) -> int:
        if self._descriptor < 0:
            raise ValueError("the file is closed")
        return self._descriptor

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


class LocalReadableFile:
    """A file that is read by pread. The descriptor is closed with the object, so that no reader finds another's."""

    __slots__ = ("_descriptor", "read_at", "size")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size: int = os.fstat(descriptor).st_size
        # Not a method: a call less, of what is read in a microsecond.
        self.read_at: Callable[[int, int], bytes] = partial(os.pread, descriptor)

    def __del__(self) -> None:
        os.close(self._descriptor)


class LocalWritableFile(Descriptor):
    """A file that was opened for writing, unbuffered. It is closed with the object at the latest."""

    def __init__(self, descriptor: int, position: int = 0) -> None:
        super().__init__(descriptor)
        self._position = position

    def write(self, data: BytesLike) -> int:
        """Write all of it, however often the kernel has to be asked."""
        length = memoryview(data).nbytes
        done = os.write(self._open_descriptor(), data)
        self._position += done
        if done < length:
            self._write_rest(memoryview(data).cast("B")[done:])
        return length

    def write_buffers(self, buffers: Sequence[BytesLike]) -> int:
        """Write with writev."""
        length = 0
        for begin in range(0, len(buffers), _BUFFERS_MAX):
            some = buffers[begin : begin + _BUFFERS_MAX]
            expected = sum(memoryview(buffer).nbytes for buffer in some)
            done = os.writev(self._open_descriptor(), some)
            self._position += done
            if done < expected:
                self._write_rest(memoryview(b"".join(some))[done:])
            length += expected
        return length

    def _write_rest(self, rest: memoryview) -> None:
        # The kernel may take some of it only (a signal, 2 GiB at once, the disk filling up): the next call either
        # goes on or says why not.
        while rest:
            done = os.write(self._descriptor, rest)
            self._position += done
            rest = rest[done:]

    def reserve(self, size: int) -> None:
        """Set the length of the file. No room on the disk is taken for it."""
        os.ftruncate(self._open_descriptor(), size)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def sync(self) -> None:
        """Make the bytes durable."""
        _sync_data(self._open_descriptor())

    def tell(self) -> int:
        """Return the number of bytes written, now and before."""
        return self._position

    def __del__(self) -> None:
        self.close()


class LocalOverwrittenFile(Descriptor):
    """A few bytes at the beginning of a file, replaced with pwrite. It is closed with the object at the latest."""

    def overwrite(self, data: BytesLike) -> None:
        """Write at the beginning: so few bytes within one page are there all or not at all."""
        os.pwrite(self._open_descriptor(), data, 0)

    def __del__(self) -> None:
        self.close()
