"""What a table consists of, asked of all its servers: for jobs that read its files themselves.

    route   a b a   -->  a: tablets 1, 3 with their files and what is in memory     b: tablet 2

An answer has the tablets that its server leads. If one is missing, it has changed hands on the way, and the table is
located again; one that comes twice is the same both times, at one txn.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ebla.client.remote.routes import Route
from ebla.errors import StaleRoute, Unavailable
from ebla.rpc.channel import Channel
from ebla.rpc.wire.messages import CaptureTable
from ebla.service.job_reads import CapturedTablets

if TYPE_CHECKING:
    from ebla.client.remote.remote_service import RemoteService

__all__ = ["captured_by"]


def captured_by(
    service: RemoteService, route: Route, txn: int | None, *, with_memory: bool, timeout_seconds: float
) -> list[CapturedTablets]:
    """Return the answers of all servers of a route; `StaleRoute` if a tablet is in none of them."""
    calls = [
        partial(_of_server, server, route.location.table, txn, with_memory, timeout_seconds)
        for server in route.distinct_servers
    ]
    answers: list[CapturedTablets] = [one for several in service.together(calls) for one in several]
    found = {tablet for answer in answers for tablet in answer.tablets}
    missing = [tablet.id for tablet in route.location.tablets if tablet.id not in found]
    if missing:
        raise StaleRoute(f"tablet {missing[0]} of {route.location.name!r} is changing hands: look it up again")
    if len({answer.schema_version for answer in answers}) > 1:
        raise Unavailable(f"the schema of {route.location.name!r} is being changed: retry")
    return answers


def _of_server(
    server: Channel, table: str, txn: int | None, with_memory: bool, timeout_seconds: float
) -> list[CapturedTablets]:
    answers: list[CapturedTablets] = []
    left: tuple[str, ...] | None = None
    while left != ():
        answer = server.call(CaptureTable(table, txn, left, with_memory), timeout_seconds=timeout_seconds)
        answers.append(answer)
        left = answer.left
    return answers
