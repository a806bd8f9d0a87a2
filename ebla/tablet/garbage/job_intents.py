"""Bulk jobs under way: an intent says which files are about to come, and who they belong to.

    begin   intents/<job>  {table, prefix, created, expires}       before the first file
    ...     tasks write fragments/<table id>/<job>-<id>.parquet     losing attempts leave theirs behind
    end     files of the job that METADATA does not name go, then the intent

Whoever collects garbage leaves the files of a job alone while its intent stands. Files that jobs only read are held
with their snapshots (`pins`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import msgspec

from ebla.clock import Clock
from ebla.coordination.service import CoordinationConflict, CoordinationService
from ebla.errors import Corruption, OutcomeUnknown, RequestError, Unavailable, UnknownTable, shown
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.retry import RACES
from ebla.service.job_files import check_job, job_of
from ebla.storage.files.files import Files

__all__ = [
    "JobIntent",
    "begin_job",
    "end_job",
    "end_jobs",
    "list_intents",
    "remove_expired",
]

DIRECTORY = "intents"
EXPIRES_SECONDS_MAX = 1e9  # some thirty years
# An intent that has lost less than this part of its time is as good as new.
FRESH_SHARE = 100


class JobIntent(msgspec.Struct, frozen=True):
    """A job that is under way: files with this prefix may be named soon."""

    job: str
    table_id: str
    prefix: str
    created_microseconds: int
    expires_microseconds: int


def begin_job(
    coordination: CoordinationService, clock: Clock, job: str, table_id: str, expires_seconds: float
) -> JobIntent:
    """Say that a job is about to write files for a table; a job that begins again gets more time.

    Many tasks of one job may say so at once: what was said a moment ago holds.
    """
    job = check_job(job)
    if isinstance(expires_seconds, bool) or not isinstance(expires_seconds, (int, float)):
        raise RequestError(f"expires_seconds is a number, not {shown(expires_seconds)}")
    if not 0 <= expires_seconds <= EXPIRES_SECONDS_MAX:
        raise RequestError(f"expires_seconds is from 0 to {EXPIRES_SECONDS_MAX:g}, not {shown(expires_seconds)}")
    path = f"{DIRECTORY}/{job}"
    now = clock.microseconds()
    expires = now + round(expires_seconds * 1e6)
    intent = JobIntent(job, table_id, f"fragments/{table_id}/{job}-", now, expires)
    for _ in RACES:
        node = coordination.read(path)
        with contextlib.suppress(CoordinationConflict, OutcomeUnknown):  # the next look tells
            if node is None:
                coordination.create(path, msgspec.msgpack.encode(intent))
                return intent
            there = _decode(path, node.value)
            if there.table_id != table_id:
                raise RequestError(f"job {job} is under way for another table: choose another id")
            if expires - there.expires_microseconds < expires_seconds * 1e6 / FRESH_SHARE:
                return there
            coordination.compare_and_set(path, msgspec.msgpack.encode(intent), node.version)
            return intent
    raise Unavailable(f"job {job} cannot be begun: the coordination service does not answer, or others begin it too")


def list_intents(coordination: CoordinationService) -> list[JobIntent]:
    """Return the jobs that are under way, or were when their process died."""
    found = []
    for path in coordination.list(DIRECTORY):
        node = coordination.read(path)
        if node is not None:
            found.append(_decode(path, node.value))
    return found


def remove_expired(coordination: CoordinationService, clock: Clock) -> list[str]:
    """Remove the intents of jobs whose time is over, and return the jobs. One that begins again at this moment stays.

    Their files are not looked at: what nobody names of them is garbage by now.
    """
    removed = []
    for path in coordination.list(DIRECTORY):
        node = coordination.read(path)
        if node is not None and (intent := _decode(path, node.value)).expires_microseconds <= clock.microseconds():
            with contextlib.suppress(CoordinationConflict, OutcomeUnknown):
                coordination.delete(path, node.version)
                removed.append(intent.job)
    return removed


def end_job(
    coordination: CoordinationService, metadata: MetadataAccess, files: Files, job: str, keep: Collection[str] = ()
) -> list[str]:
    """Remove the files of a job that METADATA does not name, then its intent; return the files removed.

    To be called when the outcome of the job's commit is certain. Ending a job that is not under way does nothing.
    `keep` are files that stay in any case: those of the commit, which a compaction may have replaced by now, and
    which somebody may be reading.
    """
    return end_jobs(coordination, metadata, files, [job], keep)


def end_jobs(
    coordination: CoordinationService,
    metadata: MetadataAccess,
    files: Files,
    jobs: Collection[str],
    keep: Collection[str] = (),
) -> list[str]:
    """End several jobs, as `end_job` does one. METADATA of all tables is read once."""
    ending: list[tuple[str, int, JobIntent, list[str]]] = []
    for job in jobs:
        path = f"{DIRECTORY}/{check_job(job)}"
        node = coordination.read(path)
        if node is not None:
            intent = _decode(path, node.value)
            # Listed before METADATA is read: what comes later is not ours to judge.
            ending.append((path, node.version, intent, _files_of(files, intent.table_id, job)))
    named = {*keep}
    if any(there for _, _, _, there in ending):
        # A clone may name what its origin has replaced since; so may a table that was dropped and is kept. One that
        # loses its name or is brought back meanwhile is in one of the lists.
        ids = {entry.table_id for entry in metadata.list_tables()} | set(metadata.directory.retained())
        for table_id in sorted(ids | {entry.table_id for entry in metadata.list_tables()}):
            with contextlib.suppress(UnknownTable):  # dropped since the list was read
                named.update(metadata.refresh(table_id).files())
    removed: list[str] = []
    for path, version, intent, there in ending:
        removed += _remove(files, [file for file in there if file not in named], intent.table_id)
        with contextlib.suppress(CoordinationConflict, OutcomeUnknown):  # ended, or begun again, by somebody else
            coordination.delete(path, version)
    return removed


def _files_of(files: Files, table_id: str, job: str) -> list[str]:
    return [info.path for info in files.list(f"fragments/{table_id}") if job_of(info.path) == job]


def _remove(files: Files, paths: list[str], table_id: str) -> list[str]:
    removed = []
    for path in paths:
        with contextlib.suppress(OSError):  # what cannot be removed is garbage, and can be collected later
            files.delete(path)
            removed.append(path)
    if removed:
        with contextlib.suppress(OSError):
            files.sync_directory(f"fragments/{table_id}")
    return removed


def _decode(path: str, value: bytes) -> JobIntent:
    try:
        return msgspec.msgpack.decode(value, type=JobIntent)
    except msgspec.MsgspecError as error:
        raise Corruption(path, f"the intent of a job cannot be read: {error}") from error
