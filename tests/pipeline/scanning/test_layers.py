"""Which rows a file has: by the words of rows, and by the rows themselves where many share a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ebla
from ebla.model import order
from ebla.pipeline.scanning.layers import matches
from tests.support.inside import state_of


@pytest.mark.parametrize("ties_max", [0, 64])
def test_rows_of_a_file_are_matched_however_many_share_a_word(
    tmp_path: Path, ties_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "TIES_SPARED", ties_max)
    monkeypatch.setattr(order, "TIES_MAX", ties_max)
    schema = ebla.Schema(key={"user": "string", "n": "int64"}, columns={"v": "int64"})
    held = [(user, n) for user in ("a", "b") for n in range(0, 200, 2)]
    with ebla.open(tmp_path / "s") as db:
        table = db.create_table("t", schema)
        table.put([{"user": user, "n": n, "v": n} for user, n in held[:50]])
        later = table.put([{"user": user, "n": n, "v": n} for user, n in held[50:]])
        table.flush()
        (ref,) = state_of(table).view.metadata.tablets[0].groups[0].fragments
        fragment = state_of(table).reader.fragment(ref)
        asked = [("a", 3), *held[40:110:3], ("b", 1), ("c", 0)]
        rows = state_of(table).codec.encode_many(sorted(asked))
        for txn_max, seen in ((None, held), (later - 1, held[:50])):
            found = [*matches(fragment, rows, txn_max)]
            which, places = (np.concatenate(parts).tolist() for parts in zip(*found, strict=True))
            expected = [(sorted(asked).index(key), held.index(key)) for key in sorted(asked) if key in seen]
            assert list(zip(which, places, strict=True)) == expected
