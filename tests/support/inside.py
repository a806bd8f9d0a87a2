"""What tests may reach into: the engine and the state behind a database and its tables, and the requests of jobs."""

from __future__ import annotations

from collections.abc import Collection

import ebla
from ebla.client.database import service_of
from ebla.client.embedded.embedded_service import EmbeddedService
from ebla.client.embedded.opened import Shared
from ebla.client.embedded.publishing import Publisher
from ebla.coordination.service import CoordinationService
from ebla.direct.jobs_at import JOB_EXPIRES_SECONDS
from ebla.service.job_orders import JobOrder
from ebla.service.requests import BeginJob, EndJob, Reply
from ebla.tablet.engine import TabletStore
from ebla.tablet.garbage.job_intents import JobIntent, list_intents
from ebla.tablet.serve.local_table import LocalTable
from ebla.tablet.tables.table_state import TableState


def _service(db: ebla.Database) -> EmbeddedService:
    assert isinstance(db._service, EmbeddedService)  # also of a store that was closed
    return db._service


def engine_of(opened: ebla.Database | ebla.Table) -> TabletStore:
    """Return the engine of a store in this process, or of one of its tables."""
    return local_table(opened).engine if isinstance(opened, ebla.Table) else _service(opened).engine


def coordination_of(db: ebla.Database) -> CoordinationService:
    """Return the coordination service of a store in this process."""
    return _service(db).coordination


def local_table(table: ebla.Table) -> LocalTable:
    """Return who serves a table of a store in this process."""
    assert isinstance(table._service, LocalTable)
    return table._service


def state_of(table: ebla.Table) -> TableState:
    """Return the state of a table of a store in this process."""
    return local_table(table).state


def abandon(db: ebla.Database) -> None:
    """Let go of a store without writing, as a crash would."""
    service = db._service
    assert isinstance(service, EmbeddedService)
    db._closed = True
    if isinstance(db._sharing, Shared):
        db._sharing.forget()
    service.crash()


def carry_out(db: ebla.Database, order: JobOrder[Reply]) -> Reply:
    """Have the owner of a store do what a job asks for."""
    return service_of(db).carry_out(order)


def begin_job(db: ebla.Database, job: str, table: str, expires_seconds: float = JOB_EXPIRES_SECONDS) -> JobIntent:
    """Say that a job is about to write files for a table, and return what is on record of it."""
    table_id = service_of(db).carry_out(BeginJob(job, table, expires_seconds))
    (intent,) = [one for one in list_intents(coordination_of(db)) if one.job == job]
    assert intent.table_id == table_id
    return intent


def end_job(db: ebla.Database, job: str, keep: Collection[str] = ()) -> list[str]:
    """End a job, and return the files removed."""
    return service_of(db).carry_out(EndJob(job, keep))


def publisher_of(db: ebla.Database) -> Publisher:
    """Return who tells others of a store that is open in this process."""
    publisher = _service(db)._publisher
    assert publisher is not None
    return publisher
