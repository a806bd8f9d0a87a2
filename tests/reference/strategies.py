"""What store and model are asked: table shapes, and strategies for rows, cells, ranges, projections and filters.

    Shape  --pools-->  rows(), batches(), cell_lists(), ranges(), projections(), filters()      Hypothesis
           `------->  random_rows(dice, count)                                                  plain seeds

Every column has a small pool of values and every table a small pool of keys, so that changes meet each other often;
the pools hold the awkward ones (empty, zero bytes, negative, extreme, not a number, long enough to fill a block).

Timestamps of cells are given relative to the start of the process: hours back, so that a purge by age of one hour has
something to decide, and one day ahead in the cell ``click:late`` alone, because a counter or an appended cell must not
stand behind the future.
"""

from __future__ import annotations

import datetime
import decimal
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from ebla.model.column_types import parse_type
from ebla.model.declaration import Group, Schema
from ebla.model.schema import TableSchema

from .reference import Cell, Key, Row, encode_counter

STARTED = time.time_ns() // 1_000
MINUTE = 60_000_000
HOUR = 60 * MINUTE
PAST = (0, 1, STARTED - 2 * HOUR, STARTED - 30 * MINUTE, STARTED - MINUTE)
FUTURE = (STARTED + 24 * HOUR, STARTED + 25 * HOUR)
LATE = "click:late"

CELL_VALUES = (b"", b"x", b"\x00\xff", encode_counter(0), encode_counter(-3), encode_counter(2**40), b"long " * 60)
POOLS: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "int8": (-128, -1, 0, 1, 127),
    "int32": (-(2**31) + 100, -1, 0, 1, 7, 2**31 - 100),
    "int64": (-(2**53), -1, 0, 1, 7, 2**53),
    "float64": (-math.inf, -1.5, -0.0, 0.0, 0.1, 1e300, math.inf, math.nan),
    "string": ("", "a", "a\x00", "Ünï", "\U0001d11e", "long " * 60),
    "binary": (b"", b"a", b"a\x00", b"\xff\xff", b"long " * 60),
    "date32": (datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(2026, 1, 1)),
    "timestamp[us]": (datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime.datetime(2026, 1, 1, 12)),
    "decimal128(10, 2)": (decimal.Decimal("-1.50"), decimal.Decimal("0.00"), decimal.Decimal("99999999.99")),
    "list<int32>": ([], [1], [1, None, -1]),
    "struct<x: int32, s: string>": ({"x": 1, "s": None}, {"x": None, "s": "s"}),
}
ORDERED = ("int8", "int32", "int64", "float64", "string", "binary", "date32", "timestamp[us]", "decimal128(10, 2)")
ADDABLE = {"int32": (1, -1, 10), "int64": (1, -1, 10**6), "float64": (0.5, -1.0)}
APPENDABLE = {"string": ("", "s", "ü\x00"), "binary": (b"", b"b", b"\x00")}

WAITS = ("durable", "durable", "logged", "none")
ARROW_FORMS = ("table", "batch", "ipc", "pandas", "polars", "map", "list")

BINARY_KEYS = (b"", b"\x00", b"a", b"a\x00", b"a\x00\x01", b"ab", b"b", b"m", b"\xff", b"\xff\xff", b"\xff\xff\xff")
STRING_KEYS = ("", "\x00", "a", "a\x00", "aa", "ab", "b", "m", "é", "\ue000", "\U0001d11e", "\U0010ffff")


@dataclass(frozen=True)
class Shape:
    """A kind of table, and what can be put into it."""

    name: str
    schema: Schema
    keys: tuple[Key, ...]
    cells: tuple[str, ...] = ()
    splits: tuple[Any, ...] | None = None
    # Rows vanish within milliseconds of being written: what a read sees depends on the very moment it was made.
    expires: bool = False
    types: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        declared = dict(self.schema.columns or {})
        for group in self.schema.groups:
            declared.update(group.columns or {})
        self.types.update({name: str(kind) for name, kind in declared.items()})

    @property
    def numbered(self) -> TableSchema:
        """The schema as the store numbers it."""
        return self.schema.number()

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(self.schema.key)

    @property
    def families(self) -> tuple[str, ...]:
        """The families of which cells are put."""
        return tuple(dict.fromkeys(name.partition(":")[0] for name in self.cells if ":" in name))

    @property
    def columns(self) -> tuple[str, ...]:
        """Everything a row may give besides its key."""
        return (*self.types, *self.cells)

    def pool(self, name: str) -> tuple[Any, ...]:
        """Return the values that a column or cell takes; typed columns take null too."""
        return (None, *POOLS[self.types[name]]) if name in self.types else CELL_VALUES

    def key_row(self, key: Key) -> Row:
        """Return the key columns by name."""
        return dict(zip(self.key_names, key, strict=True))

    # --- strategies ---------------------------------------------------------------------------

    def key_strategy(self) -> st.SearchStrategy[Key]:
        """Draw a key, the first few of the pool more often, so that what is written meets what was written before."""
        return st.sampled_from(self.keys[:3]) | st.sampled_from(self.keys)

    def rows(self) -> st.SearchStrategy[Row]:
        """Draw a row that gives some columns and leaves the others untouched."""
        most = min(3, len(self.columns))
        # Without a columns group there is no way to say that a row without cells exists.
        names = st.lists(st.sampled_from(self.columns), unique=True, min_size=0 if self.types else 1, max_size=most)
        return st.builds(
            lambda key, values: self.key_row(key) | values,
            self.key_strategy(),
            names.flatmap(lambda chosen: st.fixed_dictionaries({n: st.sampled_from(self.pool(n)) for n in chosen})),
        )

    def row_lists(self) -> st.SearchStrategy[list[Row]]:
        """Draw rows of one batch, each with columns of its own, now and then two of one key."""
        return st.lists(self.rows(), min_size=1, max_size=4)

    def batches(self) -> st.SearchStrategy[list[Row]]:
        """Draw rows of one batch that all give the same columns, as Arrow has it; a cell may be None for "no cell"."""
        most = min(3, len(self.columns))
        names = st.lists(st.sampled_from(self.columns), unique=True, min_size=0 if self.types else 1, max_size=most)

        def rows(chosen: list[str]) -> st.SearchStrategy[list[Row]]:
            values = {}
            for name in chosen:
                # A table of cells alone needs one cell in every row at least.
                may_lack = name in self.cells and (self.types or name != chosen[0])
                values[name] = st.sampled_from((None, *self.pool(name)) if may_lack else self.pool(name))
            row = st.builds(
                lambda key, given: self.key_row(key) | given, self.key_strategy(), st.fixed_dictionaries(values)
            )
            return st.lists(row, min_size=1, max_size=5)

        return names.flatmap(rows)

    def cell_lists(self) -> st.SearchStrategy[list[Cell]]:
        """Draw the lines of a `put_cells`: with a timestamp, without, or some of each."""

        def cell(name: str, stamped: bool) -> st.SearchStrategy[Cell]:
            family, colon, qualifier = name.partition(":")
            stamps = st.sampled_from((None, *(FUTURE if name == LATE else PAST)) if stamped else (None,))
            place = (st.just(family), st.just(qualifier)) if colon else (st.just(""), st.just(name))
            return st.builds(Cell, self.key_strategy(), *place, st.sampled_from(CELL_VALUES), stamps)

        def lines(stamped: bool) -> st.SearchStrategy[list[Cell]]:
            one = st.sampled_from(self.cells).flatmap(lambda name: cell(name, stamped))
            return st.lists(one, min_size=1, max_size=5)

        return st.sampled_from((True, True, False)).flatmap(lines)

    def ranges(self) -> st.SearchStrategy[tuple[Key | None, Key | None]]:
        """Draw start and stop: open, a whole key, or the first columns of one; also the wrong way round."""
        whole = self.key_strategy()
        end = st.none() | whole
        if len(self.key_names) > 1:
            end = end | st.builds(lambda key, n: key[:n], whole, st.integers(1, len(self.key_names) - 1))
        return st.tuples(end, end)

    def prefixes(self) -> st.SearchStrategy[Any]:
        """Draw a prefix: leading columns of the key, or leading bytes where the key is one string."""
        whole = self.key_strategy()
        if len(self.key_names) > 1:
            return st.builds(lambda key, n: key[:n], whole, st.integers(1, len(self.key_names)))
        return st.builds(lambda key, n: key[0][:n], whole, st.integers(1, 2)).filter(len)

    @property
    def has_prefixes(self) -> bool:
        """Whether it makes sense to ask for a prefix: an integer alone has none."""
        return len(self.key_names) > 1 or isinstance(self.keys[0][0], (str, bytes))

    def projections(self) -> st.SearchStrategy[list[str] | None]:
        """Draw the columns to read: all, or some columns, cells and families, or nothing but the key."""
        families = [name for family in self.families for name in (f"{family}:", family)]
        declared = {family for group in self.schema.groups for family in group.families or ()}
        # A bare name in a `*` group is a cell of the unnamed family, unless the family is declared.
        names = [*self.columns, *(name for name in families if name.endswith(":") or name in declared)]
        unique = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique_by=lambda name: name.removesuffix(":"))
        return st.none() | unique | st.sampled_from(([], [self.key_names[0]], [self.key_names[-1], names[0]]))

    def erasable(self) -> st.SearchStrategy[list[str]]:
        """Draw columns to erase. Where rows expire, whether a typed column is erased depends on the moment."""
        typed = () if self.expires else tuple(self.types)
        names = [*typed, *self.cells, *(f"{family}:" for family in self.families)]
        return st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)

    def filters(self, columns: Sequence[str] | None) -> st.SearchStrategy[Filter]:
        """Draw a filter on the key and on columns that are read; on any where nothing but the key is."""
        read: Sequence[str] = list(self.types)
        if columns is not None and not set(columns) <= set(self.key_names):
            read = [name for name in columns if name in self.columns]
        tests = [self._test(name, str(kind), [key[n] for key in self.keys]) for n, (name, kind) in self._key_types()]
        tests += [self._test(name, self.types.get(name, "binary"), self.pool(name)) for name in read]
        return st.recursive(st.one_of(tests), combine, max_leaves=3)

    def _key_types(self) -> Sequence[tuple[int, tuple[str, Any]]]:
        return list(enumerate(self.schema.key.items()))

    def _test(self, name: str, kind: str, values: Sequence[Any]) -> st.SearchStrategy[Filter]:
        given = [value for value in values if value is not None]
        ways = ["null", "valid"]
        if kind in ORDERED:
            ways += ["==", "!=", "<", ">="]
        return st.builds(Filter, st.sampled_from(ways), st.just(name), st.sampled_from(given), st.just(kind))

    # --- plain seeds --------------------------------------------------------------------------

    def random_rows(self, dice: random.Random, count: int) -> list[Row]:
        """Return rows with columns of their own from a seed: cheaper than drawing each value."""
        rows = []
        for _ in range(count):
            least = 0 if self.types else 1
            names = dice.sample(self.columns, dice.randint(least, min(4, len(self.columns))))
            rows.append(self.key_row(dice.choice(self.keys)) | {name: dice.choice(self.pool(name)) for name in names})
        return rows


# --- filters -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filter:
    """A condition that can be said twice: as a pyarrow expression, and as plain Python with its three truths."""

    way: str
    column: str = ""
    value: Any = None
    kind: str = ""
    parts: tuple[Filter, ...] = ()

    def expression(self) -> pc.Expression:
        """Return the condition for the store."""
        if self.parts:
            first, *rest = [part.expression() for part in self.parts]
            return ~first if self.way == "not" else first & rest[0] if self.way == "and" else first | rest[0]
        column = pc.field(self.column)
        if self.way in ("null", "valid"):
            return column.is_null() if self.way == "null" else column.is_valid()
        value = pc.scalar(pa.scalar(self.value, parse_type(self.kind)))
        match self.way:
            case "==":
                return column == value
            case "!=":
                return column != value
            case "<":
                return column < value
        return column >= value

    def __call__(self, row: Row) -> bool | None:
        if self.parts:
            truths = [part(row) for part in self.parts]
            if self.way == "not":
                return None if truths[0] is None else not truths[0]
            decided = self.way == "or"
            return decided if decided in truths else None if None in truths else not decided
        found = row.get(self.column)
        if self.way in ("null", "valid"):
            return (found is None) == (self.way == "null")
        if found is None:
            return None
        return bool(
            {"==": found == self.value, "!=": found != self.value, "<": found < self.value, ">=": found >= self.value}[
                self.way
            ]
        )


def combine(inner: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    """Draw "and", "or" or "not" over filters."""
    two = st.builds(
        lambda way, left, right: Filter(way, parts=(left, right)), st.sampled_from(("and", "or")), inner, inner
    )
    return two | st.builds(lambda part: Filter("not", parts=(part,)), inner)


# --- the shapes ----------------------------------------------------------------------------------

CLICKS = ("click:a", "click:b", "click:n", LATE)
VIEWS = ("view:a", "view:n")
SHAPES: tuple[Shape, ...] = (
    Shape(
        "plain",
        Schema(columns={"n": "int64", "s": "string", "f": "float64"}),
        keys=tuple((key,) for key in BINARY_KEYS),
        splits=(b"a\x00", b"m", b"\xff\xff"),
    ),
    Shape(
        "every_type",
        Schema(
            key={"name": "string"},
            columns={f"c{n}": kind for n, kind in enumerate(POOLS)},
        ),
        keys=tuple((key,) for key in STRING_KEYS),
    ),
    Shape(
        "composite_key",
        Schema(
            key={"user": "string", "day": "date32", "n": "int16"},
            groups=[Group("main", columns={"x": "int64", "y": "binary"}, max_versions="all")],
        ),
        keys=tuple(
            (user, day, n)
            for user in ("", "a", "a\x00", "b")
            for day in (datetime.date(1969, 12, 31), datetime.date(2026, 1, 1))
            for n in (-300, -1, 0, 255)
        ),
        splits=(("a",), ("a", datetime.date(2026, 1, 1)), ("b",)),
    ),
    Shape(
        "two_groups",
        Schema(
            key={"at": "timestamp[us]", "ratio": "float64", "flag": "bool", "tag": "binary"},
            groups=[
                Group("left", columns={"x": "int64", "y": "string"}),
                Group("right", columns={"z": "int32", "w": "binary"}, compression="zstd"),
            ],
        ),
        keys=tuple(
            (at, ratio, flag, tag)
            for at in (datetime.datetime(1960, 1, 1), datetime.datetime(2026, 1, 1))
            for ratio in (-math.inf, -1.5, 0.0, 2.5)
            for flag in (False, True)
            for tag in (b"", b"\x00")
        ),
    ),
    Shape(
        "moving",
        Schema(
            key={"name": "string"},
            groups=[
                Group("left", columns={"x": "int64", "y": "string"}, max_versions="all"),
                Group("right", columns={"z": "int32"}, max_versions="all"),
                Group("events", families=["click"]),
                Group("views", families=["view"]),
            ],
        ),
        keys=tuple((key,) for key in STRING_KEYS[:6]),
        cells=(*CLICKS, *VIEWS),
        splits=("a\x00",),
    ),
    Shape(
        "columns_and_cells",
        Schema(
            key={"name": "string"},
            groups=[
                Group("events", families=["click", "view"]),
                Group("profile", columns={"n": "int64", "s": "string"}, max_versions="all"),
            ],
        ),
        keys=tuple((key,) for key in STRING_KEYS),
        cells=(*CLICKS, *VIEWS),
        splits=("a\x00", "m"),
    ),
    Shape(
        "wildcard",
        Schema(
            groups=[
                Group("main", columns={"n": "int64"}),
                Group("known", families=["click"]),
                Group("rest", families=["*"], compression="none"),
            ],
        ),
        keys=tuple((key,) for key in BINARY_KEYS),
        cells=("click:a", "click:n", "other:a", "other:\x01", "zzz:ü", "loose", "n2"),
    ),
    Shape(
        "cells_only",
        Schema(key={"id": "int64"}, groups=[Group("events", families=["click", "view"])]),
        keys=tuple((key,) for key in (-(2**63), -300, -1, 0, 1, 255, 256, 2**63 - 1)),
        cells=(*CLICKS, *VIEWS),
        splits=(-1, 1),
    ),
    Shape(
        "purging",
        Schema(
            groups=[
                Group("main", columns={"n": "int64", "s": "string"}, max_versions=2),
                Group("either", families=["click"], max_versions=2, max_age="1h"),
                Group("both", families=["view"], max_versions=1, max_age="1h", purge_join="and"),
            ]
        ),
        keys=tuple((key,) for key in BINARY_KEYS[:6]),
        cells=("click:a", "click:n", "view:a", "view:n"),
    ),
    Shape(
        "expiring",
        Schema(
            groups=[
                Group("either", columns={"n": "int64", "s": "string"}, max_versions=2, max_age="10ms"),
                Group("both", columns={"m": "int64"}, max_versions=1, max_age="10ms", purge_join="and"),
                Group("events", families=["click"], max_age="10ms"),
            ]
        ),
        keys=tuple((key,) for key in BINARY_KEYS[:5]),
        cells=("click:a", "click:n"),
        expires=True,
    ),
)
