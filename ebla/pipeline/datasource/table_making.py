"""The table that rows are saved to: found, made for them, or widened by their columns.

there is none      option("key", "id,day")     made from the columns of the rows, by whoever has the store open
there is one       option("if_exists", ...)    append (the default), error, ignore
                   option("mergeSchema", true) columns that the rows have, and the table does not, are added
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from ebla.client.embedded.opening import new_id
from ebla.direct.fragments import pack_schema
from ebla.direct.place import Place
from ebla.errors import RequestError, SchemaError, TableExists, UnknownTable
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.model.text_values import type_text
from ebla.pipeline.change_feed.changes import BEFORE, CHANGE
from ebla.pipeline.datasource.datasource_options import WriteOptions
from ebla.pipeline.spark.types import is_family, stored_type, table_schema
from ebla.service.job_orders import MakeTable, UnmakeTable

ORDER_SECONDS = 60.0

__all__ = ["SaveTarget", "find_or_make", "unmake"]


@dataclass(frozen=True, slots=True)
class SaveTarget:
    """The table of a save; `is_made` for this save, and `is_left_alone` as the user wished."""

    metadata: TableMetadata
    is_made: bool = False
    is_left_alone: bool = False


def find_or_make(options: WriteOptions, given: StructType, job: str) -> SaveTarget:
    """Return the table to save rows like these to; `UnknownTable`, `TableExists` or `SchemaError` if that cannot be."""
    address = options.address
    rows = StructType([field for field in given.fields if field.name not in (CHANGE, BEFORE)])
    place = Place.at(address.root, address.cluster)
    where = ", ".join(address.cluster) or address.root
    metadata = place.metadata(address.table)
    if metadata is None:
        if options.key is None:
            raise UnknownTable(
                f"there is no table {address.table!r} in {where}: say which columns are its key, as in "
                '.option("key", "id,day"), and it is made; or create it with db.create_table'
            )
        return SaveTarget(_made(place, options, rows, job), is_made=True)
    if options.if_exists == "error":
        raise TableExists(f"there is a table {address.table!r} in {where}, and if_exists says error")
    if options.key is not None and options.key != metadata.schema.key_names:
        raise RequestError(
            f"the key of {address.table!r} is {', '.join(metadata.schema.key_names)}, not {', '.join(options.key)}: "
            "leave it out"
        )
    if options.if_exists == "ignore":
        return SaveTarget(metadata, is_left_alone=True)
    return SaveTarget(_widened(place, options, rows, metadata, job) if options.merge_schema else metadata)


def _made(place: Place, options: WriteOptions, rows: StructType, job: str) -> TableMetadata:
    assert options.key is not None
    schema = table_schema(rows, options.key)
    if options.address.cluster:
        return place.create_table(options.address.table, schema, ())
    order = MakeTable(job, options.address.table, new_id(), pack_schema(schema.number()), (new_id(),))
    place.carry_out(order, ORDER_SECONDS)
    made = place.metadata(options.address.table)
    if made is None:
        raise UnknownTable(f"the table {options.address.table!r} was dropped as soon as it was made: save again")
    return made


def _widened(place: Place, options: WriteOptions, rows: StructType, metadata: TableMetadata, job: str) -> TableMetadata:
    """Add the columns that the table lacks. Cells of families that it has need none."""
    schema = metadata.schema
    known = {*schema.key_names, *(column.name for group in schema.groups for column in group.columns)}
    families = {family.name for group in schema.groups for family in group.families}
    new = [
        field
        for field in rows.fields
        if field.name not in known and field.name.partition(":")[0] not in families and schema.wildcard_group is None
    ]
    if not new:
        return metadata
    if any(is_family(field.dataType) or ":" in field.name for field in new):
        raise SchemaError(
            f"{', '.join(repr(field.name) for field in new)}: mergeSchema adds typed columns; families of cells come "
            "by db.alter_table(add_families=...)"
        )
    columns = tuple((field.name, type_text(stored_type(field.dataType, field.name))) for field in new)
    return place.add_columns(job, options.address.table, metadata.table_id, columns)


def unmake(place: Place, job: str, table: str, table_id: str) -> None:
    """Take a table away that was made for a save which failed."""
    if not place.is_cluster:
        place.carry_out(UnmakeTable(job, table_id), ORDER_SECONDS)
        return
    made = place.metadata(table)
    if made is not None and made.table_id == table_id:
        place.drop_if_untouched(table, made)
