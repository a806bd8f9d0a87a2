"""META: what METADATA knows, as rows of a table.

    row                   cells
    users                 schema:profile:columns "name string, age int32"   schema:profile:compression "lz4"   ...
    users <last row>      first: ""   location: "<server>"   log: "log/<server>"   fragments:profile "<file> <file>"
                          replicas:<server> "in sync"        of a tablet that has several
    users!                first: "m"  ...                             the tablet that has no last row

A table's own row sorts before those of its tablets, these by their last rows, and the unbounded one comes at the end;
the characters that names may have keep one table's rows together. So the tablet of a row is found with one seek: it is
the first row of META after `users <row>`. One that is unloaded has no location. There is one truth, METADATA, and META
is computed from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from ebla.metadata.values.serving import UNLOADED
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata, TabletMetadata
from ebla.model.declaration import Group, Schema
from ebla.model.schema import GroupSchema

__all__ = ["META", "META_SCHEMA", "MetaCell", "meta_batch", "meta_cells", "meta_row", "seek_row"]

META = "META"
META_SCHEMA = Schema(
    key={"row": "binary"},
    groups=[Group("config", families=["first", "location", "log", "fragments", "schema", "replicas"])],
)


class MetaCell(NamedTuple):
    """One cell of META. Its timestamp is the number of the METADATA transaction that it was read from."""

    row: bytes
    family: str
    qualifier: str
    value: bytes
    timestamp: int


def meta_row(table: str, last: bytes | None) -> bytes:
    """Return the row of the tablet of a table that ends before `last`."""
    return table.encode() + (b"!" if last is None else b" " + last)


def seek_row(table: str, row: bytes) -> bytes:
    """Return where to begin reading META for the tablet of `row`: the first tablet from there on has it."""
    return meta_row(table, row) + b"\0"


def meta_cells(name: str, metadata: TableMetadata) -> Iterator[MetaCell]:
    """Yield the cells of one table and of its tablets, in the order of their rows."""
    for group in metadata.schema.groups:
        for setting, text in _schema_settings(group):
            yield MetaCell(name.encode(), "schema", f"{group.name}:{setting}", text.encode(), metadata.sequence)
    for tablet in metadata.tablets:
        row = meta_row(name, tablet.last)
        for family, qualifier, value in _tablet_cells(tablet, metadata):
            yield MetaCell(row, family, qualifier, value, metadata.sequence)


def meta_batch(tables: Iterable[tuple[str, TableMetadata]]) -> pa.RecordBatch:
    """Return the cells of all tables in long form, as `put_cells` takes them."""
    cells = [cell for name, metadata in tables for cell in meta_cells(name, metadata)]
    rows, families, qualifiers, values, stamps = zip(*cells, strict=True) if cells else ((), (), (), (), ())
    columns = [
        pa.array(rows, pa.binary()),
        pa.array(families, pa.string()),
        pa.array(qualifiers, pa.string()),
        pa.array(values, pa.binary()),
        pa.array(stamps, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["row", "family", "qualifier", "value", "timestamp"])


def _tablet_cells(tablet: TabletMetadata, metadata: TableMetadata) -> Iterator[tuple[str, str, bytes]]:
    yield "first", "", tablet.first
    if tablet.leader is not None and tablet.state != UNLOADED:  # else nobody has it, whoever had it before
        yield "location", "", tablet.leader.encode()
    if tablet.log is not None:
        yield "log", "", f"log/{tablet.log}".encode()
    if tablet.is_replicated:
        for replica in sorted(tablet.replicas, key=lambda one: one.server):
            yield "replicas", replica.server, b"in sync" if replica.is_in_sync else b"learning"
    for group in metadata.schema.groups:
        fragments = tablet.group(group.id).fragments
        if fragments:
            yield "fragments", group.name, " ".join(map(_fragment, fragments)).encode()


def _fragment(fragment: FragmentRef) -> str:
    """Name a fragment and what of it counts: only some columns, as field ids, some families, or rows in a range."""
    limits = []
    if fragment.columns is not None:
        limits.append("columns=" + ",".join(map(str, fragment.columns)))
    if fragment.families is not None:
        limits.append("families=" + ",".join(fragment.families))
    if fragment.clip is not None:
        first, last = fragment.clip
        limits.append(f"rows={first.hex()}-{'' if last is None else last.hex()}")
    return fragment.file + ("?" + "&".join(limits) if limits else "")


def _schema_settings(group: GroupSchema) -> Iterator[tuple[str, str]]:
    yield "blocksize", str(group.block_bytes)
    columns = [f"{column.name} {column.type}" for column in group.columns]
    yield "columns", ", ".join(columns or [f"{family.name}:" for family in group.families])
    yield "compression", group.compression
    yield "in-memory", "true" if group.in_memory else "false"
    if group.lookup_at_once:
        yield "lookup-at-once", "true"
    limits = []
    if group.max_age_microseconds is not None:
        limits.append(f"max-age={group.max_age_microseconds}")
    if group.max_versions is not None:
        limits.append(f"max-history={group.max_versions}")
    yield "purge", f" {group.purge_join} ".join(limits)
