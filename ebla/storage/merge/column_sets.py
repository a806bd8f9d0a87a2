"""Which columns records set: what `_set` says of the records of a columns group, over several runs.

A record without a `_set`, or with a null in it, sets all columns that its run has. Few different lists of columns come
up again and again, so each is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.order import Indices, Mask
from ebla.storage.record.records import SET, Run, value_names

__all__ = ["Patterns", "column_types", "set_column", "set_patterns", "sets_differ", "setters"]

Patterns: TypeAlias = list[tuple[Indices, list[frozenset[int]]] | None]


def column_types(runs: Sequence[Run]) -> dict[str, pa.DataType]:
    """Return the types of the value columns that some run has, by field id as text, in the order of the ids."""
    types: dict[str, pa.DataType] = {}
    for run in runs:
        for name in value_names(run.records):
            if name not in types:
                types[name] = run.records.schema.field(name).type
    return {name: types[name] for name in sorted(types, key=int)}


def sets_differ(runs: Sequence[Run]) -> bool:
    """Tell whether some records may set other columns than others do: else there is nothing to take over."""
    columns = {frozenset(value_names(run.records)) for run in runs}
    return len(columns) > 1 or any(SET in run.records.schema.names for run in runs)


def set_patterns(runs: Sequence[Run]) -> Patterns | None:
    """Return, per run, which of a few lists of field ids each record sets (the last: all); None if all set all."""
    columns = [run.column(SET) for run in runs]
    if all(column is None for column in columns):
        return None
    patterns: Patterns = []
    for column in columns:
        if column is None:
            patterns.append(None)
            continue
        encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
        lists = [frozenset(map(int, text.split())) for text in encoded.dictionary.to_pylist()]
        codes = pc.fill_null(encoded.indices, len(lists)).to_numpy(zero_copy_only=False)
        patterns.append((codes, lists))
    return patterns


def setters(runs: Sequence[Run], patterns: Patterns | None, field_id: int) -> Mask:
    """Tell which records of all runs, end to end, set a column; `patterns` are those of the runs."""
    told: list[Mask] = []
    for at, run in enumerate(runs):
        has = run.records.schema.get_field_index(str(field_id)) >= 0
        pattern = None if patterns is None else patterns[at]
        if not has or pattern is None:
            told.append(np.full(len(run), has, dtype=np.bool_))
        else:
            codes, lists = pattern
            told.append(np.array([*(field_id in ids for ids in lists), True], dtype=np.bool_)[codes])
    return np.concatenate(told)


def set_column(is_set: Mask, names: Sequence[str], erased: Mask | None) -> pa.Array | None:
    """Return `_set` for records of which `is_set` tells, column by column, what they set; None if all set all."""
    whole = is_set.all(axis=1)
    if erased is not None:
        whole = whole | erased  # an erasure sets nothing, and need not say so
    if whole.all():
        return None
    packed = np.packbits(is_set, axis=1)
    patterns, which = np.unique(packed, axis=0, return_inverse=True)
    texts = [
        " ".join(name for name, bit in zip(names, np.unpackbits(pattern)[: len(names)], strict=True) if bit)
        for pattern in patterns
    ]
    return pa.array(texts, pa.string()).take(pa.array(which.reshape(-1), mask=whole))
