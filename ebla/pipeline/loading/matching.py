"""Which columns of the input are which columns of a table, by names and types alone: the same on Spark and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ebla.errors import RequestError
from ebla.model.casts import castable, is_text
from ebla.model.schema import TableSchema
from ebla.pipeline.spark.types import arrow_for_spark, check_key
from ebla.rows.row_columns import plans_of
from ebla.rows.row_parts import check_name, check_unique, typed_columns

__all__ = ["Given", "Matched", "match", "plain_type"]


@dataclass(frozen=True, slots=True)
class Given:
    """A column of the input: its name, its type in Arrow, and what whoever gave it calls that type."""

    name: str
    type: pa.DataType
    called: str


@dataclass(frozen=True, slots=True)
class Matched:
    """A column of the input, and the type in which the table stores it (None: cells)."""

    name: str
    given: pa.DataType
    stored: pa.DataType | None
    is_key: bool

    @property
    def is_parsed(self) -> bool:
        """Whether it is text that has to be turned into something else."""
        return (
            pa.types.is_string(self.given)
            and self.stored is not None
            and not is_text(self.stored)
            and not pa.types.is_string(arrow_for_spark(self.stored))
        )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without what only tells how they lie in memory."""
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    return pa.binary() if types.is_large_binary(kind) or types.is_binary_view(kind) else kind


def match(given: Sequence[Given], schema: TableSchema) -> list[Matched]:
    """Return what the columns mean; raise if the table cannot take them."""
    names = [column.name for column in given]
    check_unique(names)
    for name in names:
        check_name(name)
    check_key(names, schema.key_names)
    typed = {column.name: column.type for column in schema.key}
    typed |= {name: column.type for name, column in typed_columns(schema).items()}
    found = [Matched(c.name, c.type, typed.get(c.name), c.name in schema.key_names) for c in given]
    for column, one in zip(found, given, strict=True):
        _check_type(column, one.called)
    # Which cells the others are, and whether the table takes them, is known where rows are put.
    plans_of(schema).plan(pa.schema([(c.name, c.stored or c.given) for c in found]))
    return found


def _check_type(column: Matched, called: str) -> None:
    if column.stored is None or column.is_parsed:
        if column.stored is not None and pa.types.is_nested(column.stored):
            raise RequestError(f"column {column.name!r} is {column.stored} and does not take text: parse it first")
        return
    seen = arrow_for_spark(column.stored)
    if not castable(column.given, column.stored) and not castable(column.given, seen):
        raise RequestError(f"column {column.name!r} is {column.stored} and does not take {called}: cast it first")
