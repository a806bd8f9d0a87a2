"""Single durable puts from 1, 16 and 64 threads: the group commit against the price of one sync.

Timed, on both sides: from the moment all threads start to the moment the last put of the last thread is acknowledged
as durable. Every thread puts its own list of rows, one at a time, each put waiting for its own durability.

    Ebla       `table.put(dict)`, the default wait: durable
    rocksdict  `db.put(key, value)` of encoded bytes, with sync=True

Both stores stay open over the rounds and get new keys in each. The last line is no store: one small write and
fdatasync, again and again, by one thread. No store can put faster than that from one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from benchmarks import data, store
from benchmarks.harness import Options, check, deal, in_threads, in_turn, interleave, say, scratch
from benchmarks.machine import sync_seconds
from benchmarks.peers import Rocks
from benchmarks.report import Comparison, Report, at_least_ratio, rate

PUTS = {1: 1_500, 16: 6_400, 64: 12_800}
GOALS = {1: 0.7, 16: 1.0, 64: 1.0}


def run(options: Options) -> Report:
    """Measure and compare."""
    lines = []
    with scratch(options) as root:
        database, table = store.create(root / "ebla")
        peer = Rocks(root / "rocks")

        def put_each(rows: Sequence[Any]) -> None:
            put = table.put
            for row in rows:
                put(row)

        numbers = count()
        written = 0
        for threads, full in PUTS.items():
            puts = full // 4 if options.quick else full
            repeats = options.repeats()
            say(f"single: {threads} threads")
            rounds = [data.batch(next(numbers), puts, seed=2) for _ in range(repeats)]
            dicts = [deal(data.dicts(one), threads) for one in rounds]
            pairs = [deal(data.pairs(one), threads) for one in rounds]
            best = interleave(
                repeats,
                {
                    "Ebla": in_turn(partial(in_threads, put_each), dicts),
                    "rocksdict": in_turn(partial(in_threads, peer.put_each), pairs),
                },
            )
            written += puts * repeats
            lines.append(
                Comparison(
                    f"{threads} thread{'s' * (threads > 1)}",
                    rate(puts, best["Ebla"], "puts/s"),
                    "rocksdict",
                    rate(puts, best["rocksdict"], "puts/s"),
                    at_least_ratio(GOALS[threads]),
                )
            )
        found = sum(batch.num_rows for batch in table.scan(columns=["id"]).to_batches())
        check(found, written, "rows in Ebla after single puts")
        database.close()
        peer.close()
        floor = interleave(1, {"write and fdatasync": partial(sync_seconds, root)})["write and fdatasync"]
        lines.append(Comparison("1 thread", lines[0].ebla, "write + fdatasync", rate(1, floor, "puts/s")))
    return Report("single", "single durable puts", lines)
