"""Bulk commits: fragments that come past the log, and what has to change in METADATA to make them part of a table.

    tasks write files without `_txn`  -->  BulkCommit  -->  METADATA changes at txns T, T+1, ...  -->  one transaction

Everything here is a value or a pure function; `bulk_driver` carries it out.

**Layers.** All records of a file have the txn of the reference to it. Where two files of a commit and group overlap in
rows, the one with the greater `order` shall win, so it gets a greater txn: a higher *layer*. Files that do not overlap
share one; sorted input, divided by key range, needs a single layer.

    order (0,0)   [a-----f]                       layer 0    T
          (0,1)       [d----------k]              layer 1    T + 1
          (1,0)                 [h----m]          layer 2    T + 2
          (1,1)                           [p--t]  layer 0    T

All txns of a commit lie in one microsecond, so that no moment in time shows a part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from ebla.clock import TXNS_PER_MICROSECOND
from ebla.errors import RequestError
from ebla.metadata.values.changes import (
    AddFragments,
    Change,
    NewFragment,
    RangeErase,
    RecordBatch,
    RecordJob,
    RequireSchema,
    TabletAt,
)
from ebla.metadata.values.table_metadata import FragmentRef, RangeErasure, StreamBatch, TableMetadata
from ebla.model.ranges import KeyRange, successor
from ebla.service.job_orders import BulkCommit, BulkFragment

__all__ = [
    "LAYERS_MAX",
    "add_references",
    "bulk_changes",
    "count_layers",
    "layers_of",
]

# As many txns as a microsecond has.
LAYERS_MAX = TXNS_PER_MICROSECOND


def layers_of(fragments: Sequence[BulkFragment]) -> list[int]:
    """Return the layer of every file, so that of those that overlap the one with the greater order is higher."""
    layers = [0] * len(fragments)
    by_group: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(fragments):
        by_group[one.group].append(place)
    for places in by_group.values():
        for place, layer in zip(places, _stacked([fragments[place] for place in places]), strict=True):
            layers[place] = layer
    return layers


def _stacked(fragments: Sequence[BulkFragment]) -> list[int]:
    """Lay files onto each other in their order, as they fall; return how high each comes to lie."""
    ends = sorted({end for one in fragments for end in (one.fragment.first, one.fragment.last)})
    rank = {end: number for number, end in enumerate(ends)}
    height = np.zeros(len(ends), dtype=np.int32)  # how many files lie at each end, of those laid so far
    layers = [0] * len(fragments)
    in_order = sorted(range(len(fragments)), key=lambda place: (fragments[place].order, fragments[place].fragment.file))
    for place in in_order:
        ref = fragments[place].fragment
        under = height[rank[ref.first] : rank[ref.last] + 1]
        layers[place] = int(under.max())
        under[:] = layers[place] + 1
    return layers


def count_layers(commit: BulkCommit) -> int:
    """Return how many txns a commit takes: one, or as many as its files lie above each other."""
    layers = max(layers_of(commit.fragments), default=0) + 1
    if layers > LAYERS_MAX:
        raise RequestError(
            f"{layers} files of job {commit.job} overlap, and a commit takes {LAYERS_MAX}: "
            "write sorted with ebla.pipeline.load, or coalesce into fewer partitions"
        )
    return layers


def bulk_changes(commit: BulkCommit, metadata: TableMetadata, txn: int) -> list[Change]:
    """Return the METADATA changes of a commit whose first layer has this txn, for the tablets that there are now."""
    layers = layers_of(commit.fragments)
    last_txn = txn + max(layers, default=0)
    record: Change = RecordJob(commit.job, last_txn)
    if commit.app is not None:
        record = RecordBatch(StreamBatch(commit.app, commit.batch, last_txn))
    changes: list[Change] = [record, RequireSchema(commit.schema_version)]
    if commit.overwrite:
        every = tuple(TabletAt(tablet.id, tablet.epoch) for tablet in metadata.tablets)
        changes.append(RangeErase(RangeErasure(b"", None, txn), every))
    by_group: dict[int, list[FragmentRef]] = defaultdict(list)
    for one, layer in zip(commit.fragments, layers, strict=True):
        at = txn + layer
        by_group[one.group].append(msgspec.structs.replace(one.fragment, txn=at, txn_min=at, txn_max=at))
    changes.extend(add_references(group, by_group[group], metadata) for group in sorted(by_group))
    return changes


def add_references(group: int, references: Iterable[FragmentRef], metadata: TableMetadata) -> AddFragments:
    """Give references to all tablets whose range they overlap."""
    new = []
    tablets: dict[str, TabletAt] = {}
    for ref in references:
        holders = metadata.overlapping(KeyRange(ref.first, successor(ref.last)))
        tablets.update((tablet.id, TabletAt(tablet.id, tablet.epoch)) for tablet in holders)
        new.append(NewFragment(ref, tuple(tablet.id for tablet in holders)))
    return AddFragments(group, tuple(new), tuple(tablets.values()))
