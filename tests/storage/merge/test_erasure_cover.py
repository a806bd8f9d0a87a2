"""What erasures hide, against the sentence that says it."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from ebla.storage.merge.arrange import arrange_rows, erased_mask
from ebla.storage.merge.erasure_cover import erased_above, hide_ranges
from ebla.storage.record.records import Run
from tests.support.records import Range

ROWS = [b"a", b"b", b"c", b"d"]


def some_run(dice: Random) -> Run:
    records = sorted((dice.choice(ROWS), -dice.randint(1, 9)) for _ in range(dice.randint(1, 8)))
    return Run(
        pa.record_batch(
            {
                "_row": pa.array([row for row, _ in records], pa.binary()),
                "_txn": pa.array([-txn for _, txn in records]),
                "_erased": pa.array([dice.random() < 0.3 for _ in records]),
            }
        )
    )


@pytest.mark.parametrize("seed", range(20))
def test_an_erasure_of_a_row_hides_itself_and_what_follows_in_the_row(seed: int) -> None:
    dice = Random(seed)
    runs = [some_run(dice) for _ in range(3)]
    arranged = arrange_rows(runs)
    erased = erased_mask(runs)
    assert erased is not None
    marks = erased[arranged.order]
    rows = arranged.rows.take(pa.array(arranged.order)).to_pylist()
    expected = [sum(marks[i] for i in range(at + 1) if rows[i] == row) for at, row in enumerate(rows)]
    assert erased_above(marks, arranged).tolist() == expected


@pytest.mark.parametrize("below_newest", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_range_erasure_hides_what_is_older_in_its_rows(seed: int, below_newest: bool) -> None:
    dice = Random(seed)
    runs = [some_run(dice) for _ in range(3)]
    arranged = arrange_rows(runs)
    erasures = [Range(dice.choice(ROWS), dice.choice([None, b"c", b"e"]), dice.randint(1, 10)) for _ in range(3)]
    as_of = dice.randint(3, 10)
    rows = arranged.rows.take(pa.array(arranged.order)).to_pylist()
    txns = arranged.txns[arranged.order].tolist()

    def is_hidden(row: bytes, txn: int) -> bool:
        newest = max(other for of, other in zip(rows, txns, strict=True) if of == row)
        return any(
            erasure.first <= row
            and (erasure.last is None or row < erasure.last)
            and txn < erasure.txn <= as_of
            and not (below_newest and newest < erasure.txn)
            for erasure in erasures
        )

    visible = np.ones(len(rows), dtype=np.bool_)
    hide_ranges(visible, arranged, erasures, as_of, below_newest=below_newest)
    assert (~visible).tolist() == [is_hidden(row, txn) for row, txn in zip(rows, txns, strict=True)]
