"""How much a job has to read, from METADATA alone: what the choice between this process and Spark is made by.

    METADATA --> files of the groups asked for, in the range asked for, each once --> bytes

What is not flushed yet is not counted: it is bounded by the memory of who wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebla.direct.place import Place
from ebla.errors import UnknownTable, shown
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.keys import KeyCodec
from ebla.model.projection import Projection
from ebla.model.ranges import ALL, KeyRange
from ebla.pipeline.scanning.sections import range_of

__all__ = ["bytes_asked", "bytes_of"]


def bytes_asked(
    place: Place,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    start: object = None,
    stop: object = None,
    prefix: object = None,
    since: int = 0,
) -> int:
    """Return how many bytes the files have in which a scan with these arguments looks; `since`, of later txns alone."""
    metadata = place.metadata(table)
    if metadata is None:
        raise UnknownTable(f"there is no table {shown(table)}: check the name")
    groups = {group.id for group in Projection.of(metadata.schema, columns).groups}
    return bytes_of(metadata, range_of(KeyCodec(metadata.schema.key), start, stop, prefix), groups, since)


def bytes_of(metadata: TableMetadata, key_range: KeyRange = ALL, groups: set[int] | None = None, since: int = 0) -> int:
    """Return how many bytes the files of a table have that hold rows of a range and of some groups, or of all."""
    files = {
        ref.file: ref.bytes
        for tablet in metadata.overlapping(key_range)
        for state in tablet.groups
        if groups is None or state.group in groups
        for ref in (state.fragments if since else state.current)
        if ref.txn_max > since and ref.may_have_rows_in(key_range)
    }
    return sum(files.values())
