"""What must not take longer where there are more rows: clone, split, join and alter, at ten times the rows.

Timed is the call, on a table that is flushed and compacted. Both stores are open at once and take turns, so that they
meet the same disk, and the best of several counts. They have the settings of a user, but for the background work, which
would come between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count
from typing import Any

from benchmarks import data, store
from benchmarks.harness import Options, check, interleave, say, scratch, timed
from benchmarks.report import Comparison, Report, milliseconds, within_time

TIMES = 10
REPEATS = 15
# Within noise: a call takes a few milliseconds, most of them syncs.
FACTOR = 1.5


def run(options: Options) -> Report:
    """Measure and compare."""
    large = options.rows_or(2_000_000, 200_000)
    taken: dict[int, dict[str, float]] = {}
    with scratch(options) as root, contextlib.ExitStack() as opened:
        works: dict[int, dict[str, Callable[[], float]]] = {}
        tables: dict[int, Any] = {}
        for rows in (large // TIMES, large):
            say(f"instant: {rows:,} rows")
            database, tables[rows] = store.create(root / f"{rows}", store.AS_LOADED)
            opened.callback(database.close)
            for batch in data.stream(rows, batch_rows=10_000):
                tables[rows].put(batch, wait="none")
            tables[rows].compact()
            works[rows] = _works(database, tables[rows])
        for name in works[large]:
            best = interleave(REPEATS, {f"{name}, {rows:,} rows": works[rows][name] for rows in works})
            for rows in works:
                taken.setdefault(rows, {})[name] = best[f"{name}, {rows:,} rows"]
        for rows, table in tables.items():
            check(sum(batch.num_rows for batch in table.scan(columns=["id"]).to_batches()), rows, "rows")
    small = large // TIMES
    lines = [
        Comparison(
            f"{name}, {large:,} rows",
            milliseconds(taken[large][name]),
            f"Ebla, {small:,} rows",
            milliseconds(taken[small][name]),
            within_time(FACTOR),
        )
        for name in taken[large]
    ]
    return Report("instant", "calls whose time does not grow with the rows", lines)


def _works(database: Any, table: Any) -> dict[str, Callable[[], float]]:
    numbers = count()

    def clone() -> float:
        return timed(lambda: database.clone_table(store.TABLE, f"clone{next(numbers)}"))[0]

    def split() -> float:
        seconds, _ = timed(lambda: table.split(b"\x80"))
        table.join(b"\x01", b"\x80")
        return seconds

    def join() -> float:
        table.split(b"\x80")
        return timed(lambda: table.join(b"\x01", b"\x80"))[0]

    def alter() -> float:
        name = f"added{next(numbers)}"
        return timed(lambda: database.alter_table(store.TABLE, add_columns={name: "int64"}))[0]

    return {"clone": clone, "split": split, "join": join, "alter, add a column": alter}
