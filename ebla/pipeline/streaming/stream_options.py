"""The options of streams through ``format("ebla")``, from text to values. Pure: nothing is opened.

    spark.readStream.format("ebla").option("root", "/data").option("since", "snapshot").load("users")
    frame.writeStream.format("ebla").option("root", "/data").option("checkpointLocation", ...).start("users")

| option          | reading                                                                                      |
|-----------------|----------------------------------------------------------------------------------------------|
| root, table     | as for other reads, and so are cluster, token_file and tls_ca                                |
| since           | ``snapshot``: the table as it is, then its changes; ``now``, a txn, or a time: changes alone |
| before          | ``true``: rows also as they were, in ``_before``                                             |
| columns         | as for other reads, and so are start, stop and prefix                                        |
| max_rows        | a batch has at most so many rows                                                             |
| max_bytes       | a batch has about so many bytes                                                              |
| hold_seconds    | history is held for so long while the stream stands still; a week                            |

| option          | writing                                                                                      |
|-----------------|----------------------------------------------------------------------------------------------|
| root, table     | as for other writes, and so are cluster, token_file and tls_ca                               |
| operation       | ``put``, ``replace``, ``erase``; unless it is said, change rows replace and others are put   |
| app             | a name for the stream, where the id of its query is not to be it                             |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ebla.errors import RequestError
from ebla.pipeline.datasource.datasource_options import (
    ADDRESS,
    OPERATIONS,
    Address,
    Operation,
    check_app,
    names_in,
    one_of,
    refuse_unknown,
    txn_or_time,
)

__all__ = ["Since", "StreamReadOptions", "StreamWriteOptions"]

Since = int | datetime | Literal["snapshot", "now"]
WEEK_SECONDS = 7 * 86_400.0
HOLD_SECONDS_MIN = 60.0

_READING = ADDRESS | {
    "since",
    "before",
    "columns",
    "start",
    "stop",
    "prefix",
    "max_rows",
    "max_bytes",
    "hold_seconds",
}
_WRITING = ADDRESS | {"operation", "app", "checkpointlocation"}
_EXAMPLE = 'spark.readStream.format("ebla").option("root", "/data").option("since", "snapshot").load("users")'


@dataclass(frozen=True)
class StreamReadOptions:
    """What a stream of changes asks for."""

    address: Address
    since: Since
    before: bool = False
    columns: tuple[str, ...] | None = None
    start: str | None = None
    stop: str | None = None
    prefix: str | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    hold_seconds: float = WEEK_SECONDS

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamReadOptions:
        """Read the options of ``readStream``."""
        refuse_unknown(options, _READING, "streamed")
        since = options.get("since")
        if since is None:
            raise RequestError(
                f"where does the stream begin? Say since: snapshot, now, a txn or a time, as in {_EXAMPLE}"
            )
        if options.get("prefix") is not None and (options.get("start") or options.get("stop")) is not None:
            raise RequestError("give either the option prefix, or start and stop")
        max_rows, max_bytes = (_count(options, name) for name in ("max_rows", "max_bytes"))
        if max_rows is not None and max_bytes is not None:
            raise RequestError("a batch is limited by max_rows or by max_bytes: give one of them")
        return cls(
            Address.of(options, _EXAMPLE),
            _since(since),
            _flag(options, "before"),
            names_in(options.get("columns")),
            options.get("start"),
            options.get("stop"),
            options.get("prefix"),
            max_rows,
            max_bytes,
            _seconds(options),
        )


@dataclass(frozen=True)
class StreamWriteOptions:
    """What a stream into a table asks for. Without an `operation`, it depends on the rows."""

    address: Address
    operation: Operation | None = None
    app: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamWriteOptions:
        """Read the options of ``writeStream``."""
        refuse_unknown(options, _WRITING, "written by a stream")
        address = Address.of(
            options,
            'frame.writeStream.format("ebla").option("root", "/data").option("checkpointLocation", ...).start("users")',
        )
        given, app = options.get("operation"), options.get("app")
        operation = None if given is None else one_of(OPERATIONS, given.lower(), "operation")
        return cls(address, operation, None if app is None else check_app(app))


def _since(text: str) -> Since:
    low = text.strip().lower()
    if low == "snapshot":
        return "snapshot"
    if low == "now":
        return "now"
    found = txn_or_time(text)
    if found is None:
        raise RequestError(
            f"since {text!r} is neither snapshot nor now, nor a txn, nor a time: write 2026-01-31T12:00:00"
        )
    return found


def _flag(options: Mapping[str, str], name: str) -> bool:
    return one_of(("false", "true"), options.get(name, "false").lower(), name) == "true"


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise RequestError(f"{name} is a number from 1 on, not {text!r}")
    return int(text)


def _seconds(options: Mapping[str, str]) -> float:
    text = options.get("hold_seconds")
    try:
        seconds = WEEK_SECONDS if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not HOLD_SECONDS_MIN <= seconds < 1e9:
        raise RequestError(f"hold_seconds is a time of {HOLD_SECONDS_MIN:g} seconds or more, not {text!r}")
    return seconds
