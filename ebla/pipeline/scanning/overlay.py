"""The overlay of a scan: rows that have to be merged, and are so few that this is done once, as the scan is planned.

    base       Spark's own reader, pruned columns, pushed filters, less the rows that are masked
    overlay    the rows in their place, merged here, as a local relation                  no task runs Python
    union      of the two

A local relation is what Catalyst knows best: it takes the columns that a query wants, filters while it optimises, knows
the size. A task would read the same rows anew for every query, all their columns, by way of a Python worker.

What is merged depends on files, which never change, and on memory. So overlays are remembered by what they were made
of: as long as nothing is written, a table that is scanned again is not merged again. Larger ones are left to tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator

import pyarrow as pa

from ebla.direct.fragments import Block, BlockCache
from ebla.direct.views import TableState, TabletStore, read_range, read_rows
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.projection import Projection
from ebla.pipeline.scanning.layers import Layers, rows_from_stream
from ebla.pipeline.scanning.plan import Limits, ScanPlan, Section
from ebla.pipeline.scanning.survey import Survey
from ebla.pipeline.spark.types import to_spark

__all__ = ["overlay"]

# What is merged is left to tasks after all if it comes to more than this.
OVERLAY_BYTES_MAX = 32 << 20
CACHE_BYTES = 64 << 20
BATCH_ROWS = 65_536

_overlays = BlockCache(CACHE_BYTES)


def overlay(
    store: TabletStore,
    state: TableState,
    projection: Projection,
    as_of: int,
    found: Survey,
    plan: ScanPlan,
    layers: Layers,
    limits: Limits,
) -> pa.Table | None:
    """Return the rows of all sections of a scan, in the types that Spark takes; None if tasks had better merge them."""
    sections = plan.dirty + layers.sections
    records = sum(section.records for section in sections)
    if records > limits.overlay_rows_max or _bytes_read(found, plan) > limits.overlay_read_bytes_max:
        return None
    key = _key(state, projection, as_of, found, sections)
    known: pa.Table | None = _overlays.get(key)
    if known is None:
        parts = [*_merged(store, state, projection, as_of, sections)]
        known = pa.concat_tables(parts).combine_chunks() if parts else to_spark(projection.arrow_schema.empty_table())
        if known.nbytes > OVERLAY_BYTES_MAX:
            return None
        _overlays.put(key, known, known.nbytes)
    return known


def _merged(
    store: TabletStore, state: TableState, projection: Projection, as_of: int, sections: tuple[Section, ...]
) -> Iterator[pa.Table]:
    view = state.view
    with store.pins.held(as_of):
        for section in sections:
            if section.rows is None:
                for rows in section.ranges:
                    yield from map(to_spark, read_range(store, state, projection, rows, as_of))
                continue
            asked = rows_from_stream(section.rows)
            for begin in range(0, len(asked), BATCH_ROWS):
                yield to_spark(read_rows(state, view, projection, asked.slice(begin, BATCH_ROWS), as_of))


def _bytes_read(found: Survey, plan: ScanPlan) -> int:
    """Return how large the files are in which rows are looked up that are merged one by one."""
    origins = [found.origins[number] for number in {cover.source for cover in plan.covers}]
    return sum(origin.bytes for origin in origins)


def _key(
    state: TableState, projection: Projection, as_of: int, found: Survey, sections: tuple[Section, ...]
) -> tuple[str, *tuple[Hashable, ...]]:
    """Return what an overlay depends on. The txn matters where some of it is newer, in memory, or ages."""
    digest = hashlib.blake2b(digest_size=16)
    for section in sections:
        digest.update(repr(section.ranges).encode())
        digest.update(section.rows or b"")
    origins = tuple(one if isinstance(one, FragmentRef) else _block_key(one) for one in found.origins)
    erasures = tuple((group, one.first, one.last, one.txn) for group, one in found.erasures)
    is_settled = all(isinstance(one, FragmentRef) and one.txn_max <= as_of for one in found.origins) and all(
        group.max_age_microseconds is None for group in projection.groups
    )
    return (
        state.id,
        state.view.schema.version,
        tuple(projection.arrow_schema.names),
        digest.digest(),
        origins,
        erasures,
        0 if is_settled else as_of,
    )


def _block_key(block: Block) -> Hashable:
    return (block.txn_min, block.txn_max, len(block), block.first, block.last)
