"""Batches of a stream into a table, from a ``foreachBatch`` of the user's own.

    frame.writeStream.foreachBatch(stream_into(db, "users")).option("checkpointLocation", ...).start()

It does what ``writeStream.format("ebla")`` does, for those who have more to do with a batch than to write it: one batch
becomes part of the table in one commit, and once, by the query's id and the batch's number.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from pyspark.sql import DataFrame

from ebla.client.database import Database
from ebla.direct.place import Place
from ebla.errors import RequestError, UnknownTable
from ebla.model.declaration import check_table_name
from ebla.pipeline.datasource.datasource_options import OPERATIONS, Operation, check_app, one_of
from ebla.pipeline.datasource.datasource_writer import is_batch_done
from ebla.pipeline.spark.failures import unwrapping
from ebla.pipeline.spark.session import register_data_source
from ebla.pipeline.streaming.stream_writer import QUERY_PROPERTY

__all__ = ["stream_into"]


def stream_into(
    store: Database | str | os.PathLike[str],
    table: str,
    *,
    operation: Operation | None = None,
    app: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes every batch into a table, once.

    `store` is an open database, or the directory of a store that any process may have open. Rows are put, unless
    `operation` is ``replace`` or ``erase``; rows with ``_change`` replace what is there, and are erased where they say
    so. A batch is known by its number and `app`; without one, by the id of the query, which is kept in its checkpoint.
    Whoever names an app keeps it to one stream, whose batches have numbers that grow for ever.
    """
    given = Place.of(store)
    root = given.root
    check_table_name(table)
    if operation is not None:
        one_of(OPERATIONS, operation, "operation")
    if app is not None:
        check_app(app)

    def write(frame: DataFrame, batch: int) -> None:
        name = app or frame.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY)
        if name is None:
            raise RequestError("this is no batch of a stream: call it from foreachBatch, or name an app")
        metadata = Place.at(root, given.cluster).metadata(table)
        if metadata is None:
            raise UnknownTable(f"there is no table {table!r} in {root}: create it, then start the query again")
        if is_batch_done(metadata, name, batch):
            return
        register_data_source(frame.sparkSession)
        options = {**given.options, "app": name, "batch": str(batch)}
        if operation is not None:
            options["operation"] = operation
        with unwrapping():
            frame.write.format("ebla").options(**options).mode("append").save(table)

    return write
