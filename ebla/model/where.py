"""Filters as pyarrow expressions: what the language of `where_text` means on the columns of a table.

Every value becomes one of its column's type, and pyarrow compares. A value that does not fit the column is refused, so
no comparison is false by mistake. As in SQL, what is compared with a null is neither true nor false, ``not`` of it is
neither, and only rows for which the whole is true are wanted.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ebla.errors import InvalidBatch, RequestError, UnknownColumn, shown
from ebla.model.schema import TableSchema
from ebla.model.text_values import from_text, type_text
from ebla.model.where_text import AllOf, AnyOf, Comparison, Condition, Not, Value, complaint, parse_where, place

__all__ = ["Where", "like_regex", "to_expression"]

Where: TypeAlias = "str | pc.Expression"

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda column, value: column == value,
    "==": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "<>": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
}


def to_expression(where: Where, schema: TableSchema) -> pc.Expression:
    """Return the pyarrow expression that a filter means on tables of a schema; one that is an expression stays so.

    `UnknownColumn` names columns that are not there, `RequestError` values that do not fit theirs, both with the place.
    """
    if isinstance(where, str):
        return _Translation(where, schema).expression(parse_where(where))
    if isinstance(where, pc.Expression):
        return where
    raise RequestError(
        "where is a filter, such as \"age > 5 and name like 'A%'\", or a pyarrow expression, such as "
        f"pc.field('age') > 5, not {shown(where)}"
    )


def _column_type(name: str, schema: TableSchema) -> pa.DataType:
    """Return the type of a key column, value column or cell."""
    for column in schema.key:
        if column.name == name:
            return column.type
    target = schema.resolve(name)
    if target.column is not None:
        return target.column.type
    if target.qualifier is None:
        raise UnknownColumn(f"{name!r} is a whole family: name one of its cells, such as {target.family}:name")
    return pa.binary()


class _Translation:
    """Makes expressions of the conditions of one filter."""

    def __init__(self, text: str, schema: TableSchema) -> None:
        self._text = text
        self._schema = schema
        self._columns = {c.name for group in schema.groups for c in group.columns} | set(schema.key_names)

    def expression(self, condition: Condition) -> pc.Expression:
        match condition:
            case Comparison():
                return self._comparison(condition)
            case Not(condition):
                return ~self.expression(condition)
            case AllOf(conditions):
                return _joined(
                    [self.expression(condition) for condition in conditions], lambda left, right: left & right
                )
            case AnyOf(conditions):
                return _joined(
                    [self.expression(condition) for condition in conditions], lambda left, right: left | right
                )

    def _comparison(self, comparison: Comparison) -> pc.Expression:
        kind = self._type(comparison)
        column = pc.field(comparison.column)
        if comparison.sign == "null":
            return column.is_null()
        if pa.types.is_nested(kind):
            raise complaint(
                self._text,
                comparison.sign_at,
                f"{comparison.column!r} is {type_text(kind)}, for which only 'is null' and 'is not null' are known",
            )
        if comparison.sign == "like":
            return self._like(comparison, column, kind)
        values = [self._typed(value, comparison.column, kind) for value in comparison.values]
        if comparison.sign == "between":
            return (column >= pc.scalar(values[0])) & (column <= pc.scalar(values[1]))
        if comparison.sign != "in":
            return _COMPARE[comparison.sign](column, pc.scalar(values[0]))
        # Arrow's `isin` is false for a null, and takes NaN for equal to itself and 0.0 for another value than -0.0.
        found = column.isin(pa.array(_as_equality_has_them(values, kind), kind))
        return pc.if_else(column.is_valid(), found, pc.scalar(pa.scalar(None, pa.bool_())))

    def _type(self, comparison: Comparison) -> pa.DataType:
        try:
            return _column_type(comparison.column, self._schema)
        except UnknownColumn as error:
            near = difflib.get_close_matches(comparison.column, sorted(self._columns), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownColumn(f"{place(self._text, comparison.at)}: {error}{hint}") from None

    def _typed(self, value: Value, column: str, kind: pa.DataType) -> pa.Scalar:
        is_column = not value.is_quoted and value.text in self._columns
        advice = (
            f"{value.text!r} is a column, and columns are compared with values only: write '{value.text}' in quotes "
            "if that text is meant"
        )
        if is_column and kind in (pa.string(), pa.binary()):
            raise complaint(self._text, value.at, advice)
        try:
            return from_text([value.text], kind, column)[0]
        except InvalidBatch as error:
            raise complaint(self._text, value.at, f"{error}{'; ' + advice if is_column else ''}") from None

    def _like(self, comparison: Comparison, column: pc.Expression, kind: pa.DataType) -> pc.Expression:
        (value,) = comparison.values
        if kind not in (pa.string(), pa.binary()):
            raise complaint(
                self._text, comparison.sign_at, f"'like' is for text and bytes, and {comparison.column!r} is {kind}"
            )
        pattern = self._typed(value, comparison.column, kind).as_py()
        regex = like_regex(pattern)
        if regex is None:
            raise complaint(self._text, value.at, f"{value.text!r} ends with a \\ that nothing follows: write \\\\")
        return pc.match_substring_regex(column, regex)


def _as_equality_has_them(values: Sequence[pa.Scalar], kind: pa.DataType) -> list[Any]:
    if not pa.types.is_floating(kind):
        return list(values)
    found = [value.as_py() for value in values]
    zeros = [0.0, -0.0] if any(value == 0 for value in found) else []
    return [value for value in found if value != 0 and not math.isnan(value)] + zeros


def _joined(
    parts: Sequence[pc.Expression], join: Callable[[pc.Expression, pc.Expression], pc.Expression]
) -> pc.Expression:
    """Join expressions evenly: Arrow goes down every level of them on its stack."""
    while len(parts) > 1:
        pairs = [join(parts[at], parts[at + 1]) for at in range(0, len(parts) - 1, 2)]
        parts = [*pairs, *parts[len(parts) - len(parts) % 2 :]]
    return parts[0]


def like_regex(pattern: str | bytes) -> str | bytes | None:
    r"""Return the regular expression of a ``like`` pattern; None if it ends with a ``\`` that takes nothing."""
    # By latin-1 every byte is one character, and comes back as it was.
    text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    parts: list[str] = []
    rest = iter(text)
    for char in rest:
        if char == "%":
            parts.append(".*")
        elif char == "_":
            parts.append(".")
        else:
            taken = next(rest, None) if char == "\\" else char
            if taken is None:
                return None
            parts.append(_literal(taken))
    regex = "(?s)\\A" + "".join(parts) + "\\z"
    return regex if isinstance(pattern, str) else regex.encode("latin-1")


def _literal(char: str) -> str:
    if char == "\0":
        return "\\x00"
    return char if char.isalnum() or ord(char) > 127 else "\\" + char
