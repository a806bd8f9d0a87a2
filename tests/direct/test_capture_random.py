"""Random histories beside the reference model: what is captured reads as the model says, at every txn, for ever.

Tables are captured in the middle of changes, flushes, merges, splits, joins and alterations, from the process that has
the store open and as another process would. Files are copied as an incremental backup does, those that are not there
yet; what was captured is read from the copies alone, when everything else has gone on.
"""

from __future__ import annotations

import random
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.client.table import Table
from ebla.direct.capture import captured, with_memory
from ebla.direct.table_value import VALUE_NAME, reading_value
from ebla.metadata.values.restoring import pack_metadata
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.serve.local_table import LocalTable
from tests.reference.comparing import as_rows, compare
from tests.reference.pair import ROOMY, TINY, VERSIONS_ALL, Pair
from tests.reference.reference import Cell
from tests.reference.strategies import Shape
from tests.support.inside import engine_of

KEYS = tuple((f"k{n:02}",) for n in range(24))
SCHEMA = ebla.Schema(
    key={"k": "string"},
    groups=[
        ebla.Group("newest", columns={"a": "int64", "b": "string"}),
        ebla.Group("every", columns={"c": "int64", "d": "string"}, max_versions="all"),
        ebla.Group("cells", families=["tag", "log"], max_versions=3),
        ebla.Group("rest", families=["*"]),
    ],
)
CELLS = (("tag", "x"), ("tag", "é"), ("log", "1"), ("other", "y"))


@dataclass(frozen=True)
class Kept:
    """What was captured, and what the model says of it: at some txns, and in all versions."""

    txn: int
    metadata: bytes
    said: dict[int, list[Any]]
    versions: list[Any]


class Wanderer:
    """Draws one change after the other, and captures in between."""

    def __init__(self, path: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        splits = self.dice.choice((None, ("k08",), ("k05", "k15")))
        self.shape = Shape("backup", SCHEMA, KEYS, splits=splits)
        self.pair = Pair(path / "store", {"t": self.shape}, self.dice.choice((ROOMY, TINY)))
        self.copies = path / "copies"
        self.kept: list[Kept] = []

    def key(self) -> tuple[str]:
        return self.dice.choice(KEYS)

    def row(self) -> dict[str, Any]:
        names = self.dice.sample(("a", "b", "c", "d"), self.dice.randint(1, 4))
        row: dict[str, Any] = {"k": self.key()[0]}
        for name in names:
            number = self.dice.randint(0, 9)
            row[name] = None if number == 0 else number if name in "ac" else f"{name}{number}"
        if self.dice.random() < 0.4:
            family, qualifier = self.dice.choice(CELLS)
            row[f"{family}:{qualifier}"] = bytes([self.dice.randint(0, 9)])
        return row

    def step(self) -> None:
        pair, dice = self.pair, self.dice
        match dice.choices(
            ("put", "replace", "cells", "erase", "erase some", "range", "flush", "compact", "split", "join", "alter"),
            (8, 1, 3, 2, 2, 2, 3, 1, 1, 1, 1),
        )[0]:
            case "put":
                rows = {row["k"]: row for row in (self.row() for _ in range(dice.randint(1, 6)))}
                pair.put("t", list(rows.values()))
            case "replace":
                pair.put("t", [self.row()], replace=True)
            case "cells":
                family, qualifier = dice.choice(CELLS)
                time = dice.choice((None, 1, 1_000, 2_000))
                pair.put_cells("t", [Cell(self.key(), family, qualifier, bytes([dice.randint(0, 9)]), time)])
            case "erase":
                pair.erase("t", self.key())
            case "erase some":
                pair.erase("t", self.key(), [dice.choice(("a", "d", "tag:x", "log"))])
            case "range":
                low, high = sorted(dice.sample(KEYS, 2))
                pair.erase_range("t", low, dice.choice((high, None)) if dice.random() < 0.3 else high)
            case "flush":
                pair.flush("t")
            case "compact":
                pair.compact("t", forget=dice.random() < 0.3)
            case "split":
                pair.split("t", self.key())
            case "join":
                pair.join("t", dice.randint(0, 9))
            case "alter":
                pair.alter("t", dice.randint(0, 1 << 30))

    def capture(self) -> None:
        """Capture, copy what is new, and note what the model says of this moment and of those before."""
        pair, model = self.pair, self.pair.model.table("t")
        source = self.dice.choice((pair.database, str(pair.path)))
        with captured(source, ["t"], f"20261116T000000000-{self.dice.getrandbits(32):08x}") as found:
            assert found.txn >= pair.last_txn
            files = LocalFiles(self.copies)
            metadata = with_memory(
                found.views["t"], found.txn, files, lambda table_id: f"fragments/{table_id}/{uuid.uuid4()}.parquet"
            )
            if source is not pair.database:
                assert list(pair.database.snapshots().values()) == [found.txn]
            moments = {found.txn, *(txn for txn in pair.moments["t"][-4:] if txn <= found.txn)}
            said = {txn: as_rows(model.scan(as_of=txn)) for txn in moments}
            versions = as_rows(model.scan(as_of=found.txn, versions=VERSIONS_ALL))
            for _ in range(self.dice.randint(0, 3)):
                self.step()  # they are not held up, and change nothing of what was captured
            if self.dice.random() < 0.3:
                pair.database.gc(dry_run=False)
            for file in sorted(set(metadata.files())):
                if not (self.copies / file).exists():
                    (self.copies / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(pair.path / file, self.copies / file)
        assert pair.database.snapshots() == {}
        assert not engine_of(pair.database).pins.held_here()
        self.kept.append(Kept(found.txn, pack_metadata(metadata), said, versions))

    def check(self) -> None:
        """Compare everything that was captured with what the model said then."""
        model = self.pair.model.table("t")
        for kept in self.kept:
            with reading_value(str(self.copies), kept.metadata, kept.txn) as store:
                table = Table(LocalTable(store, store.table(VALUE_NAME)))
                for txn, said in kept.said.items():
                    compare(as_rows(table.scan(as_of=txn)), said, model, f"captured at {kept.txn}, as of {txn}")
                found = as_rows(table.scan(as_of=kept.txn, versions=VERSIONS_ALL))
                compare(found, kept.versions, model, f"captured at {kept.txn}, all versions")


def wander(path: Path, seed: int) -> int:
    wanderer = Wanderer(path / str(seed), seed)
    try:
        for _ in range(wanderer.dice.randint(2, 4)):
            for _ in range(wanderer.dice.randint(0, 14)):
                wanderer.step()
            wanderer.capture()
        for _ in range(5):
            wanderer.step()
        wanderer.check()
        wanderer.pair.check_all()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        wanderer.pair.close()
    return sum(len(kept.versions) for kept in wanderer.kept)


def test_what_was_captured_reads_as_the_model_says(tmp_path: Path) -> None:
    assert sum(wander(tmp_path, seed) for seed in range(6)) > 60


@pytest.mark.soak
def test_what_was_captured_reads_as_the_model_says_many_times(tmp_path: Path) -> None:
    for seed in range(1_000, 1_400):
        wander(tmp_path, seed)
