"""Filters of scans: `where` as an Arrow expression, which columns it reads, and what is told if it cannot be used."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import RequestError, UnknownColumn
from ebla.model.projection import Projection

__all__ = ["unusable", "with_columns_of"]


def unusable(error: Exception, where: pc.Expression, schema: pa.Schema) -> RequestError:
    """Return the error for a filter that Arrow does not take."""
    named = ", ".join(f"{name!r} ({schema.field(name).type})" for name in _columns_of(where, schema))
    about = f" (it names {named})" if named else ""
    return RequestError(
        f"where cannot be used on this table{about}: {_first_line(error)}; compare columns with values of their own "
        "types, which pa.scalar(value, type) makes of any"
    )


def _columns_of(where: pc.Expression, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression names, as far as Arrow looks at them before it gives up."""
    found: list[str] = []
    while True:
        try:
            pa.schema([schema.field(name) for name in found]).empty_table().filter(where)
        except (pa.ArrowException, TypeError) as error:
            missing = _missing_name(str(error))
            if missing is None or missing in found or missing not in schema.names:
                return found
            found.append(missing)
        else:
            return found


def with_columns_of(where: pc.Expression, projection: Projection) -> Projection:
    """Return a projection that also reads the columns that `where` names; `RequestError` if it cannot be used.

    Who asks for the key alone still gets the rows of all groups.
    """
    wider = projection if projection.outputs else replace(projection, any_group=True)
    tried: set[str] = set()
    while True:
        try:
            wider.arrow_schema.empty_table().filter(where)
        except pa.ArrowInvalid as error:
            missing = _missing_name(str(error))
            if missing is None or missing in tried:
                raise unusable(error, where, wider.arrow_schema) from None
            tried.add(missing)
            try:
                added = Projection.of(projection.schema, [missing]).outputs
            except UnknownColumn as unknown:
                raise UnknownColumn(f"where names {missing!r}: {unknown}") from None
            wider = replace(wider, outputs=(*wider.outputs, *added))
        except (pa.ArrowException, TypeError) as error:
            raise unusable(error, where, wider.arrow_schema) from None
        else:
            return wider


def _missing_name(message: str) -> str | None:
    _, found, rest = message.partition("FieldRef.Name(")
    name, closed, _ = rest.partition(") in ")
    return name if found and closed else None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)
