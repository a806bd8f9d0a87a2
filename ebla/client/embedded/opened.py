"""`ebla.open`: a store that this process has open for writing already is returned again, and counted.

    first  = ebla.open("data")          opened, 1 holder
    second = ebla.open("./data")        the same store, 2 holders; a handle of its own
    first.close()                       first says Closed from now on; tables of either go on
    second.close()                      the store is closed

What makes two paths the same store is the file that is locked: symbolic links and relative paths lead to it, and a
directory that was removed and made anew has another one. Whoever comes while another thread opens or closes the store
waits for it. Stores that are open for reading only are not shared: each shows what was durable when it was opened.

A forked child has none of its parent's stores, here as elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from ebla.arguments import checked_flag
from ebla.client.database import Database
from ebla.client.embedded.coordination_place import recorded_address
from ebla.client.embedded.embedded_service import EmbeddedService
from ebla.client.embedded.opening import checked_root, open_alone, open_service
from ebla.client.embedded.owning import LOCK_FILE
from ebla.coordination.address import parse_address
from ebla.errors import RequestError, StoreLocked
from ebla.settings import Settings

__all__ = ["open"]

# So long a thread waits for another one that opens or closes the same store.
WAIT_SECONDS = 600.0


def open(  # noqa: A001 - ebla.open reads best
    path: str | os.PathLike[str] = "data",
    *,
    read_only: bool = False,
    create: bool = True,
    settings: Settings | None = None,
    coordination: str | None = None,
    metadata: Sequence[str | os.PathLike[str]] | None = None,
) -> Database:
    """Open the store in a directory, making it if it is not there and `create` is not False.

    One process at a time may have it open for writing; `StoreLocked` tells who has. Within a process it may be opened
    several times: it is the same store, and closed when the last one who opened it has closed it. What it was opened
    with stays: `settings`, `coordination` and `metadata` are left out then, or the same. With `read_only`, any number
    of processes may read it beside a writer; each sees everything that was durable when it opened.

    `coordination` is the address of a ZooKeeper ensemble (``zk://host:port,host:port/znode``) for a store whose
    directory several hosts see; it is needed when the store is made, and remembered. Without it, a file does.

    `metadata` names further directories, best on other disks, that keep a copy of METADATA each; they are remembered.
    A change is made when a majority of all, the store's own directory included, has it: with two further ones, any one
    of the three may be lost or damaged. One that was lost is filled again when it is named again.
    """
    root = checked_root(path)
    if checked_flag("read_only", read_only):
        return open_alone(
            root, read_only=read_only, create=create, settings=settings, coordination=coordination, metadata=metadata
        )
    while True:
        with _held(os.path.realpath(root)) as shared:
            if shared.service is None:
                service = open_service(
                    root, create=create, settings=settings, coordination=coordination, metadata=metadata
                )
                return shared.begin(service, root, settings or Settings(), metadata)
            if shared.is_at(root):
                shared.check(root, settings, coordination, metadata)
                return shared.again()
            shared.forget()  # the directory is another one by now


class Shared:
    """One store that this process has open for writing, or is about to, and how many handles of it there are."""

    def __init__(self, key: str) -> None:
        self.key = key
        # Held while the store is opened or closed.
        self.lock = threading.RLock()
        # Guarded by it.
        self.service: EmbeddedService | None = None
        self._holders = 0
        self._file = (0, 0)
        self._settings = Settings()
        self._metadata: list[str] | None = None

    def begin(
        self, service: EmbeddedService, root: Path, settings: Settings, metadata: Sequence[object] | None
    ) -> Database:
        """Share a store that was just opened; return its first handle."""
        self.service = service
        self._file = _file_at(root)
        self._settings, self._metadata = settings, _directories(metadata)
        return self.again()

    def again(self) -> Database:
        """Return one more handle."""
        assert self.service is not None, "somebody has it open"
        self._holders += 1
        return Database(self.service.path, self.service, self)

    def is_at(self, root: Path) -> bool:
        """Tell whether the directory still is the one that was opened, and not another of the same name."""
        return _file_at(root) == self._file

    def check(
        self, root: Path, settings: Settings | None, coordination: str | None, metadata: Sequence[object] | None
    ) -> None:
        """Raise `RequestError` if the store is asked for in another way than it was opened."""
        told = None
        if settings is not None and not isinstance(settings, Settings):
            raise RequestError(f"settings is an ebla.Settings, not {type(settings).__name__}")
        if settings is not None and settings != self._settings:
            names = [f.name for f in fields(Settings) if getattr(settings, f.name) != getattr(self._settings, f.name)]
            told = f"other settings ({', '.join(names)})"
        elif coordination is not None and parse_address(coordination) != recorded_address(root):
            told = "another coordination service"
        elif metadata is not None and _directories(metadata) != self._metadata:
            told = "other directories for METADATA"
        if told is not None:
            raise RequestError(
                f"this process has the store at {root} open already, with {told}: leave them out to share it, or close "
                "it everywhere first"
            )

    def leave(self, handle: Database) -> None:
        """Close one handle, and with the last one the store."""
        service = self.service
        if service is None or service.is_inherited:
            return  # it belongs to another process, and so may the lock
        with self.lock:
            if handle._closed:
                return
            handle._closed = True
            self._holders -= 1
            if self._holders:
                return
            try:
                service.close()
            finally:
                self.forget()

    def forget(self) -> None:
        """Share the store no longer: it is closed, or lost."""
        with self.lock:
            self.service = None
            self._holders = 0
            with _registry_lock:
                if _registry.get(self.key) is self:
                    del _registry[self.key]


_registry_lock = threading.Lock()
_registry: dict[str, Shared] = {}  # by the real path of the directory


@contextlib.contextmanager
def _held(key: str) -> Iterator[Shared]:
    """Hold the entry of a directory: nobody else opens or closes the store in it meanwhile."""
    while True:
        with _registry_lock:
            shared = _registry.setdefault(key, Shared(key))
        if not shared.lock.acquire(timeout=WAIT_SECONDS):
            raise StoreLocked(f"another thread of this process is opening or closing the store at {key}: try again")
        try:
            with _registry_lock:
                is_current = _registry.get(key) is shared
            if is_current:
                try:
                    yield shared
                finally:
                    if shared.service is None:
                        shared.forget()
                return
        finally:
            shared.lock.release()


def _file_at(root: Path) -> tuple[int, int]:
    try:
        status = os.stat(root / LOCK_FILE)
    except OSError:
        return (0, 0)
    return status.st_dev, status.st_ino


def _directories(metadata: Sequence[object] | None) -> list[str] | None:
    if metadata is None or isinstance(metadata, (str, os.PathLike)) or not isinstance(metadata, Sequence):
        return None
    return sorted(os.path.realpath(checked_root(place)) for place in metadata)


def _forget_all() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()  # that of the parent may be held by a thread that is not here
    _registry.clear()


os.register_at_fork(after_in_child=_forget_all)
