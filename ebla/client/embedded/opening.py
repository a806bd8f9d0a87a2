"""Opening a store in this process: where it is, who owns it, its parts, and a service in front of them."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ebla
from ebla.arguments import checked_flag, checked_path
from ebla.client.database import Database
from ebla.client.embedded.coordination_place import COORDINATION_FILE, chosen_address, open_elsewhere
from ebla.client.embedded.embedded_service import EmbeddedService
from ebla.client.embedded.ownership import Ownership
from ebla.client.embedded.owning import LOCK_FILE
from ebla.client.embedded.publishing import Publisher
from ebla.clock import Clock, SystemClock
from ebla.coordination.service import CoordinationService
from ebla.coordination.sqlite import SqliteCoordination
from ebla.errors import RequestError, StoreError, TooManyFiles, shown
from ebla.settings import Settings
from ebla.storage.files.files import FileLock, Files
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.jobs.bulk_mail import Mailbox
from ebla.tablet.recovery.opening import open_store
from ebla.timing import now_seconds

__all__ = ["checked_root", "new_id", "open_alone", "open_service", "wire"]

_log = logging.getLogger(__name__)


def open_service(
    path: str | os.PathLike[str] = "data",
    *,
    read_only: bool = False,
    create: bool = True,
    settings: Settings | None = None,
    coordination: str | None = None,
    metadata: Sequence[str | os.PathLike[str]] | None = None,
) -> EmbeddedService:
    """Open a store that nobody has open for writing, here or elsewhere: what `ebla.open` does for the first who asks.

    `StoreLocked` tells who has it. Jobs that are given a path do this, too, or ask the owner if there is one.
    """
    began = now_seconds()
    root = checked_root(path)
    read_only, create = checked_flag("read_only", read_only), checked_flag("create", create)
    settings = Settings() if settings is None else settings
    if not isinstance(settings, Settings):
        raise RequestError(f"settings is an ebla.Settings, not {type(settings).__name__}")
    places = _checked_places(metadata)
    address = chosen_address(root, coordination, may_create=create and not read_only)
    files = LocalFiles(root)
    clock = SystemClock()
    lock = None
    if not read_only:
        try:
            root.mkdir(parents=True, exist_ok=True)
            lock = files.lock(LOCK_FILE)
        except TooManyFiles:
            raise
        except OSError as error:
            raise StoreError(
                f"the store at {root} cannot be opened for writing: {error.strerror}: choose another place, mend the "
                "cause, or open it read-only"
            ) from error
    with contextlib.ExitStack() as undo:
        if lock is not None:
            undo.callback(lock.release)
        service: CoordinationService
        ownership = None
        if address is None:
            service = SqliteCoordination(root / COORDINATION_FILE, clock, read_only=read_only)
            undo.callback(service.close)
        else:
            service = open_elsewhere(root, files, address, clock, read_only=read_only)
            undo.callback(service.close)
            if not read_only:
                ownership = Ownership(service, clock, root, settings.owner_lease_seconds)
                undo.callback(ownership.release)
        opened = wire_service(
            root, files, service, clock, settings, lock, ownership, read_only=read_only, metadata=places
        )
        undo.pop_all()
    if not read_only:
        try:
            opened.publish(Publisher(root, opened.engine, clock, ebla.__version__))
        except BaseException:  # an interrupt, for one: nobody gets the store, and it must not stay open
            opened.close()
            raise
    _log.info(
        "opened %s %s: %d tables, in %.3f s",
        root,
        "for reading" if read_only else "for writing",
        len(opened.engine.tables()),
        now_seconds() - began,
    )
    return opened


def checked_root(path: object) -> Path:
    """Return the directory that a path names; `RequestError` if it is no path of a local directory."""
    return checked_path("the directory of a store", path)


def _checked_places(metadata: object) -> list[Path] | None:
    """Return the further directories of METADATA; None if nothing was said about them."""
    if metadata is None:
        return None
    if isinstance(metadata, (str, os.PathLike)) or not isinstance(metadata, Sequence):
        raise RequestError(f"metadata is a list of directories, not {shown(metadata)}")
    return [checked_root(place) for place in metadata]


def new_id() -> str:
    """Return an id that was never given out before: a random UUID."""
    return str(uuid.uuid4())


def open_alone(path: str | os.PathLike[str] = "data", **options: Any) -> Database:
    """Open a store that nobody has open, with the options of `open_service`; it is not shared with others."""
    opened = open_service(path, **options)
    return Database(opened.path, opened)


def wire(*parts: Any, **options: Any) -> Database:
    """Put a database together from its parts, as `wire_service` takes them: for tests with parts of their own."""
    service = wire_service(*parts, **options)
    return Database(service.path, service)


def wire_service(
    path: Path,
    files: Files,
    coordination: CoordinationService,
    clock: Clock,
    settings: Settings,
    lock: FileLock | None,
    ownership: Ownership | None = None,
    *,
    read_only: bool = False,
    metadata: Sequence[Path] | None = None,
) -> EmbeddedService:
    """Put a store together from its parts."""
    engine = open_store(
        files=files,
        coordination=coordination,
        clock=clock,
        settings=settings,
        new_id=new_id,
        read_only=read_only,
        fence=None if ownership is None else ownership.check,
        metadata_places=metadata,
    )
    mailbox = None
    if not read_only:
        if ownership is not None:
            ownership.on_lost(engine.stop_writing)
        mailbox = Mailbox(coordination, files, clock, engine.orders.carry_out)
        try:
            mailbox.open()
        except BaseException:
            mailbox.close()
            engine.close()
            raise
    return EmbeddedService(path, engine, coordination, clock, new_id, lock, mailbox, ownership)
