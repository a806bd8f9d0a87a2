"""Bulk jobs of processes that do not have the store open: Spark drivers, and the workers in which they commit.

    begin_job_at(root, job, "users")     -> the id of the table, and an intent that protects the files to come
    BulkWriter(...)                         in the tasks
    order_at(root, commit)               -> BulkResult: by opening the store, or through the process that has it open
    end_job_at(root, job)                   removes what losing attempts left behind

A process that has a `Database` at hand asks its service instead: `ebla.direct.place` knows both ways.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ebla.client.database import Database, service_of
from ebla.client.embedded.coordination_place import connect_at
from ebla.client.embedded.opening import new_id, open_alone
from ebla.clock import Clock, SystemClock
from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError, StoreLocked
from ebla.metadata.server.transaction import MetadataServer
from ebla.service.job_files import job_of, new_file
from ebla.service.job_orders import JobOrder
from ebla.service.requests import Reply
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.garbage.job_intents import JobIntent, begin_job, end_job
from ebla.tablet.jobs.mail_sender import order_by_mail
from ebla.tablet.recovery.open_metadata import open_metadata

__all__ = [
    "begin_job_at",
    "begin_restore_at",
    "copies_of",
    "end_job_at",
    "order_at",
    "parts_of",
]

Root = str | os.PathLike[str]

# The files of a bulk job are left alone for so long if its process dies.
JOB_EXPIRES_SECONDS = 86_400.0

_log = logging.getLogger(__name__)


def order_at(
    root: Root, order: JobOrder[Reply], timeout_seconds: float = 60.0, settings: Settings | None = None
) -> Reply:
    """Have an order of a job carried out, whoever has the store open.

    If nobody has, the store is opened for a moment; otherwise its owner is asked, and if the owner goes away before it
    answers, the store is opened then. Raises what the owner raises, wherever it ran; `TimedOut` if the owner did not
    take the order (nothing was done), and `OutcomeUnknown` if it took it and did not answer: repeat it under the same
    job id, which is safe in every case.
    """
    with contextlib.suppress(StoreLocked), _opened(root, settings) as database:
        return service_of(database).carry_out(order)
    with contextlib.ExitStack() as opened, _parts(root) as (coordination, files, clock):
        owned: list[Database] = []

        def become_owner() -> None:
            if not owned:
                with contextlib.suppress(StoreLocked):
                    # It finds the request, as every owner does.
                    owned.append(opened.enter_context(_opened(root, settings)))

        return order_by_mail(
            coordination, files, clock, order, timeout_seconds=timeout_seconds, on_silence=become_owner
        )


@contextlib.contextmanager
def _opened(root: Root, settings: Settings | None) -> Iterator[Database]:
    """Open a store for an order. What goes wrong when it is closed again does not change what became of the order."""
    database = open_alone(root, create=False, settings=settings)
    try:
        yield database
    finally:
        try:
            database.close()
        except (EblaError, OSError) as error:
            _log.warning("the store %s was not closed as it should be, its log has everything: %s", root, error)


def begin_job_at(root: Root, job: str, table: str, expires_seconds: float = JOB_EXPIRES_SECONDS) -> JobIntent:
    """Say that a job is about to write files for a table; its files are left alone until it ends or expires."""
    with _parts(root) as (coordination, files, clock):
        table_id = _metadata(coordination, files, clock).find(table)
        return begin_job(coordination, clock, job, table_id, expires_seconds)


def begin_restore_at(
    root: Root, job: str, files: Iterable[str], expires_seconds: float = JOB_EXPIRES_SECONDS
) -> dict[str, str]:
    """Say that a job is about to bring copies of files; return the path of each copy by the file's.

    A copy lies below the id of the table that wrote the file, for so the file says itself. For each such id the job has
    a part, which is ended like a job: `parts_of` tells which.
    """
    parts = copies_of(job, files)
    with _parts(root) as (coordination, _, clock):
        for part, (table_id, _) in parts.items():
            begin_job(coordination, clock, part, table_id, expires_seconds)
    return {file: copy for _, copies in parts.values() for file, copy in copies.items()}


def copies_of(job: str, files: Iterable[str]) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the parts of a job that brings copies of files: the id of who wrote them, and each file's copy."""
    return {
        f"{job}.{number}": (table_id, {file: new_file(table_id, f"{job}.{number}") for file in own})
        for number, (table_id, own) in enumerate(sorted(_by_writer(files).items()))
    }


def parts_of(copies: Iterable[str]) -> list[str]:
    """Return the parts of a job that brings these copies."""
    return sorted({part for copy in copies if (part := job_of(copy)) is not None})


def _by_writer(files: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(set(files)):
        found[file.split("/")[1]].append(file)
    return found


def end_job_at(root: Root, job: str, keep: Collection[str] = ()) -> list[str]:
    """End a job whose commit has a known outcome, or never began; return the files removed.

    These are the files of the job that nobody names; those to `keep`, which the commit named, stay in any case.
    """
    with _parts(root) as (coordination, files, clock):
        return end_job(coordination, _metadata(coordination, files, clock), files, job, keep)


@contextlib.contextmanager
def _parts(root: Root) -> Iterator[tuple[CoordinationService, Files, Clock]]:
    clock = SystemClock()
    with connect_at(Path(root), clock) as coordination:
        yield coordination, LocalFiles(root), clock


def _metadata(coordination: CoordinationService, files: Files, clock: Clock) -> MetadataServer:
    return open_metadata(coordination, files, clock, new_id, read_only=True)
