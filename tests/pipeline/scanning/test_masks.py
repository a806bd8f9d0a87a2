"""The runs of a mask: what stands in a condition instead of its bits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ebla.pipeline.scanning.masks import runs_of


def plainly(bits: list[bool]) -> list[tuple[int, int]]:
    bounds = [at for at in range(len(bits) + 1) if (at and bits[at - 1]) != (at < len(bits) and bits[at])]
    return list(zip(bounds[::2], bounds[1::2], strict=True))


lengths = st.lists(st.one_of(st.integers(1, 5), st.integers(60, 200)), min_size=1, max_size=12)


@given(lengths, st.booleans(), st.integers(0, 6))
def test_runs_are_those_of_the_bits_unless_there_are_too_many(lengths: list[int], is_set: bool, runs_max: int) -> None:
    bits: list[bool] = []
    for length in lengths:
        bits += [is_set] * length
        is_set = not is_set
    bits += [False] * (-len(bits) % 64)
    mask = np.packbits(np.array(bits), bitorder="little").view(np.int64)
    expected = plainly(bits)
    assert runs_of(mask, runs_max) == (expected if len(expected) <= runs_max else None)
