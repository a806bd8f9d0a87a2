"""Bringing a table from one store to another as a restore does, without Spark and without a backup in between."""

from __future__ import annotations

import contextlib

import ebla
from ebla.client.embedded.opening import new_id
from ebla.clock import SystemClock
from ebla.metadata.values.restoring import pack_metadata, restored
from ebla.service.job_files import new_file
from ebla.service.job_orders import BulkResult, RestoreCommit
from ebla.tablet.garbage.job_intents import begin_job, end_job
from tests.support.inside import carry_out, coordination_of, engine_of


def bring(
    source: ebla.Database, table: str, target: ebla.Database, name: str, *, in_place: bool = False, job: str = ""
) -> BulkResult:
    """Copy the files of a table, and make another of them."""
    order = prepared(source, table, target, name, in_place=in_place, job=job or f"bring-{new_id()}")
    try:
        result = carry_out(target, order)
    except ebla.OutcomeUnknown:
        raise
    except BaseException:
        _end(target, order)
        raise
    _end(target, order)
    assert isinstance(result, BulkResult)
    return result


def prepared(
    source: ebla.Database, table: str, target: ebla.Database, name: str, *, in_place: bool = False, job: str = "bring"
) -> RestoreCommit:
    """Do all but the commit, and return that."""
    source.table(table).flush()
    metadata = engine_of(source).metadata.refresh(engine_of(source).table(table).id)
    former = engine_of(target).table(name).id if in_place else None
    table_id = new_id()
    writers = sorted({file.split("/")[1] for file in metadata.files()})
    for number, writer in enumerate(writers):
        begin_job(coordination_of(target), SystemClock(), f"{job}.{number}", writer, 86_400.0)
    names = {}
    for file in sorted(set(metadata.files())):
        writer = file.split("/")[1]
        names[file] = new_file(writer, f"{job}.{writers.index(writer)}")
    try:
        for file, copy in names.items():
            with engine_of(target).files.create(copy) as made:
                made.write(engine_of(source).files.read(file))
                made.sync()
        for writer in writers:
            engine_of(target).files.sync_directory(f"fragments/{writer}")
    except OSError as error:
        raise ebla.StoreError(f"cannot copy: {error}") from error
    made = restored(metadata, table_id, names, new_id, in_place=in_place)
    return RestoreCommit(job, table_id, name, pack_metadata(made), former)


def _end(target: ebla.Database, order: RestoreCommit) -> None:
    for number in range(10):  # a test has no more tables
        with contextlib.suppress(ebla.EblaError):  # what stays is garbage
            end_job(
                coordination_of(target), engine_of(target).metadata, engine_of(target).files, f"{order.job}.{number}"
            )
