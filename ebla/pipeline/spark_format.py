"""Spark's ``format("ebla")``: tables of a store as DataFrames and SQL tables, to read and to write.

    spark.read.format("ebla").option("root", "/data").load("users")
    spark.read.format("ebla").option("cluster", "127.0.0.1:7070").load("users")
    df.write.format("ebla").option("root", "/data").mode("append").save("users")
    CREATE TABLE users USING ebla OPTIONS (root '/data', table 'users')
    spark.readStream.format("ebla").option("root", "/data").option("since", "snapshot").load("users")
    df.writeStream.format("ebla").option("root", "/data").option("checkpointLocation", ...).start("users")

`datasource_options` lists the options, `datasource_reader` and `datasource_writer` do the work; for streams these are
`stream_options`, `stream_reader` and `stream_writer`.

Spark calls the methods of a source in Python processes of its own, none of them the user's, and carries the source from
one to the next by pickling it:

    process 1: schema()  --pickle-->  process 2: reader(), partitions()  --pickle-->  tasks: read()

**One snapshot per load.** The txn to read at is fixed when the source is made, and travels along: in `schema`, or, when
the user gave a schema and `schema` is not called, at the first pickling. Spark keeps the source for the life of the
DataFrame, so that all its actions, and all DataFrames derived from it, see one snapshot. A temporary view is a load.

**A stream** is a source with the option ``since``. It has the columns of change rows, and is told from other reads by
that option alone: Spark asks for columns before it says what they are for.

**Tables of Spark's catalog** are looked up anew for every query, and each query sees the newest snapshot. Spark 4.3
does not hand the options of ``CREATE TABLE`` to a Python source when the table is read. They are therefore kept where
Spark does keep something, in the metadata of the first column of the schema. An INSERT cannot use them: its rows
may carry the metadata of another table that they were read from, and would be written there. It must say
``WITH (root=...)``.

**Filters are not pushed down** to this source: Spark shares what a filter left of one load with all DataFrames of that
load, so that rows would be missing from others (docs/decisions/0014 and 0015). In a session whose driver is a process
that has this package loaded, a read never gets here: `native_reads` puts the plan of `db.spark` in its place, with
columns and filters of the query that it belongs to.

**Little is imported here.** Spark loads this module in the first moment of every session, in a process of its own, to
learn of the format: most sessions read and write in other ways, and none waits for the engine to be loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from ebla.errors import RequestError
from ebla.pipeline.spark.failures import told_plainly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from ebla.pipeline.datasource.datasource_options import ReadOptions
    from ebla.pipeline.datasource.datasource_reader import Pinned

__all__ = ["FORMAT", "EblaSource", "register"]

FORMAT = "ebla"
SINCE = "since"
CHECKPOINT = "checkpointlocation"
# Under this name the metadata of a column holds the options of a table of Spark's catalog.
OPTIONS_KEY = "ebla"
# Spark gives every option of CREATE TABLE a second time with this before its name.
_OF_CATALOG = "option."


def register(spark: SparkSession) -> None:
    """Make ``format("ebla")`` known to a session, and have it read as fast as `db.spark` (`native_reads`).

    Spark finds the format by itself where this package is installed; then every row goes through Python.
    """
    from ebla.pipeline.datasource.native_reads import read_natively
    from ebla.pipeline.datasource.saving import take_saves

    spark.dataSource.register(EblaSource)
    spark.dataSource.register(EblaTasks)
    read_natively(spark)
    take_saves(spark, kept_options)


class EblaSource(DataSource):
    """A table of a store, as Spark knows it. Made by Spark, in processes of its own."""

    _pinned: Pinned | None = None

    @classmethod
    def name(cls) -> str:
        """Return what goes into ``format(...)``."""
        return FORMAT

    @told_plainly
    def schema(self) -> StructType:
        """Return the columns of the table, and fix the snapshot."""
        from ebla.pipeline.datasource.datasource_options import ReadOptions
        from ebla.pipeline.datasource.datasource_reader import pin

        if SINCE in self.options:
            from ebla.pipeline.streaming.stream_options import StreamReadOptions
            from ebla.pipeline.streaming.stream_reader import stream_schema

            return stream_schema(StreamReadOptions.of(self.options))
        self._pinned = pin(ReadOptions.of(self.options))
        schema = self._pinned.schema
        kept = {name: text for name, text in self.options.items() if _OF_CATALOG + name in self.options}
        if kept:
            schema.fields[0].metadata = {OPTIONS_KEY: kept}
        return schema

    def __getstate__(self) -> dict[str, Any]:
        # The last chance to fix the snapshot. A source without an address belongs to a table of Spark's catalog.
        is_stream = SINCE in self.options or CHECKPOINT in self.options
        if self._pinned is None and _has_address(self.options) and not is_stream:
            from ebla.pipeline.datasource.datasource_options import ReadOptions
            from ebla.pipeline.datasource.datasource_reader import pin

            # Spark pickles what a stream writes to as well, and with other options. A reader says what is wrong.
            with contextlib.suppress(RequestError):
                self._pinned = pin(ReadOptions.of(self.options))
        return self.__dict__

    def load(self, columns: StructType) -> ReadOptions | Pinned:
        """Return the snapshot of the load; what it asks for if it is a table of the catalog, which has none."""
        from ebla.pipeline.datasource.datasource_options import ReadOptions

        if self._pinned is not None:
            return self._pinned
        kept = {} if _has_address(self.options) else kept_options(columns)
        return ReadOptions.of({**kept, **self.options})

    @told_plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads these columns at the snapshot."""
        from ebla.pipeline.datasource.datasource_options import ReadOptions
        from ebla.pipeline.datasource.datasource_reader import EblaReader, pin

        if SINCE in self.options:
            raise RequestError("since is for streams: read changes in batch with ebla.pipeline.changes")
        if self._pinned is None:
            load = self.load(schema)
            assert isinstance(load, ReadOptions), "it has no snapshot yet"
            self._pinned = pin(load)
        return EblaReader(self._pinned, schema)

    @told_plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what writes rows like these."""
        from ebla.pipeline.datasource.datasource_options import WriteOptions
        from ebla.pipeline.datasource.datasource_writer import EblaWriter

        return EblaWriter.start(WriteOptions.of(self.options), schema, overwrite=overwrite)

    @told_plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what streams the changes of the table."""
        from ebla.pipeline.streaming.stream_options import StreamReadOptions
        from ebla.pipeline.streaming.stream_reader import EblaStreamReader, RefusingReader

        try:
            return EblaStreamReader(StreamReadOptions.of(self.options), schema)
        except RequestError as error:
            return RefusingReader(error)

    @told_plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        """Return what writes the batches of a stream into the table."""
        from ebla.pipeline.streaming.stream_options import StreamWriteOptions
        from ebla.pipeline.streaming.stream_writer import EblaStreamWriter

        return EblaStreamWriter(StreamWriteOptions.of(self.options), schema, overwrite=overwrite)


class EblaTasks(EblaSource):
    """The same source under another name, for saves that were taken as a whole (`saving`)."""

    @classmethod
    def name(cls) -> str:
        """Return what goes into ``format(...)``."""
        from ebla.pipeline.datasource.saving import TASKS

        return TASKS


def _has_address(options: Mapping[str, str]) -> bool:
    return any(name in options for name in ("root", "cluster", "table", "path"))


def kept_options(schema: StructType) -> Mapping[str, str]:
    """Return the options with which a table of Spark's catalog was made, from its columns."""
    kept = schema.fields[0].metadata.get(OPTIONS_KEY) if schema.fields else None
    if not isinstance(kept, dict):
        raise RequestError(
            "it is not known which table this is: CREATE TABLE users USING ebla OPTIONS (root '/data', table 'users'), "
            "without a list of columns, which come from the table"
        )
    return kept
