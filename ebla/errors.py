"""Every error that Ebla raises, as one tree.

    EblaError
    |-- RequestError         fix the request: it would fail again as it is
    |   |-- SchemaError          a schema that cannot be, or a change to one
    |   |-- UnknownTable         no table of that name
    |   |-- TableExists          the name is taken
    |   |-- UnknownColumn        no such column or family in the table
    |   |-- InvalidBatch         rows that do not fit: types, null keys, sizes, damaged bytes
    |   |-- InvalidKey           a key that cannot be one of this table's
    |   |-- HistoryGone          `as_of` reaches back further than history is kept
    |   |-- CannotSplit          a tablet that cannot be split, or not there
    |   |-- CannotJoin           tablets that cannot be joined: not neighbours, for one
    |   |-- ClockSkew            a transaction number too far in the future
    |   |-- MissingExtra         an optional package that it needs is not installed
    |   |-- ProtocolError        bytes between processes that are no message, or too large a one
    |   |-- IncompatibleVersion  client and server have no version of the protocol in common
    |   |-- Denied               the caller is not known, or has not the right to ask for it
    |   |-- TlsError             no encrypted connection: a certificate that is not to be trusted, or no TLS there
    |   `-- ReadOnly             a write to a store or snapshot opened for reading
    |-- Conflict             another writer was faster: read again, then decide
    |-- Unavailable          retry: the same request may succeed later
    |   |-- StoreLocked          another process has the store open for writing
    |   |-- StaleRoute           the tablet is elsewhere or changed: look it up again
    |   |   `-- SchemaChanged        the schema changed under the request: resolve its columns again
    |   |-- TableUnloaded        the table was taken offline, and may come back
    |   |-- Closed               the store was closed while the request was under way
    |   |-- TooManyFiles         the process, or the machine, has no file descriptor left
    |   `-- TimedOut             it took longer than allowed
    |-- OutcomeUnknown       it may or may not have happened: read before repeating
    `-- StoreError           stop: the store needs attention before it can go on
        |-- StoreNotFound        there is no store at that place
        |-- Corruption           damaged bytes, with file and offset
        |-- MissingFile          a file that METADATA names is not there
        |-- TableDamaged         one table, or a part of it, cannot be served; the others are
        |-- LogFailed            the log cannot be written (disk full, I/O error); reads go on
        `-- FormatTooNew         written by a later version of Ebla

`EblaError.advice` says in one word what the caller should do: ``fix``, ``reread``, ``retry``, ``check``
or ``stop``. "Unknown" is not "failed": code that retries must not treat the two alike.
"""

from __future__ import annotations

import errno
from typing import ClassVar

__all__ = [
    "CannotJoin",
    "CannotSplit",
    "ClockSkew",
    "Closed",
    "Conflict",
    "Corruption",
    "Denied",
    "EblaError",
    "FormatTooNew",
    "HistoryGone",
    "IncompatibleVersion",
    "InvalidBatch",
    "InvalidKey",
    "LogFailed",
    "MissingExtra",
    "MissingFile",
    "OutcomeUnknown",
    "ProtocolError",
    "ReadOnly",
    "RequestError",
    "SchemaChanged",
    "SchemaError",
    "StaleRoute",
    "StoreError",
    "StoreLocked",
    "StoreNotFound",
    "TableDamaged",
    "TableExists",
    "TableUnloaded",
    "TimedOut",
    "TlsError",
    "TooManyFiles",
    "Unavailable",
    "UnknownColumn",
    "UnknownTable",
]


_SHOWN_CHARS_MAX = 80


def shown(value: object) -> str:
    """Return how a value of a request looks in an error message: never long, and never an error of its own."""
    try:
        text = repr(value)
    except Exception:  # an integer of ten thousand digits, a class that is not finished
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 3] + "..."


class EblaError(Exception):
    """Base of all errors raised by Ebla."""

    advice: ClassVar[str] = "stop"


class RequestError(EblaError, ValueError):
    """The request is wrong and nothing was changed. Fix it before sending it again."""

    advice = "fix"


class SchemaError(RequestError):
    """A schema that cannot be: a column in two groups, an unknown type, a reserved name."""


class UnknownTable(RequestError):
    """There is no table of that name."""


class TableExists(RequestError):
    """A table of that name exists already."""


class UnknownColumn(RequestError):
    """The table has no such column, and no group that takes its family."""


class InvalidBatch(RequestError):
    """Rows that do not fit the table. None of the batch was applied."""


class InvalidKey(RequestError):
    """A key that does not fit the table's key columns, or is too long."""


class HistoryGone(RequestError):
    """The snapshot asked for is older than the history that is kept."""


class CannotSplit(RequestError):
    """A tablet that cannot be split, or not at that row. Nothing was changed."""


class CannotJoin(RequestError):
    """Tablets that cannot be joined: they are not neighbours, or their table is fixed. Nothing was changed."""


class ClockSkew(RequestError):
    """A transaction number further in the future than clocks may differ."""


class MissingExtra(RequestError, ModuleNotFoundError):
    """What was asked for needs a package that is not installed. The message says how to install it."""


class ProtocolError(RequestError):
    """Bytes that are no message of the protocol between client and server, or a message that is too large."""


class IncompatibleVersion(RequestError):
    """Client and server speak no common version of the protocol. The message names both."""


class Denied(RequestError):
    """No token or certificate that is known, or without the right that the request needs. Nothing was changed."""


class TlsError(RequestError):
    """No encrypted connection can be made: a certificate is not to be trusted, or one of the two ends has no TLS."""


class ReadOnly(RequestError):
    """A write through something that was opened for reading."""


class Conflict(EblaError):
    """A row changed since it was read, or exists where it must not. Nothing was applied."""

    advice = "reread"


class Unavailable(EblaError):
    """Not now. Nothing was changed; the same request may succeed later."""

    advice = "retry"


class StoreLocked(Unavailable):
    """Another process has this store open for writing."""


class StaleRoute(Unavailable):
    """The tablet is not served here, or its epoch or schema version moved on."""


class SchemaChanged(StaleRoute):
    """The schema of the table changed since the request was made. Nothing was applied; make it again."""


class TableUnloaded(Unavailable):
    """The table is not loaded: it was taken offline by `unload_table`, and `load_table` brings it back."""


class Closed(Unavailable):
    """The store was closed."""


class TooManyFiles(Unavailable, OSError):
    """No more files can be opened, by this process or by any. Nothing is wrong with those that are there."""

    @classmethod
    def at(cls, place: object, error: OSError | None = None) -> TooManyFiles:
        """Return the error for a file that could not be opened."""
        number = errno.EMFILE if error is None or error.errno is None else error.errno
        whose = "the machine" if number == errno.ENFILE else "this process"
        made = cls(
            f"{place} cannot be opened, for {whose} has too many files open: raise the limit (ulimit -n), or let the "
            "store keep fewer open (the setting open_files_max); then retry"
        )
        made.errno = number
        return made

    @staticmethod
    def is_meant_by(error: BaseException) -> bool:
        """Tell whether an error of the operating system says that there is no descriptor left."""
        return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


class TimedOut(Unavailable):
    """The request took longer than allowed and was given up before it had any effect."""


class OutcomeUnknown(EblaError):
    """The change may or may not have happened. Read before repeating it."""

    advice = "check"


class StoreError(EblaError):
    """The store itself needs attention before it can go on."""


class StoreNotFound(StoreError):
    """There is no store at that place."""


class Corruption(StoreError):
    """Bytes that are not what was written. Names the file, and the offset where it is known."""

    def __init__(self, file: str, reason: str, offset: int | None = None) -> None:
        self.file = file
        self.offset = offset
        self.reason = reason
        where = file if offset is None else f"{file} at offset {offset}"
        super().__init__(f"{where} is damaged: {reason}")

    def __reduce__(self) -> tuple[type[Corruption], tuple[str, str, int | None]]:
        return type(self), (self.file, self.reason, self.offset)


class MissingFile(StoreError):
    """A file that the store's metadata names is not there."""


class TableDamaged(StoreError):
    """What METADATA says of a table cannot be. It is refused, or takes no writes; other tables are served."""


class LogFailed(StoreError):
    """The log cannot be written. Reads go on; writing resumes after the cause is gone and the store reopened."""


class FormatTooNew(StoreError):
    """The files were written by a later version of Ebla."""
