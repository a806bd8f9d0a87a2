"""What a merge does with which rows, from the arguments of the caller to values. Pure.

    when_matched="update"                                      all columns that the source has
    when_matched="delete"
    when_matched={"count": "target.count + source.count"}      columns, by expressions of Spark's SQL
    when_matched=[("source.gone", "delete"), (None, "update")] the first whose condition is true acts; None: always

| the row is                      | it can be                          | expressions may name     |
|---------------------------------|------------------------------------|--------------------------|
| in both (matched)               | ``update``, a dict, ``delete``     | ``source.x``, ``target.x`` |
| in the source alone             | ``insert``, a dict                 | ``source.x``             |
| in the table alone (by source)  | a dict, ``delete``                 | ``target.x``             |

A row for which no clause holds stays as it is. What a dict does not name stays as it is, too, or is null in a new row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ebla.errors import RequestError, UnknownColumn, shown
from ebla.model.schema import TableSchema

__all__ = [
    "Action",
    "Clause",
    "Kind",
    "Side",
    "When",
    "check_columns",
    "check_on",
    "check_source",
    "clauses_of",
    "columns_named",
    "needs_sql",
    "values_of",
]

Side: TypeAlias = Literal["matched", "not_matched", "not_matched_by_source"]
Kind: TypeAlias = Literal["update", "insert", "delete"]
Action: TypeAlias = "str | Mapping[str, str]"
When: TypeAlias = "Action | Sequence[tuple[str | None, Action]] | None"

# What each kind of row can be, the word that stands for "all columns of the source" first.
_WORDS: dict[Side, tuple[str, ...]] = {
    "matched": ("update", "delete"),
    "not_matched": ("insert",),
    "not_matched_by_source": ("delete",),
}


@dataclass(frozen=True, slots=True)
class Clause:
    """What is done with rows of one side for which a condition holds; `sets` is None for all columns of the source."""

    side: Side
    condition: str | None
    kind: Kind
    sets: tuple[tuple[str, str], ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """Its expressions."""
        own = () if self.sets is None else tuple(text for _, text in self.sets)
        return own if self.condition is None else (self.condition, *own)


def clauses_of(side: Side, given: Any) -> list[Clause]:
    """Return the clauses that an argument means; `RequestError` if it means none."""
    name = f"when_{side}"
    if given is None:
        return []
    if isinstance(given, (str, Mapping)):
        return [_clause(side, name, None, given)]
    if not isinstance(given, Sequence) or not all(isinstance(one, tuple) and len(one) == 2 for one in given):
        raise RequestError(
            f"{name} is {_known(side)}, a dict of column to SQL expression, or a list of (condition, action), "
            f"not {shown(given)}"
        )
    for condition, _ in given:
        if condition is not None and not (isinstance(condition, str) and condition.strip()):
            raise RequestError(f"a condition of {name} is a SQL expression, or None for always, not {shown(condition)}")
    made = [_clause(side, name, condition, action) for condition, action in given]
    for clause in made[:-1]:
        if clause.condition is None:
            raise RequestError(f"{name}: what comes after an action without a condition would never be done")
    return made


def _clause(side: Side, name: str, condition: str | None, action: Any) -> Clause:
    if isinstance(action, Mapping):
        if not action or not all(isinstance(text, str) for pair in action.items() for text in pair):
            raise RequestError(
                f"{name}: a dict has columns and SQL expressions as text, such as {{'age': 'source.age + 1'}}, "
                f"not {shown(action)}; a text is quoted, as in {{'state': \"'new'\"}}"
            )
        return Clause(side, condition, "insert" if side == "not_matched" else "update", tuple(action.items()))
    if action not in _WORDS[side]:
        raise RequestError(f"{name} is {_known(side)} or a dict of column to SQL expression, not {shown(action)}")
    kinds: dict[str, Kind] = {"update": "update", "insert": "insert", "delete": "delete"}
    return Clause(side, condition, kinds[action])


def _known(side: Side) -> str:
    return " or ".join(repr(word) for word in _WORDS[side])


def needs_sql(clauses: Sequence[Clause]) -> bool:
    """Tell whether there are expressions, which Spark works out."""
    return any(clause.texts for clause in clauses)


def values_of(clause: Clause, schema: TableSchema, source_columns: Sequence[str]) -> dict[str, str] | None:
    """Return the columns that a clause sets, each with its expression; None if it deletes.

    `UnknownColumn` and `RequestError` name what the table does not have, and keys that cannot be set.
    """
    if clause.kind == "delete":
        return None
    if clause.sets is None:
        keys = () if clause.kind == "insert" else schema.key_names
        return {name: f"source.{_quoted(name)}" for name in source_columns if name not in keys}
    known = {column.name for group in schema.groups for column in group.columns}
    for name, _ in clause.sets:
        if name in schema.key_names:
            raise RequestError(f"{name!r} is of the key, by which rows are matched: it cannot be set")
        if name not in known:
            schema.resolve(name)  # a cell; raises `UnknownColumn`
    values = dict(clause.sets)
    if clause.kind == "insert":
        values |= {name: f"source.{_quoted(name)}" for name in schema.key_names}
    return values


def columns_named(texts: Sequence[str], schema: TableSchema) -> list[str]:
    """Return the columns of a table that expressions may name: those whose names occur, or all for a star.

    That one is asked for that is not needed costs time, no more.
    """
    every = [column.name for group in schema.groups for column in group.columns]
    families = [family.name for group in schema.groups for family in group.families]
    text = "\n".join(texts).casefold()
    if re.search(r"target\s*\.\s*\*|\btarget\b(?!\s*\.)", text):
        return [*every, *families]
    return [name for name in (*every, *families) if name.casefold() in text]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def check_source(columns: Sequence[str], schema: TableSchema) -> None:
    """Raise unless a source with these columns can be matched: it has the key, and each name once."""
    missing = [name for name in schema.key_names if name not in columns]
    if missing:
        raise RequestError(
            f"the source has no column {', '.join(map(repr, missing))}: rows are matched by the key "
            f"{', '.join(schema.key_names)}"
        )
    if len(set(columns)) != len(columns):
        twice = next(name for name in columns if list(columns).count(name) > 1)
        raise RequestError(f"the source has two columns called {twice!r}: rename one")


def check_on(on: Any, table: str, schema: TableSchema) -> None:
    """Raise unless `on` is the key of the table."""
    names = [on] if isinstance(on, str) else on
    if not isinstance(names, Sequence) or sorted(map(str, names)) != sorted(schema.key_names):
        raise RequestError(f"rows of {table!r} are matched by its key: on={list(schema.key_names)!r}, not {shown(on)}")


def check_columns(clauses: Sequence[Clause], schema: TableSchema, columns: Sequence[str]) -> None:
    """Raise if the table cannot take what clauses set, or columns of the source that are set as they are."""
    takes_all = any(clause.sets is None and clause.kind != "delete" for clause in clauses)
    for clause in clauses:
        values_of(clause, schema, columns)
    for name in columns if takes_all else ():
        if name not in schema.key_names:
            try:
                schema.resolve(name)
            except UnknownColumn as error:
                raise UnknownColumn(
                    f"{error}; drop it from the source, add it with alter_table, or name the columns to set in a dict"
                ) from None
