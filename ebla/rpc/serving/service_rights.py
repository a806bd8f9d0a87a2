"""Which rights the requests to a table or a store as a whole need: all of them, in one place.

One that is missing here is refused by every server that has a guard. Jobs bring files and say what is in them, and a
server believes it: so they need rights on all tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ebla.access.rights import MEMBER, Need, Right
from ebla.errors import Denied
from ebla.service import job_orders as orders
from ebla.service import job_reads as reads
from ebla.service import requests as asked

__all__ = ["SERVICE_NEEDS", "needs_of"]

_READ, _WRITE, _ADMIN = Right.READ, Right.WRITE, Right.ADMIN

_Given = Callable[[Any], tuple[Need, ...]]


def _on_all(right: Right) -> _Given:
    return lambda request: (Need(right),)


def _named(request: Any) -> tuple[Need, ...]:
    return (Need(_ADMIN, name=request.name),)


def _of_id(request: Any) -> tuple[Need, ...]:
    return (Need(_ADMIN, request.table_id),)


def _member(request: Any) -> tuple[Need, ...]:
    return (MEMBER,)


# Of requests to a table: the right on that table.
_TABLE_RIGHTS: Final[dict[type, Right]] = {
    asked.Flush: _WRITE,
    asked.Compact: _ADMIN,
    asked.Split: _ADMIN,
    asked.Join: _ADMIN,
    asked.BringTogether: _ADMIN,
    asked.DescribeTablets: _READ,
    asked.DescribeTable: _READ,
    asked.ListFiles: _READ,
    reads.CaptureTablets: _READ,
}

SERVICE_NEEDS: Final[dict[type, _Given | Right]] = {
    **_TABLE_RIGHTS,
    asked.CreateTable: _named,
    asked.DropTable: _named,
    asked.ListDropped: _on_all(_ADMIN),
    asked.UndeleteTable: _on_all(_ADMIN),
    asked.RenameTable: lambda r: (Need(_ADMIN, name=r.name), Need(_ADMIN, name=r.new_name)),
    asked.CloneTable: lambda r: (Need(_READ, name=r.origin), Need(_ADMIN, name=r.name)),
    asked.AlterTable: _named,
    asked.SetReplicas: _named,
    asked.RecoverTablet: _on_all(_ADMIN),
    asked.UnloadTable: _named,
    asked.LoadTable: _named,
    asked.Sync: _member,
    asked.HoldNewest: _member,
    asked.LetGo: _member,
    asked.HoldByName: _on_all(_ADMIN),
    asked.ReleaseName: _on_all(_ADMIN),
    asked.ListHeld: _member,
    asked.PassTxn: _member,
    asked.MoveTablet: _on_all(_ADMIN),
    reads.HoldForJob: _member,
    asked.DescribeStore: _on_all(_READ),
    asked.DescribeTables: _on_all(_READ),
    asked.ReadCounters: _on_all(_READ),
    asked.CollectGarbage: _on_all(_ADMIN),
    asked.Verify: _on_all(_ADMIN),
    asked.Repair: _on_all(_ADMIN),
    asked.BeginJob: _on_all(_WRITE),
    asked.EndJob: _on_all(_WRITE),
    orders.BulkCommit: _on_all(_WRITE),
    orders.RestoreCommit: _on_all(_ADMIN),
    orders.MakeTable: _named,
    orders.AddColumns: _of_id,
    orders.UnmakeTable: _of_id,
    orders.PrepareCompaction: _on_all(_ADMIN),
    orders.BeginCompaction: _on_all(_ADMIN),
    orders.CompactCommit: _on_all(_ADMIN),
    orders.PrepareSweep: _on_all(_ADMIN),
    orders.Sweep: _on_all(_ADMIN),
}


def needs_of(request: object, table_id: str | None) -> tuple[Need, ...]:
    """Return what a request to a table of an id, or to a store, needs; `Denied` if nobody has said that."""
    given = SERVICE_NEEDS.get(type(request))
    if given is None:
        raise Denied(f"{type(request).__name__} does not say which right it needs: nobody may ask for it")
    if isinstance(given, Right):
        return (Need(given, table_id),)
    return given(request)
