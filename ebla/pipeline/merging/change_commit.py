"""One run of a job that changes rows: an intent, files written by whoever, one commit that is refused on a conflict.

    begin  -->  write: read at a txn, decide, write files  -->  commit, unless a row changed since that txn  -->  end

A conflict begins anew, with what is there then; nothing of an attempt that was refused stays.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from ebla.direct.fragments import pack_schema
from ebla.direct.place import Place
from ebla.errors import Conflict, EblaError, OutcomeUnknown, SchemaChanged, UnknownTable
from ebla.model.schema import TableSchema
from ebla.pipeline.merging.change_rows import ChangeWriting, Written
from ebla.retry import RACES
from ebla.service.job_orders import BulkCommit

__all__ = ["ChangeSummary", "Read", "change_table"]


@dataclass(frozen=True, slots=True)
class ChangeSummary:
    """What a merge, an update or a deletion did, in the commit `txn`; `attempts` counts those that met a conflict, too.

    `repeated`: it had been done before under this job id, and nothing was done now.
    """

    table: str
    txn: int
    updated: int = 0
    inserted: int = 0
    deleted: int = 0
    files: int = 0
    attempts: int = 1
    seconds: float = 0.0
    job: str = ""
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """What an attempt read and wrote: its snapshot, and the files."""

    as_of: int
    written: Written


Attempt = Callable[[ChangeWriting, TableSchema], Read]


def change_table(place: Place, table: str, attempt: Attempt, job: str | None) -> ChangeSummary:
    """Carry out attempts until one is committed; `Conflict` if others are faster every time."""
    began = time.monotonic()
    name = job or f"change-{uuid.uuid4()}"
    with place.alone(name) if job is not None else contextlib.nullcontext():
        refused: EblaError | None = None
        for number in RACES:
            metadata = place.metadata(table)
            if metadata is None:
                raise UnknownTable(f"there is no table {table!r} in {place.root}: create it, or load the rows into it")
            done = metadata.job_txn(name)
            if done is not None:
                place.end(name)
                return ChangeSummary(table, done, job=name, repeated=True, seconds=time.monotonic() - began)
            try:
                summary = _attempt(place, table, metadata.table_id, metadata.schema, attempt, name)
            except (Conflict, SchemaChanged) as error:
                refused = error
                continue
            return ChangeSummary(
                **{field: getattr(summary, field) for field in ("table", "txn", "updated", "inserted", "deleted")},
                files=summary.files,
                attempts=number + 1,
                seconds=time.monotonic() - began,
                job=name,
            )
    raise Conflict(f"rows of {table!r} keep changing ({refused}): nothing was changed, try again with fewer writers")


def _attempt(place: Place, table: str, table_id: str, schema: TableSchema, attempt: Attempt, job: str) -> ChangeSummary:
    writing = ChangeWriting(place.root, table, table_id, pack_schema(schema), job, time.time_ns() // 1_000)
    if place.begin(job, table) != table_id:
        raise Conflict(f"the table {table!r} was dropped and made anew at this moment")
    is_committing = False
    try:
        read = attempt(writing, schema)
        written = read.written
        summary = ChangeSummary(
            table, read.as_of, written.updated, written.inserted, written.deleted, len(written.fragments)
        )
        if not written.fragments:
            place.end(job)
            return summary
        is_committing = True
        done = place.commit(BulkCommit(job, table_id, schema.version, written.fragments, unchanged_since=read.as_of))
    except OutcomeUnknown:
        raise  # METADATA may name the files, or come to name them: repeating the job finds out
    except BaseException as error:
        # Whoever is interrupted in the middle of a commit does not know its outcome either.
        if not is_committing or isinstance(error, Exception):
            with contextlib.suppress(Exception):  # why it failed is what matters
                place.end(job)
        raise
    with contextlib.suppress(EblaError, OSError):  # it is committed; what is left behind is garbage, no more
        place.end(job, () if done.repeated else [one.fragment.file for one in written.fragments])
    return ChangeSummary(table, done.txn, written.updated, written.inserted, written.deleted, len(written.fragments))
