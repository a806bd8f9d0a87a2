"""Ebla: a tablet store for people who work in Python and Spark.

import ebla

db = ebla.open("data")
users = db.create_table("users", ebla.Schema(key={"user": "string"}, columns={"name": "string", "age": "int32"}))
users.put({"user": "ada", "name": "Ada", "age": 36})
users.get("ada")
"""

from ebla.client.database import Database, open  # noqa: A004 - ebla.open reads best
from ebla.client.moments import time_of
from ebla.client.row import Row
from ebla.client.scan import Position, Scan
from ebla.client.snapshot import Snapshot
from ebla.client.table import Table
from ebla.client.verifying import VerifyReport, repair, verify
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
    Unavailable,
    UnknownColumn,
    UnknownTable,
)
from ebla.schema import Group, Schema, TableSchema
from ebla.settings import Settings
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
    "EblaError",
    "FormatTooNew",
    "Group",
    "HistoryGone",
    "InvalidBatch",
    "InvalidKey",
    "LogFailed",
    "MissingFile",
    "OutcomeUnknown",
    "Position",
    "ReadOnly",
    "RequestError",
    "Row",
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
    "Table",
    "TableDamaged",
    "TableExists",
    "TableSchema",
    "TableUnloaded",
    "TimedOut",
    "Unavailable",
    "UnknownColumn",
    "UnknownTable",
    "VerifyReport",
    "Version",
    "open",
    "repair",
    "time_of",
    "verify",
]
