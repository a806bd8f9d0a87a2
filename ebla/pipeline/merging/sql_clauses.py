"""Clauses as columns of a DataFrame: which of them acts on a row, and what it sets. Spark works out the expressions.

    | source: struct | target: struct |   -->   | _clause | _v0: struct | _v1: struct | ...
      null: the row is not there                null: none acts        what clause 0 sets

A frame has both sides as one struct each, so that ``source.x`` and ``target.x`` mean what they say.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from ebla.pipeline.merging.clauses import Clause

__all__ = ["CLAUSE", "SOURCE", "TARGET", "decided", "values_name"]

CLAUSE = "_clause"
SOURCE, TARGET = "source", "target"


def values_name(number: int) -> str:
    """Return the name of the column with what a clause sets."""
    return f"_v{number}"


def decided(
    pairs: DataFrame, clauses: Sequence[Clause], values: Sequence[dict[str, str] | None], kept: Sequence[str]
) -> DataFrame:
    """Return the rows that change: some columns as they are, the number of the clause that acts, and what it sets.

    `values` has the columns that each clause sets, with their expressions; None where it sets none.
    """
    number: Column | None = None
    for at, clause in enumerate(clauses):
        acts = _is_on_side(clause)
        if clause.condition is not None:
            acts = acts & F.coalesce(F.expr(clause.condition).cast("boolean"), F.lit(False))
        number = F.when(acts, F.lit(at)) if number is None else number.when(acts, F.lit(at))
    assert number is not None, "there are clauses"
    numbered = pairs.select("*", number.alias(CLAUSE)).where(F.col(CLAUSE).isNotNull())
    # Every field may be null, and says so: Spark's way to Arrow refuses a null struct with a field that has none.
    sets = [
        F.struct(*[F.when(F.col(CLAUSE) == at, F.expr(text)).alias(name) for name, text in one.items()]).alias(
            values_name(at)
        )
        for at, one in enumerate(values)
        if one
    ]
    return numbered.select(*kept, CLAUSE, *sets)


def _is_on_side(clause: Clause) -> Column:
    has_source, has_target = F.col(SOURCE).isNotNull(), F.col(TARGET).isNotNull()
    if clause.side == "matched":
        return has_source & has_target
    return has_source & ~has_target if clause.side == "not_matched" else ~has_source & has_target
