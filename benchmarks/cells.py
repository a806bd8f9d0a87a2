"""Rows of free cells, as of a crawl: five cells a row, of three families in two groups.

Set-up (not timed): all rows flushed by Ebla, compacted by both; the caches are large enough for everything. One row in
four was got before, and time was given to make of it what a store makes for its readers.

    put          1,000 rows, 5,000 cells, in a durable batch
    single put   two cells of one row, durable
    scan         everything once
    get          the five cells of a row, each row once, blocks cached
    short scan   twenty rows from a key on

    Ebla       `put_cells` of Arrow, `put` of a dict, `scan().to_arrow()`, `get` and `scan(limit=20)` as dicts
    rocksdict  a pair for each cell, row, family and qualifier joined to its key; a row is made a dict of what the
               iterator gives from its first cell on
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import ebla
from benchmarks.harness import Options, check, in_turn, interleave, say, scratch, timed
from benchmarks.peers import Rocks
from benchmarks.report import Comparison, Figure, Report, at_least_ratio, microseconds, rate

CELLS = (("anchor", "com.cnn"), ("anchor", "org.my"), ("body", ""), ("meta", "lang"), ("meta", "type"))
BATCH_ROWS = 1_000
SHORT_ROWS = 20
WARMING_SECONDS = 5
GOALS = {"put": 1.0, "get": 0.4, "short scan": 0.4, "single put": 0.5}
SCHEMA = ebla.Schema(
    key={"url": "string"}, groups=[ebla.Group("links", families=["anchor"]), ebla.Group("pages", families=["*"])]
)


def run(options: Options) -> Report:
    """Measure and compare."""
    rows = options.rows_or(200_000, 20_000)
    urls = [f"com.site{number % 1_000:03d}/page{number:07d}" for number in range(rows)]
    with scratch(options) as root:
        sides: dict[str, Any] = {"Ebla": _Ebla(root / "ebla"), "rocksdict": _Rocks(root / "rocks")}
        lines = [*_writes(sides, urls), *_reads(sides, urls, options)]
        for side in sides.values():
            side.close()
    return Report("cells", f"{rows:,} rows of five cells", lines)


def _value(number: int, cell: int) -> bytes:
    return b"value %d of the cell %d, some forty bytes" % (number, cell)


class _Ebla:
    def __init__(self, path: Path) -> None:
        self.database = ebla.open(path)
        self._table = self.database.create_table("crawl", SCHEMA)

    def put_batch(self, urls: Sequence[str], first: int) -> None:
        count = len(urls)
        cells = pa.table(
            {
                "url": [url for url in urls for _ in CELLS],
                "family": [family for family, _ in CELLS] * count,
                "qualifier": [qualifier for _, qualifier in CELLS] * count,
                "value": [_value(first + number, cell) for number in range(count) for cell in range(len(CELLS))],
            }
        )
        self._table.put_cells(cells)

    def put(self, url: str) -> None:
        self._table.put({"url": url, "anchor:com.cnn": b"again", "meta:lang": b"fr"})

    def settle(self) -> None:
        self._table.flush()
        self._table.compact()

    def scan(self) -> int:
        table = self._table.scan().to_arrow()
        return sum(len(pa.chunked_array(table.column(name)).combine_chunks().items) for name in ("anchor", "*"))

    def get(self, url: str) -> dict[str, Any]:
        return dict(self._table.get(url) or {})

    def short_scan(self, url: str) -> list[Any]:
        return list(self._table.scan(url, limit=SHORT_ROWS))

    def close(self) -> None:
        self.database.close()


class _Rocks:
    def __init__(self, path: Path) -> None:
        self._peer = Rocks(path, cache_bytes=1 << 30)

    def put_batch(self, urls: Sequence[str], first: int) -> None:
        pairs = [
            (_key(url, *name), _value(first + number, cell))
            for number, url in enumerate(urls)
            for cell, name in enumerate(CELLS)
        ]
        self._peer.put_batch(pairs)

    def put(self, url: str) -> None:
        self._peer.put_batch([(_key(url, "anchor", "com.cnn"), b"again"), (_key(url, "meta", "lang"), b"fr")])

    def settle(self) -> None:
        self._peer.compact()

    def scan(self) -> int:
        return len(self._peer.scan())

    def get(self, url: str) -> dict[str, Any]:
        return self._rows(url, 1)[0]

    def short_scan(self, url: str) -> list[Any]:
        return self._rows(url, SHORT_ROWS)

    def _rows(self, url: str, count: int) -> list[dict[str, Any]]:
        found: Any = self._peer.db.items(from_key=url.encode())
        rows: list[dict[str, Any]] = []
        for row, cells in itertools.groupby(found, key=lambda pair: pair[0].split(b"\0", 1)[0]):
            shown = {"url": row.decode()}
            shown.update((key.split(b"\0", 1)[1].decode(), value) for key, value in cells)
            rows.append(shown)
            if len(rows) == count:
                break
        return rows

    def close(self) -> None:
        self._peer.close()


def _key(url: str, family: str, qualifier: str) -> bytes:
    return f"{url}\0{family}:{qualifier}".encode()


def _writes(sides: Any, urls: list[str]) -> list[Comparison]:
    say("cells: loading")
    seconds = {}
    for name, side in sides.items():
        batches = [(urls[at : at + BATCH_ROWS], at) for at in range(0, len(urls), BATCH_ROWS)]
        seconds[name] = timed(lambda side=side, batches=batches: [side.put_batch(*batch) for batch in batches])[0]
        side.settle()
    cells = len(urls) * len(CELLS)
    return [
        Comparison(
            "put",
            rate(cells, seconds["Ebla"], "cells/s"),
            "rocksdict",
            rate(cells, seconds["rocksdict"], "cells/s"),
            at_least_ratio(GOALS["put"]),
        )
    ]


def _reads(sides: Any, urls: list[str], options: Options) -> list[Comparison]:
    repeats = options.repeats()
    cells = len(urls) * len(CELLS)
    check(sides["Ebla"].get(urls[7]), sides["rocksdict"].get(urls[7]), "a row of cells")
    check(sides["Ebla"].short_scan(urls[7]), sides["rocksdict"].short_scan(urls[7]), "twenty rows of cells")
    check([side.scan() for side in sides.values()], [cells, cells], "cells")
    for side in sides.values():
        _loop(side.get, urls[::4])
    time.sleep(WARMING_SECONDS)
    count = 500 if options.quick else 2_000
    drawn = random.Random(5).sample(urls, 3 * count * repeats)
    works: dict[str, tuple[str, int, Sequence[str]]] = {
        "get": ("get", count, drawn[: count * repeats]),
        "short scan": ("short_scan", count, drawn[count * repeats : 2 * count * repeats]),
        "single put": ("put", count, drawn[2 * count * repeats :]),
    }
    say("cells: scan")
    best = interleave(repeats, {name: lambda side=side: timed(side.scan)[0] for name, side in sides.items()})
    lines = [
        Comparison("scan", rate(cells, best["Ebla"], "cells/s"), "rocksdict", rate(cells, best["rocksdict"], "cells/s"))
    ]
    for label, (call, each, asked) in works.items():
        say(f"cells: {label}")
        rounds = [asked[at : at + each] for at in range(0, len(asked), each)]
        timers: dict[str, Callable[[], float]] = {
            name: in_turn(partial(_loop, getattr(side, call)), rounds) for name, side in sides.items()
        }
        best = interleave(repeats, timers)
        figures: dict[str, Figure] = {name: microseconds(taken, each) for name, taken in best.items()}
        goal = at_least_ratio(GOALS[label])
        lines.append(Comparison(label, figures["Ebla"], "rocksdict", figures["rocksdict"], goal))
    return lines


def _loop(call: Callable[[str], Any], urls: Sequence[str]) -> float:
    def each() -> None:
        for url in urls:
            call(url)

    return timed(each)[0]
