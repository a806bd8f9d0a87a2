"""A run: one start of a tablet server, with a log and a lease of its own.

    log/<server>/<start>     what this run has written; no other start has the same number, so the directory is new
    clocks/<server>/<start>  above every txn that this run has given out

A run begins with nothing to replay: it leads no tablet yet. What its former runs led is taken over like that of any
other server, from their logs. So there is one way for a tablet to come to a server, whoever had it before, and a
process that has lost its lease begins a new run; whatever it still writes through files that are open is in a log that
nobody reads beyond the end that was noted.
"""

from __future__ import annotations

from collections.abc import Callable

from ebla.clock import Clock, TxnClock
from ebla.coordination.service import CoordinationService
from ebla.errors import StoreError
from ebla.metadata.server.metadata_access import MetadataAccess
from ebla.metadata.values.runs import run_name, server_of_run
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.storage.log.log_writer import LogWriter
from ebla.tablet.engine import ServerReplicas, TabletStore
from ebla.tablet.recovery.server_record import ServerRecord, read_bound

__all__ = ["open_run", "run_name", "server_of_run"]


def open_run(
    *,
    files: Files,
    coordination: CoordinationService,
    metadata: MetadataAccess,
    clock: Clock,
    settings: Settings,
    server: str,
    start: int,
    new_id: Callable[[], str],
    fence: Callable[[], None],
    replicas: ServerReplicas | None = None,
    log_files: Files | None = None,
) -> TabletStore:
    """Begin a run that leads nothing yet; `fence` is asked before anything is acknowledged.

    Its log is among `log_files`, or else among `files`.

    `start` is greater than that of every run before. The caller holds the lease of the server.
    """
    run = run_name(server, start)
    directory = f"log/{run}"
    logs = files if log_files is None else log_files
    if list(logs.list(directory)):
        raise StoreError(f"{directory} has a log already: the start number {start} was used before; start again")
    record = ServerRecord(coordination, logs, run)
    bound = max(read_bound(coordination, run_name(server, start - 1)), record.txn)
    txn_clock = TxnClock(clock, bound, record.reserve, settings.clock_reserve_seconds, settings.clock_skew_seconds_max)
    store = TabletStore(
        files=files,
        metadata=metadata,
        clock=clock,
        settings=settings,
        server=run,
        new_id=new_id,
        txn_clock=txn_clock,
        coordination=coordination,
        leads_all=False,
    )
    record.recovered((), 1)
    writer = LogWriter(logs, directory, server, 1, settings.log_segment_bytes, witness=record)
    store.recovered({})
    store.start(writer, record.save, fence, replicas)
    return store
