"""Random tables, random changes: a DataFrame always has the rows of `table.scan`, now and as of any txn before."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ebla
from ebla.pipeline.scanning.plan import Limits
from ebla.pipeline.scanning.scan import frame_of
from ebla.pipeline.scanning.sections import SectionPlan, plan_scan, read_section
from ebla.pipeline.spark.types import to_spark
from ebla.settings import Settings
from tests.pipeline.scanning.scan_world import assert_same_rows, rows_of
from tests.support.inside import state_of
from tests.support.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAME_SEEDS = 24
PLAN_SEEDS = 42
ALTERED_SEEDS = 30
QUIET = Settings(background_compaction=False)
KEYS = 60
WORDS = ("", "a", "žluť", "🐎", "\0", "long " * 20)
CELLS = ("tag:red", "tag:é", "tag:")
LOOSE = ("x:1", "x:2", "y:1", "bare")


@dataclass(frozen=True)
class Shape:
    """A kind of table, and how to make keys and values for it from a number and from dice."""

    key: dict[str, str]
    key_of: Callable[[int], tuple[Any, ...]]
    groups: tuple[ebla.Group, ...]
    cells: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, Any]:
        return {name: kind for group in self.groups for name, kind in (group.columns or {}).items()}


def group(name: str, **more: Any) -> ebla.Group:
    return ebla.Group(name, block_bytes=1024, **more)


SHAPES = (
    Shape({"k": "string"}, lambda n: (f"key {n:03}",), (group("g", columns={"i": "int64", "s": "string"}),)),
    Shape(
        {"k": "binary"},
        lambda n: (bytes((n, 255, 0)),),
        (group("g", columns={"i": "int32"}), group("cells", families=["tag"]), group("rest", families=["*"])),
        CELLS[:2] + LOOSE,
    ),
    Shape(
        {"user": "string", "at": "int32"},
        lambda n: (WORDS[n % 3], n - 20),
        (group("g", columns={"d": "decimal128(12, 3)", "t": "timestamp[us, tz=UTC]", "l": "list<string>"}),),
    ),
    Shape(
        {"a": "int64", "b": "binary", "day": "date32"},
        lambda n: (n // 10 - 3, bytes((n % 5,)), date(2026, 1, 1) + timedelta(n)),
        (group("g", columns={"i": "int16", "f": "float64"}), group("h", columns={"s": "string", "o": "bool"})),
    ),
    Shape(
        {"k": "string"},
        lambda n: (f"{n:03}é",),
        (group("g", columns={"s": "string"}), group("cells", families=["tag"], max_versions=2)),
        CELLS[:2],
    ),
    Shape({"k": "int64"}, lambda n: (n - 30,), (group("g", columns={"u": "uint32", "n": "timestamp[ns]"}),)),
)


def value(kind: str, dice: random.Random) -> Any:
    if dice.random() < 0.15:
        return None
    number = dice.randint(0, 100)
    made: dict[str, Any] = {
        "string": WORDS[number % len(WORDS)],
        "bool": number % 2 == 0,
        "float64": number / 7,
        "decimal128(12, 3)": Decimal(number) / 8,
        "timestamp[us, tz=UTC]": datetime(1960, 1, 1, tzinfo=UTC) + timedelta(days=number, microseconds=number),
        "timestamp[ns]": datetime(2026, 1, 1) + timedelta(microseconds=number),
        "list<string>": [*WORDS[: number % 4], None],
    }
    return made.get(kind, number)


class Story:
    """Random changes of one table, and the txns at which one may look back."""

    def __init__(self, db: ebla.Database, shape: Shape, dice: random.Random, name: str = "t") -> None:
        self.db = db
        self.name = name
        self.shape = shape
        self.dice = dice
        schema = ebla.Schema(key=shape.key, groups=list(shape.groups))
        self.rows = sorted({shape.key_of(n) for n in range(KEYS)})
        splits = sorted(dice.sample(self.rows, dice.choice((0, 0, 1, 3))))
        self.table = db.create_table(name, schema, splits=splits)
        self.txns = [self.table.scan().txn]

    def tell(self) -> None:
        for part in range(parts := self.dice.randint(1, 4)):
            rows = self.rows[part * len(self.rows) // parts : (part + 1) * len(self.rows) // parts]
            self.put(rows[:-5], whole=True)
            # A file in which a reader may see only the older of two versions of some rows, or not all of the rows.
            self.txns.append(self.table.scan().txn)
            self.put(self.dice.choice((rows[-5:], rows[-5:], self.dice.sample(rows, 5))), whole=True)
            self.table.flush()
        for _ in range(self.dice.choice((0, 1, 2, 4, 8))):
            self.dice.choices(
                (self.put_some, self.erase, self.erase_range, self.replace, self.table.flush), (4, 1, 1, 1, 3)
            )[0]()
            self.txns.append(self.table.scan().txn)
        if self.dice.random() < 0.6:
            self.table.flush()

    def tell_more(self) -> None:
        """Cut, merge and alter the table as well, with changes of rows in between."""
        for _ in range(self.dice.randint(2, 5)):
            self.dice.choices((self.alter, self.split, self.table.compact), (4, 1, 1))[0]()
            for _ in range(self.dice.randint(0, 2)):
                self.dice.choice((self.put_some, self.erase, self.table.flush))()
            self.txns.append(self.table.scan().txn)

    def alter(self) -> None:
        """Change the schema so that the names stay: a column moves, is dropped and comes again, or has another name."""
        name, kind = self.dice.choice(list(self.shape.columns.items()))
        change = self.dice.choice(("move", "again", "rename"))
        if change == "move":
            place = f"place {self.table.schema.version}"
            self.db.alter_table(self.name, groups=[group(place, columns={})], move={name: place})
        elif change == "again":
            home = self.table.schema.resolve(name).group.name
            self.db.alter_table(self.name, drop_columns=[name])
            self.put_nothing()
            self.db.alter_table(self.name, add_columns={home: {name: kind}})
        else:
            self.db.alter_table(self.name, rename={name: "other"})
            self.put_nothing()
            self.db.alter_table(self.name, rename={"other": name})

    def put_nothing(self) -> None:
        """Make some rows exist, in files that are written under a schema between two others."""
        self.table.put([dict(zip(self.shape.key, key, strict=True)) for key in self.some_keys()])
        self.table.flush()

    def split(self) -> None:
        with contextlib.suppress(ebla.CannotSplit):
            self.table.split()

    def some_keys(self) -> list[tuple[Any, ...]]:
        """Neighbours, or keys from anywhere."""
        if self.dice.random() < 0.5:
            begin = self.dice.randrange(len(self.rows))
            return self.rows[begin : begin + self.dice.randint(1, 12)]
        return self.dice.sample(self.rows, self.dice.randint(1, 8))

    def put(self, keys: list[tuple[Any, ...]], whole: bool = False) -> None:
        dice, shape = self.dice, self.shape
        columns = list(shape.columns)
        chosen = columns if whole else dice.sample(columns, dice.randint(1, len(columns)))
        kept = [key for key in keys if not whole or dice.random() < 0.9] or keys[:1]
        rows = []
        for key in kept:
            row = dict(zip(shape.key, key, strict=True)) | {name: value(shape.columns[name], dice) for name in chosen}
            if shape.cells and dice.random() < 0.3:
                row |= {name: bytes((dice.randint(0, 9),)) for name in dice.sample(shape.cells, 2)}
            rows.append(row)
        self.table.put(rows)

    def put_some(self) -> None:
        self.put(self.some_keys(), whole=self.dice.random() < 0.4)

    def erase(self) -> None:
        columns = None if self.dice.random() < 0.6 else [self.dice.choice([*self.shape.columns, *self.shape.cells])]
        self.table.erase_many(self.some_keys(), columns)

    def erase_range(self) -> None:
        begin = self.dice.randrange(len(self.rows))
        end = begin + self.dice.randint(1, 20)
        self.table.erase_range(self.rows[begin], self.rows[end] if end < len(self.rows) else None)

    def replace(self) -> None:
        keys = self.some_keys()
        name, kind = self.dice.choice(list(self.shape.columns.items()))
        rows = [dict(zip(self.shape.key, key, strict=True)) | {name: value(kind, self.dice)} for key in keys]
        self.table.put(rows, replace=True)

    def questions(self) -> Iterator[dict[str, Any]]:
        """Everything now; some of it now; everything or some as of before."""
        dice = self.dice
        yield {}
        names = [*self.shape.columns, *self.shape.cells]
        columns = dice.choice((None, [], dice.sample(names, 1), dice.sample(names, min(3, len(names)))))
        low, high = sorted(dice.sample(self.rows, 2))
        bounds = dice.choice(({}, {"start": low}, {"stop": high}, {"start": low, "stop": high}, {"prefix": low[:1]}))
        yield {"columns": columns, **bounds}
        for txn in dice.sample(self.txns, min(2, len(self.txns))):
            yield {"as_of": txn, **dice.choice(({}, {"columns": columns}))}


def limits_of(dice: random.Random) -> Limits:
    return Limits(
        section_records=dice.choice((10, 500_000)),
        section_records_min=dice.choice((1, 32_768)),
        clean_records_min=dice.choice((1, 1, 20)),
        clean_ranges_max=dice.choice((2, 64)),
        clean_reads_max=dice.choice((1, 8)),
        layer_records_min=dice.choice((1, 1, 20, 65_536)),
        layer_others_share_max=dice.choice((0.1, 0.5, 10)),
        layer_others_max=dice.choice((10, 1_000_000)),
        layer_records_max=dice.choice((100, 1_000_000, 1_000_000)),
    )


@pytest.mark.parametrize("seed", seeds(8, FRAME_SEEDS))
def test_a_frame_has_the_rows_of_a_scan(seed: int, root: str, spark: SparkSession) -> None:
    dice = random.Random(seed)
    limits = limits_of(dice)
    with ebla.open(root, settings=QUIET) as db:
        story = Story(db, SHAPES[seed % len(SHAPES)], dice)
        story.tell()
        for question in dice.sample(list(story.questions()), 2):
            planned = plan_scan(
                dice.choice((db, root)), "t", cores=2, limits=limits, merge_few=dice.random() < 0.5, **question
            )
            assert_same_rows(frame_of(planned, spark), story.table.scan(**question), story.table)


def test_a_plan_has_the_rows_of_a_scan(tmp_path: Path) -> None:
    """The same without Spark, which makes more of it: clean files are read by pyarrow instead."""
    met: Counter[str] = Counter()
    for seed in range(PLAN_SEEDS):
        dice = random.Random(1_000 + seed)
        limits = limits_of(dice)
        with ebla.open(tmp_path / str(seed), settings=QUIET) as db:
            story = Story(db, SHAPES[seed % len(SHAPES)], dice)
            story.tell()
            for question in story.questions():
                planned = plan_scan(db, "t", cores=2, limits=limits, **question)
                met.update("part" if read.ranges else "whole" for read in planned.plan.clean)
                met["dirty"] += len(planned.plan.dirty)
                met["masked"] += len(planned.layers.masks)
                met["row by row"] += len(planned.layers.sections)
                key = story.table.key_names
                expected = rows_of(to_spark(story.table.scan(**question).to_arrow()), key)
                assert rows_of(planned_rows(planned), key) == expected, f"seed {seed}, {question}"
    # A property that never met a clean part would prove little.
    assert min(met.values()) >= PLAN_SEEDS / 4, met


def test_a_plan_of_a_table_that_was_altered_and_cut_has_the_rows_of_a_scan(tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    for seed in range(ALTERED_SEEDS):
        dice = random.Random(5_000 + seed)
        limits = limits_of(dice)
        with ebla.open(tmp_path / str(seed), settings=QUIET) as db:
            story = Story(db, SHAPES[seed % len(SHAPES)], dice)
            story.tell()
            story.tell_more()
            states = [state for tablet in state_of(story.table).view.metadata.tablets for state in tablet.groups]
            met["restricted"] += any(ref.columns is not None for state in states for ref in state.fragments)
            for question in story.questions():
                planned = plan_scan(db, "t", cores=2, limits=limits, **question)
                met["clean"] += len(planned.plan.clean)
                met["dirty"] += len(planned.plan.dirty)
                key = story.table.key_names
                expected = rows_of(to_spark(story.table.scan(**question).to_arrow()), key)
                assert rows_of(planned_rows(planned), key) == expected, f"seed {seed}, {question}"
    assert met["restricted"] >= ALTERED_SEEDS / 4, met
    assert min(met["clean"], met["dirty"]) >= ALTERED_SEEDS / 4, met


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_a_frame_of_a_table_that_was_altered_and_cut_has_the_rows_of_a_scan(
    seed: int, root: str, spark: SparkSession
) -> None:
    dice = random.Random(7_000 + seed)
    limits = limits_of(dice)
    with ebla.open(root, settings=QUIET) as db:
        story = Story(db, SHAPES[seed % len(SHAPES)], dice)
        story.tell()
        story.tell_more()
        for question in dice.sample(list(story.questions()), 2):
            planned = plan_scan(
                dice.choice((db, root)), "t", cores=2, limits=limits, merge_few=dice.random() < 0.5, **question
            )
            assert_same_rows(frame_of(planned, spark), story.table.scan(**question), story.table)


def planned_rows(planned: SectionPlan) -> pa.Table:
    """Return the rows of a plan, as Spark would put them together."""
    batches = [batch for section in planned.sections for batch in read_section(planned.target, section)]
    parts = [pa.Table.from_batches(batches, planned.schema)]
    schema = planned.projection.schema
    for read in planned.plan.clean:
        row_name = schema.key[0].name if schema.has_simple_key else "_row"
        for file in read.files:
            stored = pq.read_table(f"{planned.target.root}/{file}")
            mask = planned.layers.masks.get(file)
            left_out = np.zeros(len(stored), np.bool_)
            if mask is not None:
                left_out = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(stored)].astype(np.bool_)
            if read.ranges:
                rows = [row.encode() if isinstance(row, str) else row for row in stored[row_name].to_pylist()]
                left_out |= ~np.array([any(part.contains(row) for part in read.ranges) for row in rows])
            stored = stored.filter(pa.array(~left_out))
            own = {output.name for output in planned.projection.outputs if output.group.id == read.group}
            arrays = []
            for field in planned.projection.arrow_schema:
                if field.name in stored.schema.names and (field.name in own or field.name in schema.key_names):
                    arrays.append(stored[field.name].cast(field.type))
                elif pa.types.is_map(field.type):
                    arrays.append(pa.array([[]] * len(stored), field.type))
                else:
                    arrays.append(pa.nulls(len(stored), field.type))
            parts.append(to_spark(pa.table(arrays, schema=planned.projection.arrow_schema)))
    return pa.concat_tables(parts)
