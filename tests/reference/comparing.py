"""Comparing what store and model say, exactly, and telling the difference so that it can be read."""

from __future__ import annotations

import datetime
import difflib
import pprint
import reprlib
from collections.abc import Sequence
from typing import Any

from .reference import Key, RangeErasure, Record, ReferenceTable, Row

EPOCH = datetime.datetime(1970, 1, 1)


def canonical(value: Any) -> Any:
    """Return a value in a form that is equal exactly where value and type are: -0.0 is not 0.0, True is not 1."""
    if isinstance(value, tuple) and hasattr(value, "txn"):
        cell: Any = value
        stamp = cell.timestamp
        if isinstance(stamp, datetime.datetime):
            stamp = (stamp.replace(tzinfo=None) - EPOCH) // datetime.timedelta(microseconds=1)
        return f"{canonical(cell.value)} @{cell.txn} ts {stamp}"
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if isinstance(value, dict):
        return {name: canonical(item) for name, item in value.items()}
    return value.isoformat() if isinstance(value, datetime.datetime) else repr(value)


def as_rows(rows: Any) -> list[Row | None]:
    """Return rows in the form in which they are compared; a column without a single version counts as None."""
    return [
        None if row is None else {name: "None" if value == [] else canonical(value) for name, value in row.items()}
        for row in rows
    ]


class Difference(AssertionError):
    """Store and model do not say the same."""


def compare(actual: list[Row | None], expected: list[Row | None], model: ReferenceTable, label: str) -> None:
    """Fail with a readable account of the difference, if there is one."""
    if actual == expected:
        return
    differing = [*zip(actual, expected, strict=False), (None, None)]
    first = next((mine or yours for mine, yours in differing if mine != yours), None) or (actual + expected)[-1] or {}
    keys = [key for key in model.history if as_rows([model.key_row(key)])[0].items() <= first.items()]  # type: ignore[union-attr]
    lines = difflib.unified_diff(_lines(expected), _lines(actual), "the model says", "the store says", lineterm="", n=1)
    raise Difference("\n".join([label, *lines, history(model, keys)]))


def assert_equal(actual: Any, expected: Any, label: str) -> None:
    """Fail if two values differ in value or type."""
    assert canonical(actual) == canonical(expected), f"{label}: the store says {actual!r}, the model {expected!r}"


def history(model: ReferenceTable, keys: Sequence[Key]) -> str:
    """Return everything ever written to some rows, in order."""
    records = [record for key in dict.fromkeys(keys) for record in model.history.get(key, ())]
    ranges = [erasure for erasure in model.ranges if any(erasure.covers(key) for key in keys)]
    lines = [f"written to {', '.join(map(str, keys)) or 'it'}:"]
    changes: list[Record | RangeErasure] = [*records, *ranges]
    for change in sorted(changes, key=lambda change: change.txn):
        if isinstance(change, RangeErasure):
            lines.append(f"  {change.txn} erased all in [{change.start}, {change.stop})")
        else:
            what = "erased" if change.erased else reprlib.repr(change.values)
            lines.append(f"  {change.txn} {change.key} {change.group} {change.identity} ts {change.ts}: {what}")
    return "\n".join(lines)


def _lines(rows: list[Row | None]) -> list[str]:
    return [line for row in rows for line in pprint.pformat(row, width=110).splitlines()]
