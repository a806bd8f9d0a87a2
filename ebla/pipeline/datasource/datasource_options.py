"""The options of ``format("ebla")``, from text to values. No store is opened.

    spark.read.format("ebla").option("root", "/data").option("as_of", "2026-01-31T12:00:00").load("users")
                                     |                      |                                     |
                              the store's place       a txn or a time                     path = the table

| option    | reading                                             | writing                                       |
|-----------|-----------------------------------------------------|-----------------------------------------------|
| root      | directory of the store                              | the same                                      |
| cluster   | instead: ``host:port`` of masters, by commas        | the same                                      |
| token_file | file with the token that a cluster with users wants | the same                                     |
| tls_ca    | file with the certificate of a cluster's authority  | the same                                      |
| table     | name of the table; what `load` and `save` are given | the same                                      |
| as_of     | a txn, a time (ISO 8601), or a snapshot's name      |                                               |
| columns   | ``a,b``, or a JSON array of names                   |                                               |
| start     | first key, or the beginning of one                  |                                               |
| stop      | key to stop before                                  |                                               |
| prefix    | the beginning of all keys wanted                    |                                               |
| key       |                                                     | makes the table, if there is none: ``id,day`` |
| if_exists |                                                     | ``append``, ``error``, ``ignore``             |
| mergeSchema |                                                   | ``true`` adds columns that the table lacks    |
| operation |                                                     | ``put``, ``replace`` (whole rows), ``erase``  |
| job       |                                                     | an id: writing with it again changes nothing  |
| app       |                                                     | the stream whose batch this is                |
| batch     |                                                     | its number: those up to it are written once   |

Rows with a column ``_change`` are change rows: they replace whole rows unless the operation is ``put``, and those that
say ``erase`` are erased.

A key is the text of its first column, or a JSON array of the first few: ``["ada", "2026-01-31"]``. Dates and times are
ISO 8601, bytes are text, or ``base64:`` and base64.

An option that is not known is refused: a misspelt ``as_of`` would read something else than was asked for. Spark's own
entries, which it adds for tables of its catalog, are passed over.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from ebla.direct.cluster_address import OPTIONS, of_options
from ebla.errors import InvalidKey, RequestError
from ebla.model.schema import Column, TableSchema
from ebla.service.job_files import check_job

__all__ = [
    "ADDRESS",
    "OPERATIONS",
    "Address",
    "Operation",
    "ReadOptions",
    "WriteOptions",
    "check_app",
    "key_from_text",
    "moment",
    "names_in",
    "one_of",
    "refuse_unknown",
    "txn_or_time",
]

Operation: TypeAlias = Literal["put", "replace", "erase"]
OPERATIONS: tuple[Operation, ...] = ("put", "replace", "erase")
BASE64 = "base64:"
APP_LENGTH_MAX = 100

ADDRESS = frozenset({"root", "table", "path", *OPTIONS})
_READING = ADDRESS | {"as_of", "columns", "start", "stop", "prefix"}
_WRITING = ADDRESS | {"operation", "job", "app", "batch", "key", "if_exists", "mergeschema"}
IfExists: TypeAlias = Literal["append", "error", "ignore"]
_IF_EXISTS: tuple[IfExists, ...] = ("append", "error", "ignore")
# What Spark adds to the options when a table of its catalog is made.
_OF_SPARK = frozenset({"provider", "owner", "comment", "location", "external", "is_managed_location", "collation"})
_OPTION_OF_CATALOG = "option."
_OFFSET = re.compile(r"(Z|[+-]\d{2}:?\d{2})$")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}$")


@dataclass(frozen=True)
class Address:
    """Where a table is: the store's directory, or the masters of a cluster, and the table's name."""

    root: str
    table: str
    cluster: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str], example: str) -> Address:
        """Read ``root`` and ``table`` (or the path of `load` and `save`) from options."""
        root, table, path = (options.get(name) or None for name in ("root", "table", "path"))
        if table is not None and path is not None and table != path:
            raise RequestError(f"the table is called {table!r} by an option and {path!r} by the path: give one of them")
        cluster = of_options({name: options.get(name) for name in OPTIONS})
        if root is None and not cluster:
            raise RequestError(f"which store? Say where it is: {example}")
        if root is not None and cluster:
            raise RequestError("give either the option root, of a store, or cluster, the address of a master")
        name = table or path
        if name is None:
            raise RequestError(f"which table? Name it: {example}")
        return cls("" if root is None else os.path.abspath(root), name, cluster)


@dataclass(frozen=True)
class ReadOptions:
    """What a load asks for, as text where only the table's schema can tell more."""

    address: Address
    as_of: int | datetime | str | None = None
    columns: tuple[str, ...] | None = None
    start: str | None = None
    stop: str | None = None
    prefix: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options of a load."""
        refuse_unknown(options, _READING, "read")
        as_of = options.get("as_of")
        if options.get("prefix") is not None and (options.get("start") or options.get("stop")) is not None:
            raise RequestError("give either the option prefix, or start and stop")
        return cls(
            Address.of(options, 'spark.read.format("ebla").option("root", "/data").load("users")'),
            None if as_of is None else moment(as_of),
            names_in(options.get("columns")),
            options.get("start"),
            options.get("stop"),
            options.get("prefix"),
        )


@dataclass(frozen=True)
class WriteOptions:
    """What a save asks for."""

    address: Address
    operation: Operation | None = None  # None: it depends on the rows
    job: str | None = None
    app: str | None = None
    batch: int = 0
    key: tuple[str, ...] | None = None
    if_exists: IfExists = "append"
    merge_schema: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read the options of a save."""
        refuse_unknown(options, _WRITING, "written")
        given = options.get("operation")
        operation = None if given is None else one_of(OPERATIONS, given.lower(), "operation")
        address = Address.of(
            options,
            'df.write.format("ebla").option("root", "/data").mode("append").save("users"), '
            "in SQL INSERT INTO users WITH (root='/data', table='users') ...",
        )
        job, app, batch = (options.get(name) or None for name in ("job", "app", "batch"))
        if (app is None) != (batch is None) or (app is not None and job is not None):
            raise RequestError("a batch of a stream is named by app and batch, both of them, and has no job")
        if batch is not None and not batch.isdecimal():
            raise RequestError(f"batch is a number, not {batch!r}")
        merges = {name.lower(): text for name, text in options.items()}.get("mergeschema", "false")
        return cls(
            address,
            operation,
            job,
            None if app is None else check_app(app),
            int(batch or 0),
            names_in(options.get("key"), "key"),
            one_of(_IF_EXISTS, options.get("if_exists", "append").lower(), "if_exists"),
            one_of(("false", "true"), merges.lower(), "mergeSchema") == "true",
        )


Choice = TypeVar("Choice", bound=str)


def one_of(known: Sequence[Choice], given: str, name: str) -> Choice:
    """Return the one of the known texts that was given."""
    for choice in known:
        if choice == given:
            return choice
    raise RequestError(f"{name} is {', '.join(known[:-1])} or {known[-1]}, not {given!r}")


def check_app(app: str) -> str:
    """Return `app` if it can name a stream: it becomes part of the names of files."""
    if not isinstance(app, str) or len(app) > APP_LENGTH_MAX:
        raise RequestError(f"{app!r} cannot be the name of a stream: use up to {APP_LENGTH_MAX} letters and digits")
    return check_job(app)


def refuse_unknown(options: Mapping[str, str], known: frozenset[str], done: str) -> None:
    """Raise if there is an option that is not known, and is not Spark's own."""
    for name in options:
        low = name.lower()
        if low not in known and low not in _OF_SPARK and not low.startswith(_OPTION_OF_CATALOG):
            raise RequestError(f"there is no option {name!r}: a table is {done} with {', '.join(sorted(known))}")


def names_in(text: str | None, option: str = "columns") -> tuple[str, ...] | None:
    """Return the names of columns that an option lists; None if it was not given."""
    if text is None:
        return None
    if text.lstrip().startswith("["):
        try:
            return tuple(msgspec.json.decode(text, type=list[str]))
        except msgspec.MsgspecError as error:
            raise RequestError(f"{option} {text!r} is not a JSON array of names: {error}") from None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise RequestError(f"{option} is empty: name some, as in 'name,age', or leave the option out")
    return names


def moment(text: str) -> int | datetime | str:
    """Return the txn, the time or the name of a snapshot that a text means. A time without an offset is UTC."""
    found = txn_or_time(text)
    if found is None and not text.strip():
        raise RequestError("as_of is a txn, a time as in 2026-01-31T12:00:00, or the name of a snapshot")
    return text if found is None else found


def txn_or_time(text: str) -> int | datetime | None:
    """Return the txn or the time that a text means; None if it is neither."""
    if text.isdecimal():
        return int(text)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        return None
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


# --- keys ----------------------------------------------------------------------------------------


def key_from_text(text: str | None, schema: TableSchema) -> Any:
    """Return a key, or the beginning of one, from the text of an option; None stays None."""
    if text is None:
        return None
    values: Sequence[Any] = [text]
    if text.startswith("["):
        try:
            values = msgspec.json.decode(text, type=list[Any])
        except msgspec.MsgspecError as error:
            raise InvalidKey(f'the key {text!r} is not a JSON array ({error}): write ["ada", "2026-01-31"]') from None
    if not 1 <= len(values) <= len(schema.key):
        raise InvalidKey(f"the key is {', '.join(schema.key_names)}: {text!r} has {len(values)} value(s)")
    key = tuple(_value(value, column) for value, column in zip(values, schema.key, strict=False))
    return key if len(schema.key) > 1 else key[0]


def _value(value: Any, column: Column) -> Any:
    if not isinstance(value, str) or pa.types.is_string(column.type):
        return value
    try:
        return _from_text(value, column.type)
    except (pa.ArrowException, ValueError, binascii.Error):
        raise InvalidKey(f"key column {column.name!r} is {column.type}, and {value!r} is none") from None


def _from_text(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_binary(kind):
        is_base64 = text.startswith(BASE64)
        return base64.b64decode(text.removeprefix(BASE64), validate=True) if is_base64 else text.encode()
    if pa.types.is_time(kind):
        return time.fromisoformat(text)
    if pa.types.is_timestamp(kind) and kind.tz is not None and _OFFSET.search(text) is None:
        text = f"{text}T00:00:00Z" if _DAY.match(text) else f"{text}Z"
    return pa.array([text]).cast(kind)[0].as_py()
