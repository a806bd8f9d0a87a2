"""Mutations: what a request changes, as records of groups and ranges erased. A commit stages it as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ebla.model.ranges import KeyRange
from ebla.storage.record.records import (
    TIMESTAMP,
    schema_bytes,
    size_bytes,
)
from ebla.tablet.write.cell_records import AT_COMMIT, distinct_cells

__all__ = ["NO_ROWS", "GroupRecords", "Mutation", "cells_part", "erase_range"]

NO_ROWS = pa.nulls(0, pa.binary())


@dataclass(frozen=True, slots=True)
class GroupRecords:
    """Sorted records of one group, without a txn yet.

    `unique`: one record per identity. `stamps_at_commit`: some timestamps are still `AT_COMMIT`.
    """

    records: pa.RecordBatch
    schema_bytes: bytes
    size_bytes: int
    unique: bool = True
    stamps_at_commit: bool = False

    @classmethod
    def of(
        cls, records: pa.RecordBatch, *, unique: bool = True, stamps_at_commit: bool = False, is_copy: bool = False
    ) -> GroupRecords:
        """Measure the records and describe their schema, once. The buffers of a copy hold nothing else."""
        size = records.get_total_buffer_size() if is_copy else size_bytes(records)
        return cls(records, schema_bytes(records.schema), int(size), unique, stamps_at_commit)

    def stamped(self, microseconds: int) -> pa.RecordBatch:
        """Return the records with the commit's time filled in, sorted as they then must be."""
        if not self.stamps_at_commit:
            return self.records
        stamps = self.records.column(TIMESTAMP).to_numpy(zero_copy_only=False)
        filled = np.where(stamps == AT_COMMIT, np.int64(microseconds), stamps)
        at = self.records.schema.get_field_index(TIMESTAMP)
        records = self.records.set_column(at, self.records.schema.field(at), pa.array(filled))
        if self.unique:
            return records
        return distinct_cells(records)[0]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One commit's worth of changes to one table, sorted and divided by group.

    `schema_version` is that of the schema they were divided by; 0 if it does not matter.
    """

    rows: pa.Array
    groups: dict[int, GroupRecords] = field(default_factory=dict)
    ranges: tuple[KeyRange, ...] = ()
    schema_version: int = 0

    @property
    def bytes(self) -> int:
        """The size of the records."""
        return sum(group.size_bytes for group in self.groups.values()) + 256 * len(self.ranges)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.groups and not self.ranges


def erase_range(key_range: KeyRange) -> Mutation:
    """Admit the erasure of all rows in a range."""
    return Mutation(NO_ROWS, {}, () if key_range.is_empty else (key_range,))


def cells_part(records: pa.RecordBatch, unique: bool) -> GroupRecords:
    """Return sorted records of cells as the part of a group."""
    stamps = records.column(TIMESTAMP).to_numpy(zero_copy_only=False)
    at_commit = bool((stamps == AT_COMMIT).any())
    return GroupRecords.of(records, unique=unique, stamps_at_commit=at_commit)
