"""Types of JSON values for a new table: of one value, and of several together."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pyarrow as pa
import pytest

from ebla.pipeline.inputs.json_types import empty_as_text, merged, type_of


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([1, 1 << 70], pa.decimal128(22, 0)),
        ([1, "x"], pa.string()),
        ([True, 1], pa.string()),
        ([None], pa.string()),
        ([[1], [None, 2.5]], pa.list_(pa.field("element", pa.float64()))),
        ([{"b": 1}, {"a": None, "b": 2}], pa.struct([("a", pa.string()), ("b", pa.int64())])),
        ([{"b": 1}, [1]], pa.string()),
        ([{}], pa.string()),
    ],
)
def test_values_together_are_of_the_type_that_holds_all_of_them(values: list[Any], kind: pa.DataType) -> None:
    assert empty_as_text(reduce(merged, map(type_of, values), pa.null())) == kind
