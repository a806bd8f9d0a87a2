"""Values there and back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import ebla
from ebla.errors import InvalidBatch, ProtocolError
from ebla.model.projection import Version
from ebla.rpc.methods import decoded, decoder_of
from ebla.rpc.wire.values import is_plain, packed


def there_and_back(value: Any) -> Any:
    return decoded(decoder_of(Any), msgspec.Raw(msgspec.msgpack.encode(packed(value))), "a value")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(1 << 63),
        (1 << 64) - 1,
        1 << 200,
        -(1 << 100),
        1.5,
        float("inf"),
        "ä",
        b"\x00\xff",
        dt.datetime(2026, 1, 2, 3, 4, 5, 6),
        dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Vienna"), fold=1),
        dt.date(1, 1, 1),
        dt.time(23, 59, 59, 999999),
        dt.timedelta(days=-999, microseconds=1),
        Decimal("-12.3400"),
        (1, "two", (b"3",)),
        [1, [2, None], {"a": Decimal(1)}],
        {"a": [dt.date(2026, 1, 1)]},
        Version(1, 2, dt.datetime(2026, 1, 1)),
        pa.list_(pa.struct([("a", pa.int32())])),
        ebla.Group("g", columns={"a": pa.int32(), "b": "string"}, max_age=dt.timedelta(days=1)),
    ],
    ids=repr,
)
def test_a_value_arrives_as_it_was_sent(value: Any) -> None:
    arrived = there_and_back(value)
    assert arrived == value
    assert type(arrived) is type(value)


def test_values_of_numpy_and_arrow_arrive_as_pythons() -> None:
    assert there_and_back(np.int32(5)) == 5
    assert there_and_back(np.float64(0.5)) == 0.5
    assert there_and_back(np.array([1, 2])) == [1, 2]
    assert there_and_back(pa.scalar(7)) == 7
    assert there_and_back(np.datetime64("2026-01-01", "s")) == dt.datetime(2026, 1, 1)


def test_what_no_table_can_hold_is_refused_by_its_sender() -> None:
    with pytest.raises(InvalidBatch, match="no value that a table can hold"):
        packed(object())


def test_a_plain_row_is_known_as_one() -> None:
    assert is_plain({"a": 1, "b": None, "c": b""})
    assert not is_plain({"a": dt.date(2026, 1, 1)})
    assert not is_plain({"a": [1]})


# What these bytes mean, code by code, where they mean something.
MEANT = {
    (_code, data)
    for _code, all_data in {
        4: [b"\x93\x01\x02\x03", b"\x80"],
        5: [b"\x01"],
        6: [b"\x01"],
        8: [b"\x93\x01\x02\x03", b"\xa3abc", b"\x80"],
        11: [b"\x93\x01\x02\x03", b"\xa3abc"],
    }.items()
    for data in all_data
}


@pytest.mark.parametrize("code", [*range(13), 127])
@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xc0", b"\x01", b"\x93\x01\x02\x03", b"\xa3abc", b"\x80", b"\x91" * 900]
)
def test_an_extension_that_is_none_is_refused(code: int, data: bytes) -> None:
    body = msgspec.Raw(msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data)))
    if (code, data) in MEANT:
        decoded(decoder_of(Any), body, "a value")
        return
    with pytest.raises((ProtocolError, InvalidBatch)):
        decoded(decoder_of(Any), body, "a value")
