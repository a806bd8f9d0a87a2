"""Every way to read gives the same rows: one at a time, many at once, a scan, at any moment, from any mix of sources.

Small blocks and a small cache make a few hundred rows take the ways of a few million: indexes, stretches, windows.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebla
from ebla.settings import Settings
from ebla.storage.fragment.fragment_reader import Fragment

ROWS = 400
# Footers may take half of it.
SMALL = replace(Settings(), block_cache_bytes=96 * 1024, background_compaction=False)

Model = dict[int, dict[str, Any]]

KEYS: dict[str, tuple[dict[str, str], Callable[[int], Any]]] = {
    "binary": ({"k": "binary"}, lambda number: b"key-%07d" % (number * 7)),
    "of several lengths": ({"k": "binary"}, lambda number: b"%d" % number),
    "alike": ({"k": "binary"}, lambda number: b"%03d-alike-alike-%d-alike-alike" % (number // 8, number % 8)),
    "string": ({"k": "string"}, lambda number: f"a long common prefix {number:05d}"),
    "tuple": ({"k": "string", "d": "int32"}, lambda number: (f"k{number // 10}", number)),
    "of two users": ({"u": "string", "n_": "int64"}, lambda number: (f"u{2 * number // ROWS}", number)),
}


class Both:
    """A table, and a dict that has done the same."""

    def __init__(self, table: ebla.Table, key_of: Callable[[int], Any]) -> None:
        self.table = table
        self.key_of = key_of
        self.model: Model = {}
        self.moments: list[tuple[int, Model]] = []

    def named(self, number: int) -> dict[str, Any]:
        key = self.key_of(number)
        return dict(zip(self.table.key_names, key if isinstance(key, tuple) else (key,), strict=True))

    def put(self, numbers: list[int], columns: list[str], mark: int) -> None:
        new = {n: {c: (f"{c}{mark}-{n}" if c == "s" else mark * 1000 + n) for c in columns} for n in numbers}
        txn = self.table.put([{**self.named(n), **values} for n, values in new.items()])
        self._done(txn, {**self.model, **{n: {**self.model.get(n, {}), **values} for n, values in new.items()}})

    def erase(self, numbers: list[int]) -> None:
        txn = self.table.erase_many([self.key_of(number) for number in numbers])
        self._done(txn, {n: row for n, row in self.model.items() if n not in numbers})

    def erase_range(self, begin: int, end: int) -> None:
        first, last = self.key_of(begin), self.key_of(end)
        txn = self.table.erase_range(first, last)
        self._done(txn, {n: row for n, row in self.model.items() if not first <= self.key_of(n) < last})

    def _done(self, txn: int, model: Model) -> None:
        self.model = model
        self.moments.append((txn, model))

    def expected(self, number: int, model: Model, columns: list[str]) -> dict[str, Any]:
        row = model.get(number)
        return {**self.named(number), **{c: (row or {}).get(c) for c in columns}, "_found": row is not None}

    def check(self, asked: list[int]) -> None:
        for txn, model in self.moments:
            for columns in (["n", "m", "s"], ["s"]):
                found = self.table.get_many([self.key_of(n) for n in asked], columns=columns, as_of=txn)
                assert found.to_pylist() == [self.expected(n, model, columns) for n in asked]
            scanned = self.table.scan(as_of=txn).to_arrow()
            shown = sorted((self.expected(n, model, ["n", "m", "s"]) for n in model), key=self._order)
            assert scanned.append_column("_found", pa.repeat(True, len(scanned))).to_pylist() == shown
        self.check_short_scans(asked[:3])
        for number in asked[:20]:
            row = self.table.get(self.key_of(number))
            assert (row is not None) == (number in self.model)
            if row is not None:
                assert {**row, "_found": True} == self.expected(number, self.model, ["n", "m", "s"])

    def check_short_scans(self, starts: list[int]) -> None:
        """Read a few rows from some on, twice: what is kept of the first time serves the second."""
        shown = sorted((self.expected(n, self.model, ["n", "m", "s"]) for n in self.model), key=self._order)
        for start in starts:
            first = self._order(self.named(start))
            expected = [row for row in shown if self._order(row) >= first][:50]
            for _ in range(2):
                found = self.table.scan(self.key_of(start), limit=50)
                assert [{**row, "_found": True} for row in found] == expected

    def _order(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.table.key_names)


def both_on(database: ebla.Database, kind: str, splits: list[int]) -> Both:
    key, key_of = KEYS[kind]
    group = ebla.Group("g", columns={"n": "int64", "m": "float64", "s": "string"}, block_bytes=1024)
    schema = ebla.Schema(key=key, groups=[group])
    return Both(database.create_table("t", schema, splits=[key_of(at) for at in splits]), key_of)


@settings(max_examples=10, deadline=None)
@given(st.data(), st.integers(0, 1 << 30))
@pytest.mark.parametrize("kind", KEYS)
def test_all_ways_to_read_agree(kind: str, data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def some(count: int) -> list[int]:
        return rng.integers(0, ROWS, count).tolist()

    with tempfile.TemporaryDirectory() as path, ebla.open(path, settings=SMALL) as database:
        both = both_on(database, kind, data.draw(st.sampled_from([[], [ROWS // 2]])))
        both.put(list(range(0, ROWS, 2)), ["n", "m", "s"], 0)
        for mark in range(1, data.draw(st.integers(1, 4))):
            step = data.draw(st.sampled_from(["whole", "part", "erase", "range"]))
            if step == "whole":
                both.put(some(150), ["n", "m", "s"], mark)
            elif step == "part":
                both.put(some(60), ["m"], mark)
            elif step == "erase":
                both.erase(some(30))
            else:
                begin = int(rng.integers(0, ROWS - 50))
                both.erase_range(begin, begin + 40)
            if data.draw(st.booleans(), label="flush"):
                both.table.flush()
            if data.draw(st.booleans(), label="split"):
                with contextlib.suppress(ebla.CannotSplit):
                    both.table.split(both.key_of(int(rng.integers(0, ROWS))))
        if data.draw(st.booleans(), label="flush in the end"):
            both.table.flush()
        both.check(some(data.draw(st.sampled_from([20, 300]))))
        both.check(list(range(100, 200)))
        both.check(list(range(100, 200, 2)))


@pytest.mark.parametrize("kind", KEYS)
def test_many_rows_come_out_of_one_clean_fragment_as_they_are(kind: str, tmp_path: Any) -> None:
    with ebla.open(tmp_path, settings=SMALL) as database:
        both = both_on(database, kind, [])
        both.put(list(range(ROWS)), ["n", "s"], 1)
        both.table.flush()
        for asked in (
            list(range(ROWS)),
            list(range(ROWS - 1, -1, -1)),
            [5, 5, *range(50), 5],
            list(range(ROWS - 40, ROWS + 40)),
            list(range(ROWS, ROWS + 50)),
            # Nearly all neighbours of one another, from the first to the last of as many.
            [0, 2, 1, *range(3, 60)],
            [0, 1, 1, *range(3, 60)],
            [0, ROWS + 1, *range(2, 60)],
            [],
        ):
            both.check(asked)


@pytest.mark.parametrize("kind", ["binary", "string", "tuple"])
def test_neighbours_are_cut_out_of_a_clean_fragment(kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with ebla.open(tmp_path, settings=SMALL) as database:
        both = both_on(database, kind, [])
        both.put(list(range(ROWS)), ["n", "s"], 1)
        both.table.flush()
        both.check(list(range(ROWS)))
        with monkeypatch.context() as patch:
            patch.delattr(Fragment, "find_many")
            for begin in (0, 17, ROWS - 150):
                both.check(sorted(range(ROWS), key=both.key_of)[begin : begin + 150])
        both.put([60], ["n"], 2)  # over the fragment, in memory
        both.check(sorted(range(ROWS), key=both.key_of)[:150])


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (pa.date32(), 3_000_000),
        (pa.timestamp("s"), 1 << 40),
        (pa.timestamp("us", "UTC"), 1 << 60),
        (pa.duration("s"), 1 << 60),
    ],
)
@pytest.mark.parametrize("versions", [1, 2])
def test_what_python_cannot_express_is_read_as_arrow(
    kind: pa.DataType, number: int, versions: int, tmp_path: Any
) -> None:
    with ebla.open(tmp_path) as database:
        table = database.create_table("t", ebla.Schema(key={"k": "string"}, columns={"d": kind}))
        value = pa.array([number], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
        table.put(pa.table({"k": ["a"], "d": value}))
        with pytest.raises(ebla.RequestError, match="to_arrow"):
            table.get("a")
        with pytest.raises(ebla.RequestError, match="to_arrow"):
            list(table.scan(versions=versions))
        assert table.get_many(["a"]).column("d").combine_chunks().equals(value)
        assert table.scan().to_arrow().column("d").combine_chunks().equals(value)


def test_a_scan_gives_batches_of_keys_that_python_cannot_express(tmp_path: Any) -> None:
    with ebla.open(tmp_path) as database:
        table = database.create_table("t", ebla.Schema(key={"d": "date32"}, columns={"n": "int64"}))
        days = pa.array([1, 3_000_000], pa.int32()).cast(pa.date32())
        table.put(pa.table({"d": days, "n": [1, 2]}))
        scan = table.scan()
        assert pa.Table.from_batches(scan.to_batches()).column("d").combine_chunks().equals(days)
        first = table.scan(limit=1)
        list(first.to_batches())
        for position, rest in ((first.position, [2]), (scan.position, [])):
            assert table.scan(resume=position).to_arrow()["n"].to_pylist() == rest


def test_many_rows_of_a_few_users_are_found_by_key_as_by_scan(tmp_path: Path) -> None:
    # Eight bytes after what all keys of a file share are the same for all rows of a user.
    schema = ebla.Schema(
        key={"user": "string", "number": "int64"},
        groups=[ebla.Group("typed", columns={"value": "int64"}), ebla.Group("cells", families=["tag"])],
    )
    keys = [(user, number) for user in ("u0", "u1") for number in range(50)]
    with ebla.open(tmp_path / "users") as db:
        table = db.create_table("t", schema)
        for generation in (1, 2):
            cells = {"tag:a": b"1", "tag:b": b"2"}
            table.put([{"user": user, "number": n, "value": n * generation, **cells} for user, n in keys])
            table.flush()
            for asked in (keys, keys[50:], keys[30:70], keys[60:92]):
                found = table.get_many(asked)
                stop = (asked[-1][0], asked[-1][1] + 1)
                assert found.drop_columns("_found").equals(table.scan(asked[0], stop).to_arrow())
                assert found["value"].to_pylist() == [n * generation for _, n in asked]
        table.erase_many(keys, ["value"])
        assert table.scan(columns=["value"]).to_arrow()["value"].null_count == len(keys)
