"""Reading through ``format("ebla")``: a snapshot that is fixed once, and tasks that read sections of it.

    options --pin--> Pinned: which table, which txn, which sections    a plain value, pickled from process to process
                       |
        EblaReader.partitions()  one partition for each section        with a schema of its own: planned again, same txn
        EblaReader.read()        the engine's merge, over Arrow, in exactly the columns and types that Spark expects

The snapshot is held from the load on, and for as long as tasks read it (`keeping`): no process sees the DataFrame end.
Held are all loads of a minute by one pin, which expires some minutes after the last task.

This way every row goes through a Python task. `ebla.pipeline.scan` lets Spark read clean files by itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ebla.client.database import Database
from ebla.client.embedded.opening import open_alone
from ebla.direct.clusters import connected
from ebla.direct.held_pins import share
from ebla.direct.holding import SharedHolding
from ebla.errors import EblaError, InvalidBatch, RequestError, UnknownTable
from ebla.pipeline.datasource.datasource_options import ReadOptions, key_from_text
from ebla.pipeline.scanning.plan import Section
from ebla.pipeline.scanning.sections import SectionPlan, Target, plan_scan, read_section
from ebla.pipeline.spark.failures import plain_errors, told_plainly
from ebla.pipeline.spark.types import spark_schema

__all__ = ["EblaReader", "Pinned", "conformed", "keys_of_load", "pin", "renewed", "store_of_load"]


@dataclass(frozen=True)
class Pinned:
    """A load at its snapshot: what was asked for, and the plan to read it."""

    options: ReadOptions
    plan: SectionPlan

    @property
    def schema(self) -> StructType:
        """The columns of the load, as Spark knows them."""
        return spark_schema(self.plan.projection.arrow_schema)

    def with_columns(self, columns: Sequence[str]) -> Pinned:
        """Return the load with other columns, at the same snapshot of the same table."""
        target = self.plan.target
        again = pin(replace(self.options, columns=tuple(columns), as_of=target.as_of))
        if again.plan.target.table_id != target.table_id:
            raise UnknownTable(
                f"the table {target.table!r} was dropped and made anew since it was loaded: load it again"
            )
        return again


def pin(options: ReadOptions) -> Pinned:
    """Fix the snapshot of a load: the newest that is there, unless the options name one."""
    source = store_of_load(options)
    start, stop, prefix = keys_of_load(source, options)
    holding = SharedHolding()
    plan = plan_scan(
        source,
        options.address.table,
        columns=options.columns,
        start=start,
        stop=stop,
        prefix=prefix,
        as_of=options.as_of,
        cores=os.cpu_count() or 1,
        native=False,
        holding=holding,
    )
    return Pinned(options, replace(plan, target=replace(plan.target, held=holding.held)))


def store_of_load(options: ReadOptions) -> Database | str:
    """Return where the table of a load is."""
    address = options.address
    return connected(address.cluster) if address.cluster else address.root


def keys_of_load(source: Database | str, options: ReadOptions) -> tuple[Any, Any, Any]:
    """Return ``start``, ``stop`` and ``prefix`` of a load, as the table has its keys."""
    texts = (options.start, options.stop, options.prefix)
    if all(text is None for text in texts):
        return None, None, None
    with _looked_at(source) as database:
        schema = database.table(options.address.table).schema
        start, stop, prefix = (key_from_text(text, schema) for text in texts)
        return start, stop, prefix


@contextlib.contextmanager
def _looked_at(source: Database | str) -> Iterator[Database]:
    if isinstance(source, Database):
        yield source
        return
    with open_alone(source, read_only=True) as database:
        yield database


class SectionPartition(InputPartition):
    """What one task reads."""

    def __init__(self, section: Section | None) -> None:
        self.section = section


class EblaReader(DataSourceReader):
    """Reads a load in the columns of `schema`. Goes from process to process: its state are plain values."""

    def __init__(self, pinned: Pinned, schema: StructType) -> None:
        self._schema = schema
        self._target: Target
        self._sections: tuple[Section, ...]
        known = {field.name: field.dataType for field in pinned.schema.fields}
        if schema.names != list(known):
            keys = pinned.plan.projection.schema.key_names
            pinned = pinned.with_columns([name for name in schema.names if name not in keys])
            known = {field.name: field.dataType for field in pinned.schema.fields}
        for field in schema.fields:
            if field.dataType != known[field.name]:
                raise RequestError(
                    f"column {field.name!r} of {pinned.options.address.table!r} is {known[field.name].simpleString()}, "
                    f"not {field.dataType.simpleString()}: give it that type in the schema, and cast what was read"
                )
        self._target, self._sections = pinned.plan.target, pinned.plan.sections

    @told_plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each section; one without if there is nothing to read."""
        self._hold()
        return [SectionPartition(section) for section in self._sections] or [SectionPartition(None)]

    def _hold(self) -> None:
        """Hold the snapshot once more if the load was made a while ago: nobody may have used it since."""
        self._target = renewed(self._target)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a section."""
        section = partition.section if isinstance(partition, SectionPartition) else None
        if section is None:
            return
        # Spark refuses batches that differ from what it makes of the schema, be it in whether a field may be null.
        expected = to_arrow_schema(self._schema, timezone="UTC")
        with plain_errors():
            for batch in read_section(self._target, section):
                yield conformed(batch, expected)


def renewed(target: Target) -> Target:
    """Hold the snapshot of a load for longer, if that is due."""
    held = target.held
    if held is not None and held.is_due:
        with contextlib.suppress(EblaError):  # then it is there as long as history lasts
            return replace(target, held=share(held.root, target.as_of, held.cluster))
    return target


def conformed(batch: pa.RecordBatch, expected: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly the columns, types and nulls that Spark expects."""
    arrays = []
    for field in expected:
        array = batch.column(field.name)
        if not field.nullable and array.null_count:
            raise InvalidBatch(
                f"column {field.name!r} has nulls, and the schema given says it has none: let it have some"
            )
        arrays.append(array if array.type == field.type else pc.cast(array, field.type))
    return pa.record_batch(arrays, schema=expected)
