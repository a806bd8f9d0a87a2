"""The filter language of ``ebla scan --where``: comparisons of a column with a literal, joined by ``and``.

    age > 30 and name != 'Bob' and day >= 2026-01-01 and `first name` is not null

    filter     = comparison { "and" comparison }
    comparison = column ( "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) literal
               | column "is" [ "not" ] "null"
    column     = word | `name`                  a word has no blanks, quotes or comparison signs
    literal    = word | 'text' | "text"         a quote inside is doubled

Nothing is evaluated: the text is cut into comparisons, each literal becomes a value of its column's type, and pyarrow
compares. A literal that does not fit the column is refused, so no comparison is false by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebla.cli.values import from_text
from ebla.errors import RequestError, UnknownColumn
from ebla.schema import TableSchema

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<sign><=|>=|!=|<>|==|=|<|>)
      | '(?P<single>(?:[^']|'')*)'
      | "(?P<double>(?:[^"]|"")*)"
      | `(?P<name>[^`]+)`
      | (?P<word>[^\s<>=!'"`]+)
    )""",
    re.VERBOSE,
)
_END = re.compile(r"\s*$")

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda column, literal: column == literal,
    "==": lambda column, literal: column == literal,
    "!=": lambda column, literal: column != literal,
    "<>": lambda column, literal: column != literal,
    "<": lambda column, literal: column < literal,
    "<=": lambda column, literal: column <= literal,
    ">": lambda column, literal: column > literal,
    ">=": lambda column, literal: column >= literal,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison: a sign and a literal, or ``null`` / ``not null`` and none."""

    column: str
    sign: str
    literal: str | None = None


def parse_where(text: str) -> list[Comparison]:
    """Cut a filter into its comparisons; raise `RequestError` with the place where it stops making sense."""
    tokens = _Tokens(text)
    comparisons = [_comparison(tokens)]
    while not tokens.at_end():
        kind, word = tokens.take("'and'")
        if kind != "word" or word.lower() != "and":
            hint = ": comparisons can only be joined by 'and'" if word.lower() == "or" else ": expected 'and'"
            raise tokens.complaint(f"{word!r}{hint}")
        comparisons.append(_comparison(tokens))
    return comparisons


def to_expression(comparisons: Sequence[Comparison], schema: TableSchema) -> pc.Expression:
    """Return the pyarrow expression that holds where all comparisons hold."""
    parts = [_expression(comparison, schema) for comparison in comparisons]
    joined = parts[0]
    for part in parts[1:]:
        joined = joined & part
    return joined


def column_type(name: str, schema: TableSchema) -> pa.DataType:
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


class _Tokens:
    """The words of a filter, one after the other."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def at_end(self) -> bool:
        return _END.match(self.text, self.position) is not None

    def take(self, expected: str) -> tuple[str, str]:
        if self.at_end():
            raise self.complaint(f"it ends where {expected} should follow")
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup is None:
            raise self.complaint(f"cannot read {self.text[self.position :].strip()!r}")
        self.position = match.end()
        kind, word = match.lastgroup, match[match.lastgroup]
        if kind in ("single", "double"):
            quote = "'" if kind == "single" else '"'
            return "text", word.replace(quote * 2, quote)
        return kind, word

    def complaint(self, what: str) -> RequestError:
        return RequestError(f"the filter {self.text!r}: {what}; write for example \"age > 30 and name = 'Ada'\"")


def _comparison(tokens: _Tokens) -> Comparison:
    kind, column = tokens.take("a column")
    if kind not in ("word", "name"):
        raise tokens.complaint(f"{column!r} stands where a column should be")
    kind, sign = tokens.take("a comparison")
    if kind == "word" and sign.lower() == "is":
        kind, word = tokens.take("'null'")
        negated = kind == "word" and word.lower() == "not"
        if negated:
            kind, word = tokens.take("'null'")
        if kind != "word" or word.lower() != "null":
            raise tokens.complaint(f"{word!r} after 'is': only 'is null' and 'is not null' are known")
        return Comparison(column, "not null" if negated else "null")
    if kind != "sign":
        raise tokens.complaint(f"{sign!r} is none of {', '.join(_COMPARE)}, 'is null', 'is not null'")
    kind, literal = tokens.take("a value")
    if kind not in ("word", "text"):
        raise tokens.complaint(f"{literal!r} stands where a value should be")
    if kind == "word" and literal.lower() == "null":
        raise tokens.complaint("nothing is equal to null: write 'is null' or 'is not null'")
    return Comparison(column, sign, literal)


def _expression(comparison: Comparison, schema: TableSchema) -> pc.Expression:
    kind = column_type(comparison.column, schema)
    column = pc.field(comparison.column)
    if comparison.literal is None:
        return column.is_null() if comparison.sign == "null" else column.is_valid()
    literal = from_text([comparison.literal], kind, comparison.column)[0]
    return _COMPARE[comparison.sign](column, pc.scalar(literal))
