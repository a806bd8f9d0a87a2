"""Ebla: a tablet store for people who work in Python and Spark.

import ebla

db = ebla.open("data")
users = db.create_table("users", ebla.Schema(key={"user": "string"}, columns={"name": "string", "age": "int32"}))
users.put({"user": "ada", "name": "Ada", "age": 36})
users.get("ada")
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ebla.errors import (
    CannotJoin,
    CannotSplit,
    ClockSkew,
    Closed,
    Conflict,
    Corruption,
    Denied,
    EblaError,
    FormatTooNew,
    HistoryGone,
    IncompatibleVersion,
    InvalidBatch,
    InvalidKey,
    LogFailed,
    MissingExtra,
    MissingFile,
    OutcomeUnknown,
    ProtocolError,
    ReadOnly,
    RequestError,
    SchemaChanged,
    SchemaError,
    StaleRoute,
    StoreError,
    StoreLocked,
    StoreNotFound,
    TableDamaged,
    TableExists,
    TableUnloaded,
    TimedOut,
    TlsError,
    TooManyFiles,
    Unavailable,
    UnknownColumn,
    UnknownTable,
)
from ebla.settings import Settings

if TYPE_CHECKING:
    from ebla import aio
    from ebla.client.database import Database
    from ebla.client.embedded.opened import open  # noqa: A004 - ebla.open reads best
    from ebla.client.embedded.salvaging import SalvageReport, salvage
    from ebla.client.embedded.status import StoreStatus, status
    from ebla.client.embedded.verifying import VerifyReport, repair, verify
    from ebla.client.moments import time_of
    from ebla.client.remote.connecting import connect
    from ebla.client.scan import Position, Scan
    from ebla.client.snapshot import Snapshot
    from ebla.client.table import Table
    from ebla.model.declaration import Group, Schema
    from ebla.model.projection import Version
    from ebla.model.schema import TableSchema
    from ebla.rows.row import Row
    from ebla.service.listener import FragmentsChanged, RangeChanged, TabletListener, Unloaded
    from ebla.service.reports import DroppedTable

__version__ = "0.1.0"

__all__ = [
    "CannotJoin",
    "CannotSplit",
    "ClockSkew",
    "Closed",
    "Conflict",
    "Corruption",
    "Database",
    "Denied",
    "DroppedTable",
    "EblaError",
    "FormatTooNew",
    "FragmentsChanged",
    "Group",
    "HistoryGone",
    "IncompatibleVersion",
    "InvalidBatch",
    "InvalidKey",
    "LogFailed",
    "MissingExtra",
    "MissingFile",
    "OutcomeUnknown",
    "Position",
    "ProtocolError",
    "RangeChanged",
    "ReadOnly",
    "RequestError",
    "Row",
    "SalvageReport",
    "Scan",
    "Schema",
    "SchemaChanged",
    "SchemaError",
    "Settings",
    "Snapshot",
    "StaleRoute",
    "StoreError",
    "StoreLocked",
    "StoreNotFound",
    "StoreStatus",
    "Table",
    "TableDamaged",
    "TableExists",
    "TableSchema",
    "TableUnloaded",
    "TabletListener",
    "TimedOut",
    "TlsError",
    "TooManyFiles",
    "Unavailable",
    "UnknownColumn",
    "UnknownTable",
    "Unloaded",
    "VerifyReport",
    "Version",
    "aio",
    "connect",
    "open",
    "repair",
    "salvage",
    "status",
    "time_of",
    "verify",
]

# A library says nothing unless the program that uses it wants to hear it: see `logging`, under the name "ebla".
logging.getLogger(__name__).addHandler(logging.NullHandler())

# The same names for whoever runs it: each is fetched when it is first asked for, so that what does not touch a store,
# such as `ebla --help`, need not wait for the engine and Arrow.
_HOMES = {
    "Database": "ebla.client.database",
    "DroppedTable": "ebla.service.reports",
    "FragmentsChanged": "ebla.service.listener",
    "Group": "ebla.model.declaration",
    "Position": "ebla.client.scan",
    "RangeChanged": "ebla.service.listener",
    "Row": "ebla.rows.row",
    "SalvageReport": "ebla.client.embedded.salvaging",
    "Scan": "ebla.client.scan",
    "Schema": "ebla.model.declaration",
    "Snapshot": "ebla.client.snapshot",
    "StoreStatus": "ebla.client.embedded.status",
    "Table": "ebla.client.table",
    "TableSchema": "ebla.model.schema",
    "TabletListener": "ebla.service.listener",
    "Unloaded": "ebla.service.listener",
    "VerifyReport": "ebla.service.reports",
    "Version": "ebla.model.projection",
    "connect": "ebla.client.remote.connecting",
    "open": "ebla.client.embedded.opened",
    "repair": "ebla.client.embedded.verifying",
    "salvage": "ebla.client.embedded.salvaging",
    "status": "ebla.client.embedded.status",
    "time_of": "ebla.client.moments",
    "verify": "ebla.client.embedded.verifying",
}

if not TYPE_CHECKING:  # else every name would seem to be there

    def __getattr__(name: str) -> Any:
        if name == "aio":
            return import_module("ebla.aio")
        if name not in _HOMES:
            raise AttributeError(f"module 'ebla' has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
