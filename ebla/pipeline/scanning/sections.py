"""Sections of a scan: how they are planned on the driver, and how a task reads one.

    driver   plan_scan(db or root, "users", ...)      -->  SectionPlan(target, plan, masks, sections)
    task     read_section(target, section)            -->  Arrow batches, in the types that Spark takes

A `Target` says all that a task must know: where the store is, which table, which columns, and the txn at which every
task of the job reads. The task opens the store read-only, by its root, wherever it runs; it sees flushed and unflushed
rows alike through the engine's own scanner. *All tasks of a plan together give the rows of ``table.scan(as_of=T)``,
each once, whatever is written, flushed or moved meanwhile.*
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ebla.arguments import checked_names
from ebla.client.database import Database
from ebla.client.moments import AsOf
from ebla.direct.clusters import cluster_of, forget_cluster, reading_captured
from ebla.direct.held_pins import Held, kept
from ebla.direct.holding import Holding, Needs, held_plan
from ebla.direct.opens import TASK_SETTINGS, forget, reading, store_of, table_by_id, txn_in
from ebla.direct.table_value import VALUE_NAME, reading_value
from ebla.direct.views import TableState, TabletStore, check_existed, read_range, read_rows, with_columns_of
from ebla.errors import EblaError, HistoryGone, MissingFile, RequestError, SchemaChanged, UnknownTable
from ebla.metadata.values.restoring import pack_metadata
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.keys import KeyCodec
from ebla.model.projection import Projection
from ebla.model.ranges import ALL, KeyRange, successor
from ebla.model.schema import GroupSchema
from ebla.model.where import Where, to_expression
from ebla.pipeline.scanning.layers import Layers, lay, rows_from_stream
from ebla.pipeline.scanning.overlay import overlay
from ebla.pipeline.scanning.plan import Limits, ScanPlan, Section, make_plan
from ebla.pipeline.scanning.survey import Survey, survey
from ebla.pipeline.spark.types import arrow_for_spark, is_native, to_spark

__all__ = [
    "FLUSH_BYTES",
    "SectionPlan",
    "Target",
    "plan_scan",
    "plan_value",
    "range_asked",
    "range_of",
    "read_section",
    "rest_of",
    "resumed",
    "spark_batches",
    "target_of",
]

MIB = 1 << 20
# More than this in memory is flushed before a scan is planned: then Spark can read it by itself.
FLUSH_BYTES = 16 * MIB
BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Target:
    """What every task of a scan reads from. A plain value that goes to other processes."""

    root: str
    table: str
    table_id: str
    schema_version: int
    columns: tuple[str, ...] | None
    as_of: int
    # Whoever has seen this commit has seen all that is visible at `as_of`.
    at_least_txn: int
    # METADATA, packed, of a table that no store has: its files are below `root`.
    value: bytes | None = None
    # What tasks renew while they read. Of other jobs the driver does.
    held: Held | None = None
    # The masters of the cluster that has the table; none of a store that can be opened.
    cluster: tuple[str, ...] = ()
    # Only rows for which it is true; it may name columns that are not among those given out.
    where: pc.Expression | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """A scan as it was planned: its target, its columns, and what is read how."""

    target: Target
    projection: Projection
    plan: ScanPlan
    layers: Layers
    overlay: pa.Table | None = None  # the rows of all sections, in Spark's types, if they were merged already
    spans: Mapping[str, KeyRange] = field(default_factory=dict)  # between which rows those of each clean file are
    section_bytes: int = 0  # about how much sections read

    @property
    def sections(self) -> tuple[Section, ...]:
        """What tasks merge."""
        return self.plan.dirty + self.layers.sections if self.overlay is None else ()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches that `read_section` yields."""
        return pa.schema([pa.field(f.name, arrow_for_spark(f.type)) for f in self.projection.arrow_schema])


# --- on the driver -------------------------------------------------------------------------------


def plan_scan(
    source: Database | str | os.PathLike[str],
    table: str,
    *,
    columns: Sequence[str] | None = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    as_of: AsOf | None = None,
    where: Where | None = None,
    cores: int = 1,
    limits: Limits = Limits(),
    native: bool = True,
    merge_few: bool = False,
    holding: Holding | None = None,
    what: str = "scan",
) -> SectionPlan:
    """Plan a scan; with `native`, what Spark's own reader can read is left to it, else `read_section` gives every row.

    With `merge_few`, rows that have to be merged are merged at once if they are few.
    `source` is a database that this process has open, or the root of a store; what to read is said by arguments of
    ``table.scan``. With `where`, every row goes through the engine, which filters as ``table.scan`` does.
    `holding` is given what the scan needs to be there, for a job that others know as `what`.
    Raises `StoreNotFound`, `UnknownTable`, `UnknownColumn` or another `RequestError`, as ``table.scan`` does.
    """
    if where is not None:
        native = merge_few = False

    def plan(database: Database) -> tuple[SectionPlan, Needs]:
        nonlocal as_of
        store = store_of(database)
        state = store.table(table)
        projection = state.projection(columns)
        # Rows are those of the groups that it names, too.
        expression = None if where is None else to_expression(where, projection.schema)
        looked_at = projection if expression is None else with_columns_of(expression, projection)
        key_range = range_asked(state, start, stop, prefix)
        if cluster_of(database) and as_of is not None:
            as_of = store.sequencer.committed  # a name is known to the cluster alone
        if as_of is None:
            _flush_much(store, state)
        target = replace(target_of(database, state, table, columns, as_of), where=expression)
        if database is source:
            as_of = target.as_of  # another plan, if there has to be one, is of the same moment
        if holding is not None and store.is_writable:
            holding.hold(store, target.as_of)
        natives = [group.id for group in projection.groups if native and _reads_natively(group, projection)]
        planned = _planned(
            store, state, target, looked_at, key_range, natives, cores, limits, holding, merge_few=merge_few
        )
        files = frozenset(file for read in planned.plan.clean for file in read.files)
        groups = tuple(group.id for group in looked_at.groups)
        return replace(planned, projection=projection), Needs(
            what, state, target.as_of, groups, key_range, files, is_fixed=as_of is not None
        )

    return held_plan(source, holding, plan, table=table, as_of=as_of)


def plan_value(root: str, metadata: TableMetadata, as_of: int, *, native: bool = True, cores: int = 1) -> SectionPlan:
    """Plan a scan of all of a table that no store has: of its METADATA, with files below `root`."""
    packed = pack_metadata(metadata)
    target = Target(root, VALUE_NAME, metadata.table_id, metadata.schema.version, None, as_of, as_of, packed)
    with reading_value(root, packed, as_of) as store:
        state = store.table(VALUE_NAME)
        projection = state.projection(None)
        natives = [group.id for group in projection.groups if native and _reads_natively(group, projection)]
        return _planned(store, state, target, projection, ALL, natives, cores, Limits(), None)


def _planned(
    store: TabletStore,
    state: TableState,
    target: Target,
    projection: Projection,
    key_range: KeyRange,
    native_groups: Sequence[int],
    cores: int,
    limits: Limits,
    holding: Holding | None,
    *,
    merge_few: bool = False,
) -> SectionPlan:
    store.admit(state, key_range)
    found = survey(state.view, state.reader, projection, key_range, target.as_of, native_groups)
    plan = make_plan(found.sources, found.erasures, cores, limits)
    if holding is not None and store.is_writable:
        holding.hold_files(store, (file for read in plan.clean for file in read.files))
    layers = lay(plan, found, state.reader, store.scan_pool, cores)
    merged = overlay(store, state, projection, target.as_of, found, plan, layers, limits) if merge_few else None
    clean = {file for read in plan.clean for file in read.files}
    spans = {
        source.file: KeyRange(source.spans[0].first, source.spans[-1].last)
        for source in found.sources
        if source.file in clean
    }
    return SectionPlan(target, projection, plan, layers, merged, spans, _section_bytes(found, plan, layers))


def _section_bytes(found: Survey, plan: ScanPlan, layers: Layers) -> int:
    """Return about how many bytes the records of all sections have in their files."""
    spans = [span for source in found.sources for span in source.spans]
    record_bytes = sum(span.bytes for span in spans) / max(1, sum(span.records for span in spans))
    return int(record_bytes * sum(section.records for section in (*plan.dirty, *layers.sections)))


def target_of(
    database: Database, state: TableState, table: str, columns: Sequence[str] | None, as_of: AsOf | None
) -> Target:
    """Fix the snapshot of a job, the newest without `as_of`, and say all that its tasks must know."""
    txn, seen = _txn(store_of(database), state, as_of)
    return Target(
        root=str(database.path.resolve()),
        table=table,
        table_id=state.id,
        schema_version=state.view.schema.version,
        columns=None if columns is None else checked_names("columns", columns),
        as_of=txn,
        at_least_txn=seen,
        cluster=cluster_of(database),
    )


def range_asked(state: TableState, start: object, stop: object, prefix: object) -> KeyRange:
    """Return the rows that a scan with these arguments has."""
    return range_of(state.codec, start, stop, prefix)


def range_of(codec: KeyCodec, start: object, stop: object, prefix: object) -> KeyRange:
    """Return the rows from `start` up to `stop`, or those that begin with `prefix`: keys, or first parts of keys."""
    if prefix is not None:
        if start is not None or stop is not None:
            raise RequestError("give either prefix, or start and stop")
        return codec.prefix_range(prefix)
    first = b"" if start is None else codec.bound(start)
    last = None if stop is None else codec.bound(stop)
    return KeyRange(first, last) if first or last is not None else ALL


def _flush_much(store: TabletStore, state: TableState) -> None:
    if store.is_writable and state.memory_bytes > FLUSH_BYTES:
        with contextlib.suppress(EblaError):  # then the rows are read where they are
            store.flush(state)


def _txn(store: TabletStore, state: TableState, as_of: AsOf | None) -> tuple[int, int]:
    """Return the txn at which to read, and the newest commit that is seen there."""
    expires = any(group.max_age_microseconds is not None for group in state.view.schema.groups)
    at = None if as_of is None else txn_in(store, as_of)
    if at is not None:
        check_existed(state.name, state.view.metadata, at)
    txn = store.read_txn(at, at_once=expires)
    committed = store.sequencer.committed
    if not store.is_writable and not expires:
        # Somebody else may still commit below a txn that this open has not reached.
        txn = min(txn, committed)
    return txn, min(txn, committed)


def _reads_natively(group: GroupSchema, projection: Projection) -> bool:
    """Tell whether Spark's Parquet reader gives the columns of a group as the engine does."""
    if group.is_cells or group.max_age_microseconds is not None:
        return False
    schema = projection.schema
    names = [column.name.casefold() for column in (*schema.key, *group.columns)]
    if len(set(names)) != len(names):
        return False  # Spark does not tell them apart
    types = [column.type for column in schema.key]
    types += [output.type for output in projection.outputs if output.group.id == group.id]
    return all(is_native(kind) for kind in types)


# --- in a task -----------------------------------------------------------------------------------


def read_section(
    target: Target, section: Section, *, batches: Callable[[pa.Table], Iterator[pa.RecordBatch]] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a section in key order: in the types that Spark takes, or as `batches` makes them."""
    if section.rows is not None:
        yield from resumed(target, rows_from_stream(section.rows), _read_rows, batches=batches)
        return
    for key_range in section.ranges:
        yield from resumed(target, key_range, _read_range, batches=batches)


Left = TypeVar("Left")


def resumed(
    target: Target,
    left: Left,
    read: Callable[[TabletStore, TableState, Target, Left], Iterator[tuple[pa.Table, Left]]],
    *,
    batches: Callable[[pa.Table], Iterator[pa.RecordBatch]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield what `read` gives of what is left to be read, from where it was if the open has to be renewed."""
    is_last_attempt = False
    while True:
        try:
            with kept(target.held), _reached(target) as (store, table):
                if table.view.schema.version != target.schema_version:
                    raise SchemaChanged(
                        f"the schema of {target.table!r} was changed since the scan was planned: plan anew"
                    )
                for found, then in read(store, table, target, left):
                    yield from (spark_batches if batches is None else batches)(found)
                    left, is_last_attempt = then, False
            return
        except (MissingFile, HistoryGone, UnknownTable, SchemaChanged):
            if is_last_attempt:
                raise
            # The open of an earlier task may be out of date: files were replaced, or the table made, since then. So may
            # this one, if what was read of it took long.
            if target.cluster:
                forget_cluster(target.cluster)
            else:
                forget(target.root)
            is_last_attempt = True


@contextmanager
def _reached(target: Target) -> Iterator[tuple[TabletStore, TableState]]:
    """Lend the table of a target, and the store that it is in."""
    if target.value is not None:
        with reading_value(target.root, target.value, target.as_of) as store:
            yield store, store.table(VALUE_NAME)
        return
    if target.cluster:
        with reading_captured(target.cluster, target.table_id, target.table, target.as_of, TASK_SETTINGS) as database:
            yield store_of(database), table_by_id(database, target.table_id)
        return
    with reading(target.root, target.at_least_txn) as database:
        yield store_of(database), table_by_id(database, target.table_id)


def _read_range(
    store: TabletStore, table: TableState, target: Target, left: KeyRange
) -> Iterator[tuple[pa.Table, KeyRange]]:
    for found in read_range(store, table, table.projection(target.columns), left, target.as_of, target.where):
        yield found, rest_of(table, found, left)


def _read_rows(
    store: TabletStore, table: TableState, target: Target, left: pa.Array
) -> Iterator[tuple[pa.Table, pa.Array]]:
    projection = table.projection(target.columns)
    with store.pins.held(target.as_of):
        for begin in range(0, len(left), BATCH_ROWS):
            found = read_rows(table, table.view, projection, left.slice(begin, BATCH_ROWS), target.as_of)
            yield found, left.slice(begin + BATCH_ROWS)


def rest_of(table: TableState, found: pa.Table, rest: KeyRange) -> KeyRange:
    """Return what is left of a range after rows that were given out."""
    last = found.slice(found.num_rows - 1).select(list(table.view.schema.key_names)).combine_chunks()
    row: Any = table.codec.encode_arrays([column.chunk(0) for column in last.columns])[0].as_py()
    return replace(rest, first=successor(row))


def spark_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches in the types that Spark takes."""
    yield from to_spark(rows).to_batches(max_chunksize=BATCH_ROWS)
