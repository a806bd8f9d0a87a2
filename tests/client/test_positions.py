"""A scan that is resumed from its position repeats no row and skips none, whatever the type of the key."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ebla
from ebla.settings import Settings

ZONES = ["UTC", "Europe/Zurich", "+05:30"]
STAMPS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, *ZONES)]
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
KEY_TYPES = [
    pa.bool_(), *INTEGERS, pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.date64(), *TIMES,
    *STAMPS,
]  # fmt: skip
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
SUMMER_ENDS_SECONDS = 1_792_890_000  # in Zurich, this hour of 2026 comes twice
PYTHON_ENDS_SECONDS = 253_402_300_800  # the year 10000


def keys_of(kind: pa.DataType, dice: random.Random) -> pa.Array:
    """Return keys of a type, with those that lie as close together as the type can tell apart, and the extremes."""
    if pa.types.is_boolean(kind):
        return pa.array([False, True])
    if pa.types.is_floating(kind):
        width = np.float32 if kind == pa.float32() else np.float64
        numbers = np.array([0.1, -1.5, 1e30, -np.inf, np.inf, np.nan, 0.0, np.finfo(width).smallest_subnormal], width)
        return pa.array(np.concatenate([numbers, np.nextafter(numbers[:3], width(0))]), kind)
    if kind in (pa.string(), pa.binary()):
        texts = ["", "\0", "\0\0", "a", "a\0", "a\0b", "ab", "é", "\U0001f600", "b" * 300]
        return pa.array(texts if kind == pa.string() else [text.encode() for text in texts], kind)
    if pa.types.is_time(kind):
        day = 86_400 * UNITS[kind.unit]
        near = dice.randrange(day - 3)
        numbers = [0, 1, 999, 1_000, 1_001, near, near + 1, near + 2, day - 1]
    elif pa.types.is_timestamp(kind):
        unit = UNITS[kind.unit]
        near = dice.randrange(-(2**31), 2**31) * unit + dice.randrange(unit)
        hours = [SUMMER_ENDS_SECONDS * unit + hour * 1_800 * unit for hour in range(5)]
        numbers = [0, -1, near, near + 1, near + 2, *hours]
        if kind.unit != "ns":
            numbers += [PYTHON_ENDS_SECONDS * unit - 1, PYTHON_ENDS_SECONDS * unit, -(10**13), 10**17]
        else:
            numbers += [-(2**63), 2**63 - 1]
    elif pa.types.is_date(kind):
        days = [0, -1, 20_000, 20_001, -719_163, 2_932_896, 2_932_897, 10**6, -(10**6)]
        numbers = days if kind == pa.date32() else [day * 86_400_000 for day in days]
    else:
        low = -(1 << kind.bit_width - 1) if pa.types.is_signed_integer(kind) else 0
        numbers = [low, low + 1, 0, 1, low + (1 << kind.bit_width) - 1, dice.randrange(100)]
    plain = kind if pa.types.is_integer(kind) else pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(sorted(set(numbers)), plain).view(kind)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ebla.Database]:
    with ebla.open(Path(tmp_path_factory.mktemp("positions")), settings=Settings(scan_batch_rows=3)) as opened:
        yield opened


def assert_resumes(table: ebla.Table) -> None:
    for reverse in (False, True):
        whole = table.scan(reverse=reverse).to_arrow()
        for stop in range(whole.num_rows + 1):
            begun = table.scan(reverse=reverse, limit=stop)
            seen = list(begun.to_batches())
            position = pickle.loads(pickle.dumps(begun.position))
            rest = table.scan(reverse=reverse, resume=position).to_arrow()
            joined = pa.concat_tables([pa.Table.from_batches(seen, whole.schema), rest])
            assert joined.column("n").to_pylist() == whole.column("n").to_pylist(), position


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_a_resumed_scan_goes_on_exactly_after_the_last_row(db: ebla.Database, kind: pa.DataType) -> None:
    keys = keys_of(kind, random.Random(str(kind)))
    name = f"t{KEY_TYPES.index(kind)}"
    alone = db.create_table(name, ebla.Schema(key={"k": kind}, columns={"n": "int32"}))
    alone.put(pa.table({"k": keys, "n": pa.array(range(len(keys)), pa.int32())}))
    assert alone.scan().count() == len(keys)
    assert_resumes(alone)
    second = ebla.Schema(key={"text": "string", "k": kind, "flag": "bool"}, columns={"n": "int32"})
    among = db.create_table(f"{name}.among", second)
    count = len(keys)
    among.put(
        pa.table({"text": ["a\0"] * count, "k": keys, "flag": [True] * count, "n": pa.array(range(count), pa.int32())})
    )
    assert_resumes(among)


@pytest.fixture(scope="module")
def clocks(db: ebla.Database) -> ebla.Table:
    table = db.create_table("clocks", ebla.Schema(key={"k": "time64[ns]"}, columns={"n": "int32"}))
    keys = pa.array([1_000, 1_001, 1_002, 2_000], pa.time64("ns"))
    table.put(pa.table({"k": keys, "n": pa.array(range(4), pa.int32())}))
    return table


def test_a_position_is_a_key_where_python_has_it_and_a_row_where_it_has_not(clocks: ebla.Table) -> None:
    keys = []
    for stop in range(1, 5):
        scan = clocks.scan(limit=stop)
        scan.to_arrow()
        keys.append(scan.position.key)
    assert [type(key) for key in keys] == [tuple, bytes, bytes, tuple]


@pytest.mark.parametrize("key", [b"", b"1", b"123456789", "x", 5, [], {}], ids=repr)
def test_a_position_with_another_key_is_refused(clocks: ebla.Table, key: Any) -> None:
    with pytest.raises(ebla.RequestError):
        clocks.scan(resume=ebla.Position(clocks.scan().txn, key))


@pytest.mark.parametrize("use", ["to_arrow", "to_pandas", "to_polars"])
def test_a_scan_that_was_taken_as_a_whole_has_come_to_its_end(clocks: ebla.Table, use: str) -> None:
    scan = clocks.scan(limit=2)
    getattr(scan, use)()
    assert clocks.scan(resume=scan.position).to_arrow()["n"].to_pylist() == [2, 3]


def test_a_time_that_python_would_cut_is_not_given_out_as_a_dict(db: ebla.Database) -> None:
    columns = {"at": "time64[ns]", "many": "list<time64[ns]>", "in": "struct<at: time64[ns]>"}
    table = db.create_table("times", ebla.Schema(key={"k": "int32"}, columns=columns))
    fine, whole = pa.array([1_001], pa.time64("ns")), pa.array([2_000], pa.time64("ns"))
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), fine)
    structs = pa.StructArray.from_arrays([fine], names=["at"])
    for n, column in enumerate([{"at": fine}, {"many": lists}, {"in": structs}]):
        table.put(pa.table({"k": pa.array([n], pa.int32()), **column}))
    table.put(pa.table({"k": pa.array([9], pa.int32()), "at": whole}))
    for flushed in (False, True):
        for n in range(3):
            for read in (lambda n=n: table.get(n), lambda n=n: list(table.scan(n, n + 1)),
                         lambda n=n: list(table.scan(n, n + 1, versions=2))):  # fmt: skip
                with pytest.raises(ebla.RequestError, match="read it as Arrow"):
                    read()
        assert table.get_many([0])["at"].cast(pa.int64()).to_pylist() == [1_001]
        assert table.get(9)["at"].microsecond == 2
        if not flushed:
            table.flush()
