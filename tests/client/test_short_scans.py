"""Scans with a small limit: cut exactly, and still the first rows from where they begin."""

from __future__ import annotations

import random
from pathlib import Path

import ebla
from ebla.settings import KIB, Settings

SCHEMA = ebla.Schema(
    key={"k": "int64"}, groups=[ebla.Group("g", columns={"a": "int64", "b": "string"}, block_bytes=2 * KIB)]
)


def test_any_start_and_limit_gives_the_first_rows_from_there(tmp_path: Path) -> None:
    dice = random.Random(4)
    with ebla.open(tmp_path, settings=Settings(background_compaction=False)) as db:
        table = db.create_table("t", SCHEMA, splits=[400])
        for _ in range(4):
            table.put([{"k": dice.randrange(1_000), "a": n, "b": f"b{n}" * 4} for n in range(500)])
            table.flush()
        for n in range(300):
            table.put({"k": 500, "a": n}, wait="none")
        for key in range(0, 1_000, 90):
            table.erase(key)
        table.erase_range(600, 640)
        table.put([{"k": dice.randrange(1_000), "a": -n} for n in range(100)])
        everything = [dict(row) for row in table.scan()]
        for _ in range(150):
            start, limit = dice.randrange(-5, 1_005), dice.choice([1, 2, 7, 60, 300, 2_000])
            expected = [row for row in everything if row["k"] >= start][:limit]
            assert [dict(row) for row in table.scan(start, limit=limit)] == expected, (start, limit)
            stop = start + dice.randrange(1, 200)
            among = [row for row in expected if row["k"] < stop]
            assert [dict(row) for row in table.scan(start, stop, limit=limit)] == among, (start, stop, limit)
        assert list(table.scan(2_000, limit=5)) == []
