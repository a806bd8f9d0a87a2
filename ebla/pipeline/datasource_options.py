"""The options of ``format("ebla")``, from text to values. Pure: nothing is opened.

    spark.read.format("ebla").option("root", "/data").option("as_of", "2026-01-31T12:00:00").load("users")
                                     |                      |                                     |
                              the store's place       a txn or a time                     path = the table

| option    | reading                                             | writing                                       |
|-----------|-----------------------------------------------------|-----------------------------------------------|
| root      | directory of the store                              | the same                                      |
| table     | name of the table; what `load` and `save` are given | the same                                      |
| as_of     | a txn, or an ISO 8601 time (UTC unless it says)     |                                               |
| columns   | ``a,b``, or a JSON array of names                   |                                               |
| start     | first key, or the beginning of one                  |                                               |
| stop      | key to stop before                                  |                                               |
| prefix    | the beginning of all keys wanted                    |                                               |
| operation |                                                     | ``put``, ``replace`` (whole rows), ``erase``  |
| job       |                                                     | an id: writing with it again changes nothing  |

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
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from ebla.errors import InvalidKey, RequestError
from ebla.schema import Column, TableSchema

__all__ = ["Address", "Operation", "ReadOptions", "WriteOptions", "key_from_text", "moment"]

Operation: TypeAlias = Literal["put", "replace", "erase"]
OPERATIONS: tuple[Operation, ...] = ("put", "replace", "erase")
BASE64 = "base64:"

_ADDRESS = frozenset({"root", "table", "path"})
_READING = _ADDRESS | {"as_of", "columns", "start", "stop", "prefix"}
_WRITING = _ADDRESS | {"operation", "job"}
# What Spark adds to the options when a table of its catalog is made.
_OF_SPARK = frozenset({"provider", "owner", "comment", "location", "external", "is_managed_location", "collation"})
_OPTION_OF_CATALOG = "option."
_OFFSET = re.compile(r"(Z|[+-]\d{2}:?\d{2})$")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}$")


@dataclass(frozen=True)
class Address:
    """Where a table is: the store's directory and the table's name."""

    root: str
    table: str

    @classmethod
    def of(cls, options: Mapping[str, str], example: str) -> Address:
        """Read ``root`` and ``table`` (or the path of `load` and `save`) from options."""
        root, table, path = (options.get(name) or None for name in ("root", "table", "path"))
        if table is not None and path is not None and table != path:
            raise RequestError(f"the table is called {table!r} by an option and {path!r} by the path: give one of them")
        if root is None:
            raise RequestError(f"which store? Say where it is: {example}")
        name = table or path
        if name is None:
            raise RequestError(f"which table? Name it: {example}")
        return cls(os.path.abspath(root), name)


@dataclass(frozen=True)
class ReadOptions:
    """What a load asks for, as text where only the table's schema can tell more."""

    address: Address
    as_of: int | datetime | None = None
    columns: tuple[str, ...] | None = None
    start: str | None = None
    stop: str | None = None
    prefix: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options of a load."""
        _refuse_unknown(options, _READING, "read")
        as_of = options.get("as_of")
        if options.get("prefix") is not None and (options.get("start") or options.get("stop")) is not None:
            raise RequestError("give either the option prefix, or start and stop")
        return cls(
            Address.of(options, 'spark.read.format("ebla").option("root", "/data").load("users")'),
            None if as_of is None else moment(as_of),
            _names(options.get("columns")),
            options.get("start"),
            options.get("stop"),
            options.get("prefix"),
        )


@dataclass(frozen=True)
class WriteOptions:
    """What a save asks for."""

    address: Address
    operation: Operation = "put"
    job: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read the options of a save."""
        _refuse_unknown(options, _WRITING, "written")
        given = options.get("operation", "put").lower()
        operation = next((known for known in OPERATIONS if known == given), None)
        if operation is None:
            raise RequestError(f"operation is {', '.join(OPERATIONS[:-1])} or {OPERATIONS[-1]}, not {given!r}")
        address = Address.of(
            options,
            'df.write.format("ebla").option("root", "/data").mode("append").save("users"), '
            "in SQL INSERT INTO users WITH (root='/data', table='users') ...",
        )
        return cls(address, operation, options.get("job") or None)


def _refuse_unknown(options: Mapping[str, str], known: frozenset[str], done: str) -> None:
    for name in options:
        low = name.lower()
        if low not in known and low not in _OF_SPARK and not low.startswith(_OPTION_OF_CATALOG):
            raise RequestError(f"there is no option {name!r}: a table is {done} with {', '.join(sorted(known))}")


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    if text.lstrip().startswith("["):
        try:
            return tuple(msgspec.json.decode(text, type=list[str]))
        except msgspec.MsgspecError as error:
            raise RequestError(f"columns {text!r} is not a JSON array of names: {error}") from None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise RequestError("columns is empty: name some, as in 'name,age', or leave the option out")
    return names


def moment(text: str) -> int | datetime:
    """Return the txn or the time that a text means. A time without an offset is UTC."""
    if text.isdecimal():
        return int(text)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise RequestError(f"as_of {text!r} is neither a txn nor a time: write 2026-01-31T12:00:00") from None
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
