"""Requests to a table or a store as a whole: sent once, then asked after until they are done."""

from __future__ import annotations

from typing import Any, Protocol

from ebla.client.remote.lanes import Lanes
from ebla.errors import OutcomeUnknown, Unavailable
from ebla.rpc.methods import Asks
from ebla.rpc.wire.forms import decode_reply, encode_request
from ebla.rpc.wire.messages import CarryOut, Outcome
from ebla.service.job_orders import JobOrder
from ebla.service.job_reads import HoldForJob
from ebla.service.requests import (
    BeginJob,
    BringTogether,
    CollectGarbage,
    Compact,
    DescribeStore,
    DescribeTable,
    DescribeTables,
    DescribeTablets,
    EndJob,
    Flush,
    HoldByName,
    ListDropped,
    ListFiles,
    ListHeld,
    LoadTable,
    PassTxn,
    ReadCounters,
    ReleaseName,
    Repair,
    StoreRequest,
    Sync,
    TableRequest,
    UnloadTable,
    Verify,
)
from ebla.service.service import Progress

__all__ = ["REPEATABLE", "carried_out"]

# Doing these twice is the same as once. All others change what the second would find: `CreateTable` finds the table.
REPEATABLE = (
    BeginJob, BringTogether, CollectGarbage, Compact, DescribeStore, DescribeTable, DescribeTables, DescribeTablets,
    EndJob, Flush, HoldByName, HoldForJob, JobOrder, ListDropped, ListFiles, ListHeld, LoadTable, PassTxn, ReadCounters,
    ReleaseName, Repair, Sync, UnloadTable, Verify,
)  # fmt: skip


class Ask(Protocol):
    """Sends a message to whoever carries it out, again and again if that does no harm."""

    def __call__(self, request: Asks[Outcome], *, may_repeat: bool) -> Outcome: ...


def carried_out(
    lanes: Lanes, ask: Ask, table: str | None, request: TableRequest[Any] | StoreRequest[Any], progress: Progress | None
) -> Any:
    """Have a request carried out and return its reply, however long it takes."""
    body = encode_request(request)
    is_repeatable = isinstance(request, REPEATABLE)
    with lanes.request_id() as request_id:
        wanted = CarryOut(request_id, table, type(request).__name__, body)
        told = (0, 0)
        while True:
            try:
                outcome = ask(wanted, may_repeat=is_repeatable)
            except OutcomeUnknown as error:
                if not is_repeatable:
                    raise
                raise Unavailable(f"{wanted.name} came to nothing: {error}; retry") from None
            if progress is not None and outcome.total and (outcome.done, outcome.total) != told:
                told = (outcome.done, outcome.total)
                progress(*told)
            if outcome.is_done:
                return decode_reply(request, outcome.reply)
