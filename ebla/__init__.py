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
    EblaError,
    FormatTooNew,
    HistoryGone,
    InvalidBatch,
    InvalidKey,
    LogFailed,
    MissingExtra,
    MissingFile,
    OutcomeUnknown,
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
    TooManyFiles,
    Unavailable,
    UnknownColumn,
    UnknownTable,
)
from ebla.settings import Settings

if TYPE_CHECKING:
    from ebla.client.database import Database
    from ebla.client.dropped import DroppedTable
    from ebla.client.moments import time_of
    from ebla.client.opened import open  # noqa: A004 - ebla.open reads best
    from ebla.client.row import Row
    from ebla.client.salvaging import SalvageReport, salvage
    from ebla.client.scan import Position, Scan
    from ebla.client.snapshot import Snapshot
    from ebla.client.status import StoreStatus, status
    from ebla.client.table import Table
    from ebla.client.verifying import VerifyReport, repair, verify
    from ebla.schema import Group, Schema, TableSchema
    from ebla.tablet.events import FragmentsChanged, RangeChanged, TabletListener, Unloaded
    from ebla.tablet.projection import Version

__version__ = "0.1.0"

__all__ = [
    "CannotJoin",
    "CannotSplit",
    "ClockSkew",
    "Closed",
    "Conflict",
    "Corruption",
    "Database",
    "DroppedTable",
    "EblaError",
    "FormatTooNew",
    "FragmentsChanged",
    "Group",
    "HistoryGone",
    "InvalidBatch",
    "InvalidKey",
    "LogFailed",
    "MissingExtra",
    "MissingFile",
    "OutcomeUnknown",
    "Position",
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
    "TooManyFiles",
    "Unavailable",
    "UnknownColumn",
    "UnknownTable",
    "Unloaded",
    "VerifyReport",
    "Version",
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
    "DroppedTable": "ebla.client.dropped",
    "FragmentsChanged": "ebla.tablet.events",
    "Group": "ebla.schema",
    "Position": "ebla.client.scan",
    "RangeChanged": "ebla.tablet.events",
    "Row": "ebla.client.row",
    "SalvageReport": "ebla.client.salvaging",
    "Scan": "ebla.client.scan",
    "Schema": "ebla.schema",
    "Snapshot": "ebla.client.snapshot",
    "StoreStatus": "ebla.client.status",
    "Table": "ebla.client.table",
    "TableSchema": "ebla.schema",
    "TabletListener": "ebla.tablet.events",
    "Unloaded": "ebla.tablet.events",
    "VerifyReport": "ebla.client.verifying",
    "Version": "ebla.tablet.projection",
    "open": "ebla.client.opened",
    "repair": "ebla.client.verifying",
    "salvage": "ebla.client.salvaging",
    "status": "ebla.client.status",
    "time_of": "ebla.client.moments",
    "verify": "ebla.client.verifying",
}

if not TYPE_CHECKING:  # else every name would seem to be there

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'ebla' has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
