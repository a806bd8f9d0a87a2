"""Several runs of one group as one: the records that are wanted, in order, with all the columns that they need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ebla.model.order import Indices
from ebla.storage.merge.arrange import (
    Arranged,
    ArrangedCells,
    arrange_cells,
    arrange_rows,
    concat,
    end_to_end,
    erased_mask,
)
from ebla.storage.merge.column_sets import column_types
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, VALUE, Run, value_names

__all__ = ["CombinedRuns", "columns_at", "combine_runs", "combined_values"]


@dataclass(frozen=True, slots=True)
class CombinedRuns:
    """All records of some runs in one, and whether each identity is there once."""

    records: pa.RecordBatch
    unique: bool


def combine_runs(runs: Sequence[Run], *, is_cells: bool) -> CombinedRuns:
    """Return all records of runs, in order, with all columns that one of them has. Some may be empty, not all."""
    arranged = arrange_cells(runs) if is_cells else arrange_rows(runs)
    if isinstance(arranged, ArrangedCells):
        unique = int(arranged.identity[-1]) + 1 == len(arranged.order)
    else:
        unique = not bool(arranged.repeats.any())
    columns = columns_at(runs, arranged, arranged.order)
    return CombinedRuns(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), unique)


def columns_at(runs: Sequence[Run], arranged: Arranged, places: Indices) -> dict[str, pa.Array]:
    """Return the records at `places`, which count them end to end, as columns: all that one of the runs has."""
    take = pa.array(places)
    columns: dict[str, pa.Array] = {ROW: arranged.rows.take(take)}
    if isinstance(arranged, ArrangedCells):
        for name in (FAMILY, QUALIFIER, TIMESTAMP, VALUE):
            columns[name] = arranged.columns[name].take(take)
    else:
        columns.update(combined_values(runs, take))
    columns[TXN] = pa.array(arranged.txns[places])
    erased = erased_mask(runs)
    if erased is not None:
        columns[ERASED] = pa.array(erased[places])
    return columns


def combined_values(runs: Sequence[Run], take: pa.Array) -> dict[str, pa.Array]:
    """Return the value columns of all runs, and `_set` where some records do not set all of them."""
    alike = _all_alike(runs)
    if alike is not None:
        names = sorted(value_names(alike), key=int)
        if SET in alike.schema.names:
            names.append(SET)
        # A column at a time: what is end to end and not yet in order is never there for all of them.
        return {name: concat(alike.column(name).chunks).take(take) for name in names}
    types = column_types(runs)
    combined = {name: end_to_end(runs, name, kind).take(take) for name, kind in types.items()}
    sets = [_explicit_set(run, types) for run in runs]
    if any(column is not None for column in sets):
        filled = [s if s is not None else pa.nulls(len(r), pa.string()) for s, r in zip(sets, runs, strict=True)]
        combined[SET] = concat(filled).take(take)
    return combined


def _all_alike(runs: Sequence[Run]) -> pa.Table | None:
    """Return the records of all runs end to end, not copied, if they have the same columns; else None."""
    batches = [run.records for run in runs]
    schema = batches[0].schema
    if all(isinstance(batch, pa.RecordBatch) and batch.schema.equals(schema) for batch in batches):
        return pa.Table.from_batches(batches)
    return None


def _explicit_set(run: Run, all_names: Collection[str]) -> pa.Array | None:
    """Return `_set` as it reads in a wider batch: "all that are present" must now be said by name."""
    own = value_names(run.records)
    column = run.column(SET)
    if len(own) == len(all_names):
        return column
    named = " ".join(sorted(own, key=int))
    if column is None:
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(run), dtype=np.int32)), [named]).cast(pa.string())
    return column.fill_null(named)
