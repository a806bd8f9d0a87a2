"""The scripted run: steps that touch everything that writes a file, each with what it means to the reference model.

    create, put (durable, logged, none), partial and whole rows, cells, erase, erase_range, flush,
    split, join, drop, create again, increment, close and reopen, and more of the same

Settings are so small that log segments roll every few commits and METADATA is snapshotted and pruned. Flushes happen
where the story says so; `RESTLESS` settings let the background decide as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from ebla.model.declaration import Group, Schema
from ebla.model.schema_change import Alteration, altered
from ebla.settings import KIB, MIB, Settings
from tests.reference.reference import Cell, ReferenceTable
from tests.support.inside import engine_of

Kind = Literal["create", "clone", "drop", "alter", "commit", "reopen", "other"]

CALM = Settings(
    flush_bytes=16 * MIB,
    close_flush_bytes=1 * KIB,
    log_segment_bytes=3 * KIB,
    log_bytes_max=16 * MIB,
    recent_row_slots=1 << 8,
    metadata_snapshot_every=3,
    open_files_max=4,
    scan_batch_rows=5,
    lookup_at_once=True,
    background_compaction=False,  # or operations would come in another order each time
)
RESTLESS = replace(CALM, flush_bytes=2 * KIB, close_flush_bytes=0, log_bytes_max=8 * KIB, metadata_snapshot_every=2)

MIXED = Schema(
    key={"user": "string"},
    groups=[
        Group("profile", columns={"name": "string", "age": "int32"}, max_versions="all"),
        Group("extra", columns={"note": "string"}),
        Group("events", families=["click", "view"], max_versions=3),
    ],
)
PLAIN = Schema(columns={"v": "int64", "w": "string"})


@dataclass(frozen=True)
class Step:
    """One thing that the run does. `is_synced`: once it returns, no crash may undo it or any commit before it."""

    name: str
    kind: Kind
    table: str
    act: Callable[[Any], object]
    model: Callable[[ReferenceTable, int], object] | None = None
    is_synced: bool = True
    schema: Schema | None = None
    origin: str = ""


def create(table: str, schema: Schema, splits: list[Any] | None = None) -> Step:
    return Step(f"create {table}", "create", table, lambda db: db.create_table(table, schema, splits), schema=schema)


def clone(origin: str, table: str) -> Step:
    return Step(f"clone {origin} as {table}", "clone", table, lambda db: db.clone_table(origin, table), origin=origin)


def gc() -> Step:
    return Step("gc", "other", "", lambda db: db.gc(dry_run=False))


def drop(table: str) -> Step:
    return Step(f"drop {table}", "drop", table, lambda db: db.drop_table(table))


def put(table: str, rows: Any, wait: str = "durable", *, replace: bool = False) -> Step:
    return Step(
        f"put {table} {wait}",
        "commit",
        table,
        lambda db: db.table(table).put(rows, wait=wait, replace=replace),
        lambda model, txn: model.put(rows, txn, replace=replace),
        wait != "none",
    )


def put_cells(table: str, cells: list[Cell]) -> Step:
    arrow = pa.table(
        {
            "user": [cell.key[0] for cell in cells],
            "family": [cell.family for cell in cells],
            "qualifier": [cell.qualifier for cell in cells],
            "value": pa.array([cell.value for cell in cells], pa.binary()),
            "timestamp": pa.array([cell.timestamp for cell in cells], pa.int64()),
        }
    )
    return Step(
        f"put_cells {table}",
        "commit",
        table,
        lambda db: db.table(table).put_cells(arrow),
        lambda model, txn: model.put_cells(cells, txn),
    )


def erase(table: str, key: Any, columns: list[str] | None = None, wait: str = "durable") -> Step:
    return Step(
        f"erase {table} {wait}",
        "commit",
        table,
        lambda db: db.table(table).erase(key, columns, wait=wait),
        lambda model, txn: model.erase((key,), txn, columns),
        wait != "none",
    )


def erase_range(table: str, start: Any, stop: Any) -> Step:
    def ended(end: Any) -> tuple[Any, ...] | None:
        return None if end is None else (end,)

    return Step(
        f"erase_range {table}",
        "commit",
        table,
        lambda db: db.table(table).erase_range(start, stop),
        lambda model, txn: model.erase_range(ended(start), ended(stop), txn),
    )


def increment(table: str, key: Any, column: str, by: int) -> Step:
    return Step(
        f"increment {table}",
        "commit",
        table,
        lambda db: db.table(table).increment(key, column, by),
        lambda model, txn: model.increment((key,), column, by, txn),
    )


def alter(table: str, **request: Any) -> Step:
    def change(model: ReferenceTable, txn: int) -> None:
        model.alter(altered(model.schema, Alteration(**request), txn))

    return Step(f"alter {table}", "alter", table, lambda db: db.alter_table(table, **request), change)


def flush(table: str) -> Step:
    return Step(f"flush {table}", "other", table, lambda db: _with_lookups(db, db.table(table).flush()), is_synced=True)


def compact(table: str) -> Step:
    return Step(
        f"compact {table}", "other", table, lambda db: _with_lookups(db, db.table(table).compact()), is_synced=True
    )


def _with_lookups(db: Any, done: Any) -> None:
    """Make the lookup files of what was written, here and now."""
    engine_of(db).lookup_maker.round()


def split(table: str, at: Any) -> Step:
    return Step(f"split {table}", "other", table, lambda db: db.table(table).split(at))


def join(table: str, first: Any, last: Any) -> Step:
    return Step(f"join {table}", "other", table, lambda db: db.table(table).join(first, last))


def unload(table: str) -> Step:
    return Step(f"unload {table} and load it", "other", table, lambda db: unload_and_load(db, table))


def unload_and_load(db: Any, table: str) -> None:
    """Take a table offline and back; whatever happens on the way, it must not stay offline for the steps to come."""
    try:
        db.unload_table(table)
    finally:
        db.load_table(table)


def sync() -> Step:
    return Step("sync", "other", "", lambda db: db.sync())


def reopen() -> Step:
    return Step("reopen", "reopen", "", lambda db: None)


def plain_rows(begin: int, end: int, version: int) -> list[dict[str, Any]]:
    return [{"row": b"%04d" % n, "v": n * 100 + version, "w": f"text {n} " * 4} for n in range(begin, end)]


def story() -> list[Step]:
    """The whole run."""
    return [
        create("mixed", MIXED, ["h", "p"]),
        put(
            "mixed",
            [
                {"user": "ada", "name": "Ada", "age": 36, "click:home": b"1", "view:top": b"a"},
                {"user": "kurt", "name": "Kurt", "age": 42, "note": "logic"},
                {"user": "sofia", "note": "waves", "click:home": b"2"},
            ],
        ),
        put("mixed", {"user": "ada", "age": 37}),
        put("mixed", {"user": "emmy", "name": "Emmy", "click:ring": b"3"}, "none"),
        put("mixed", {"user": "kurt", "note": None, "view:top": b"b"}, "logged"),
        create("plain", PLAIN),
        put("plain", plain_rows(0, 12, 1)),
        flush("mixed"),
        erase("mixed", "sofia"),
        put_cells(
            "mixed",
            [
                Cell(("ada",), "click", "home", b"old", 5_000_000),
                Cell(("ada",), "click", "home", b"older", 4_000_000),
                Cell(("zuse",), "view", "z3", b"relay", 1_000_000),
            ],
        ),
        put("plain", plain_rows(6, 9, 2), "none"),
        split("mixed", "kurt"),
        put("mixed", {"user": "ada", "click:home": b"5"}, "none"),
        sync(),
        put("mixed", [{"user": "bob", "name": "Bob"}, {"user": "max", "name": "Max"}, {"user": "tim", "age": 1}]),
        erase_range("mixed", "b", "l"),
        put("mixed", [{"user": "kurt", "age": 43}, {"user": "rosa", "view:a": b"7"}]),
        erase("mixed", "ada", ["click:home", "age"], "logged"),
        join("mixed", "i", "l"),
        flush("mixed"),
        compact("mixed"),
        put("plain", plain_rows(20, 60, 3)),
        erase_range("plain", b"0025", None),
        drop("plain"),
        put("mixed", {"user": "ada", "click:home": b"8", "age": 38}, "logged"),
        create("plain", PLAIN, [b"0003"]),
        put("plain", plain_rows(0, 6, 4), "none"),
        put("plain", plain_rows(2, 4, 5)),
        flush("plain"),
        increment("mixed", "ada", "age", 4),
        put("mixed", {"user": "olga", "name": "Olga", "view:x": b"9"}, "none"),
        reopen(),
        put("mixed", {"user": "kurt", "name": "Gödel"}),
        put("mixed", {"user": "ada", "name": "Countess"}, replace=True),
        put("plain", plain_rows(3, 5, 6), "none"),
        put("mixed", [{"user": "ada", "view:x": b"10"}, {"user": "nils", "age": 5}], "none"),
        flush("mixed"),
        erase("plain", b"0004"),
        put("mixed", {"user": "ada", "view:x": b"11"}, "none"),
        compact("plain"),
        reopen(),
    ]


def story_of_care() -> list[Step]:
    """Clones that outlive their origin, compactions of both, and garbage collected after every one of them."""
    return [
        create("mixed", MIXED, ["h"]),
        put(
            "mixed",
            [
                {"user": "ada", "name": "Ada", "age": 36, "note": "engine", "click:home": b"1"},
                {"user": "kurt", "name": "Kurt", "view:top": b"b"},
            ],
        ),
        flush("mixed"),
        put("mixed", [{"user": "emmy", "age": 53}, {"user": "ada", "age": 37}], "logged"),
        erase_range("mixed", "k", "l"),
        put("mixed", {"user": "kurt", "note": "again"}, "none"),
        clone("mixed", "second"),
        put("mixed", {"user": "ada", "age": 38}, "none"),
        put("second", {"user": "ada", "age": 1_000, "click:home": b"2"}, "logged"),
        erase("second", "emmy", wait="none"),
        compact("mixed"),
        gc(),
        gc(),
        compact("second"),
        clone("second", "third"),
        gc(),
        drop("mixed"),
        gc(),
        gc(),
        put("third", {"user": "rosa", "name": "Rosa"}),
        drop("second"),
        gc(),
        compact("third"),
        gc(),
        reopen(),
        put("third", {"user": "zuse", "note": "relay"}, "none"),
        flush("third"),
        clone("third", "second"),
        gc(),
        reopen(),
    ]


def story_of_alterations() -> list[Step]:
    """Changes of the schema, with rows in files, in memory and in the log alone; the names stay the same in all."""
    return [
        create("mixed", MIXED, ["h"]),
        put(
            "mixed",
            [
                {"user": "ada", "name": "Ada", "age": 36, "note": "engine", "click:home": b"1", "view:top": b"a"},
                {"user": "kurt", "name": "Kurt", "note": "logic", "view:top": b"b"},
            ],
        ),
        flush("mixed"),
        put("mixed", {"user": "emmy", "age": 53, "note": "rings"}, "logged"),
        erase("mixed", "kurt", wait="none"),
        put("mixed", [{"user": "kurt", "note": "again"}, {"user": "ada", "click:home": b"2"}], "none"),
        alter("mixed", move={"note": "profile", "age": "extra"}, groups=[Group("seen", families=[])]),
        put("mixed", [{"user": "ada", "note": "new", "age": 37}, {"user": "rosa", "name": "Rosa"}], "none"),
        put("mixed", {"user": "emmy", "age": 54}, replace=True),
        alter(
            "mixed",
            move={"view": "seen"},
            drop_columns=["name"],
            add_columns={"profile": {"name": "string"}},
            change_types={"age": "int64"},
        ),
        put("mixed", {"user": "ada", "name": "Countess", "view:top": b"c"}, "logged"),
        compact("mixed"),
        put("mixed", {"user": "kurt", "age": 1 << 40, "click:home": b"3"}, "none"),
        alter(
            "mixed",
            move={"note": "extra", "view": "events"},
            drop_groups=["seen"],
            drop_families=["click"],
            add_families={"events": ["click"]},
        ),
        reopen(),
        put("mixed", {"user": "ada", "note": "last", "click:home": b"4"}),
        compact("mixed"),
    ]
