"""A mirror: a table that is kept as another one is, in the same store or in another, by a stream of its changes.

    source --readStream: first all rows, then changes--> batches --writeStream: each once--> mirror
                                                            |
                                                       checkpoint: how far it has come

A mirror is made if it is not there, with the schema of its source. At the end of every round (all rows, or all changes
up to one txn) it is as the source was at that txn; within one that is cut into several batches, some rows are ahead of
others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from ebla.arguments import checked_callback, checked_flag
from ebla.client.database import Database
from ebla.client.embedded.coordination_place import is_store
from ebla.client.embedded.opening import open_alone
from ebla.direct.place import Place
from ebla.errors import RequestError, UnknownColumn, UnknownTable
from ebla.model.declaration import Group, Schema, check_table_name
from ebla.model.schema import WILDCARD, TableSchema
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.progress import JobProgress
from ebla.pipeline.spark.session import active_session, register_data_source, session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StreamSummary", "mirror", "watched_query"]

LOOK_SECONDS = 1
FOLLOW_TRIGGER = "1 second"


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """What a stream did while it was watched: how many batches, and how many rows in them."""

    batches: int
    rows: int


def mirror(
    source: Database | str | os.PathLike[str],
    table: str,
    target: Database | str | os.PathLike[str],
    name: str | None = None,
    *,
    checkpoint: str | os.PathLike[str],
    follow: bool = False,
    max_rows: int | None = None,
    spark: SparkSession | None = None,
    progress: Callable[[JobProgress], None] | None = None,
) -> StreamSummary:
    """Bring a mirror of a table up to date, or keep it so, and return what was done.

    The mirror is the table `name` in the store `target`, called like its source if that is not said; what of the two is
    not there is made. `checkpoint` is a directory that remembers how far it has come: the first call copies all rows,
    each later one what changed since. With `follow` it goes on until it is interrupted. A batch has at most `max_rows`
    rows. It can be killed at any moment and called again.

    Raises `HistoryGone` if it was not called for so long that its history has expired, `SchemaChanged` if the source is
    altered meanwhile: alter the mirror as well, and call it again.
    """
    checked_callback("progress", progress)
    follow = checked_flag("follow", follow)
    if spark is None:
        spark = active_session() or session()
    register_data_source(spark)
    name = check_table_name(name or table)
    if max_rows is not None and max_rows < 1:
        raise RequestError(f"a batch has at least one row, not {max_rows}")
    places = Place.of(source), _place_of(target)
    if places[0].root == places[1].root and name == table:
        raise RequestError(f"a table cannot be its own mirror: choose another name than {name!r}, or another store")
    _make(*places, table, name)
    options = {**places[0].options, "since": "snapshot"}
    if max_rows is not None:
        options["max_rows"] = str(max_rows)
    with unwrapping():
        changes = spark.readStream.format("ebla").options(**options).load(table)
        writer = changes.writeStream.format("ebla").options(**places[1].options)
        writer = writer.option("checkpointLocation", os.fspath(Path(checkpoint).absolute()))
        writer = writer.trigger(processingTime=FOLLOW_TRIGGER) if follow else writer.trigger(availableNow=True)
        return watched_query(writer.start(name), progress)


def watched_query(query: StreamingQuery, progress: Callable[[JobProgress], None] | None = None) -> StreamSummary:
    """Wait until a query ends, and stop it if the wait is interrupted; return what it did. Raises what ended it."""
    rows: dict[int, int] = {}

    def look() -> None:
        for batch in query.recentProgress:
            rows[batch["batchId"]] = max(batch["numInputRows"], rows.get(batch["batchId"], 0))
        if progress is not None:
            progress(JobProgress(f"{len(rows):,} batches, {sum(rows.values()):,} rows"))

    look()
    try:
        with unwrapping():
            while not query.awaitTermination(LOOK_SECONDS):
                look()
    finally:
        query.stop()
    look()
    return StreamSummary(sum(count > 0 for count in rows.values()), sum(rows.values()))


def _place_of(target: Database | str | os.PathLike[str]) -> Place:
    """Return the place of the mirror's store, which is made if it is not there."""
    if isinstance(target, (str, os.PathLike)) and not is_store(Path(target)):
        open_alone(target).close()
    return Place.of(target)


def _make(source: Place, target: Place, table: str, name: str) -> None:
    """Make the mirror unless it is there; if it is, it must have the names that its source has.

    Other differences are found when rows are written.
    """
    known = source.metadata(table)
    if known is None:
        raise UnknownTable(f"there is no table {table!r} in {source.root}: check the name")
    mirror = target.metadata(name)
    if mirror is None:
        target.create_table(name, schema_like(known.schema), [])
        return
    there = _names(mirror.schema)
    missing = [one for one in _names(known.schema) if one not in there]
    if missing and WILDCARD not in there:
        raise UnknownColumn(
            f"the mirror {name!r} has no {', '.join(missing[:20])}, which {table!r} has: "
            "alter the mirror as its source was altered, then call this again"
        )


def _names(schema: TableSchema) -> list[str]:
    """Return the names of key columns, columns and families."""
    columns = [column.name for group in schema.groups for column in group.columns]
    return [*schema.key_names, *columns, *(family.name for group in schema.groups for family in group.families)]


def schema_like(schema: TableSchema) -> Schema:
    """Return the schema with which a table like another one is made."""
    groups = [
        Group(
            group.name,
            columns=None if group.is_cells else {column.name: column.type for column in group.columns},
            families=[family.name for family in group.families] if group.is_cells else None,
            compression=group.compression,
            block_bytes=group.block_bytes,
            max_versions="all" if group.max_versions is None else group.max_versions,
            max_age=None if group.max_age_microseconds is None else timedelta(microseconds=group.max_age_microseconds),
            purge_join=group.purge_join,
            in_memory=group.in_memory,
            lookup_at_once=group.lookup_at_once,
        )
        for group in schema.groups
    ]
    return Schema(key={column.name: column.type for column in schema.key}, groups=groups)
