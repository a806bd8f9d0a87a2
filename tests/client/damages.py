"""Damages of METADATA to plant in a store of two tables, and how verifying should judge each."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import ebla
from ebla.client.embedded.coordination_place import connect_at
from ebla.clock import SystemClock
from ebla.metadata.server.directory import TableDirectory
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.values.table_config import config_path, encode_config
from ebla.metadata.values.table_metadata import (
    FragmentRef,
    GroupState,
    JoinPlan,
    RangeErasure,
    Replica,
    SplitPlan,
    TableMetadata,
    TabletMetadata,
)
from ebla.metadata.values.transaction_file import SnapshotRecord, encode
from ebla.storage.files.local_files import LocalFiles

replace = msgspec.structs.replace
SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"v": "int32"})])
ROWS = [{"k": f"{letter}{number:02d}", "v": number} for letter in "abcdefghijkl" for number in range(10)]


def make_store(root: Path) -> None:
    """Make a store of two tables; each has three tablets, and each of those two fragments of its own."""
    with ebla.open(root, settings=ebla.Settings(background_compaction=False)) as database:
        for name in ("users", "other"):
            table = database.create_table(name, SCHEMA, splits=["d", "h"])
            for half in (ROWS[::2], ROWS[1::2]):
                for letters in ("abc", "defg", "hijkl"):
                    table.put([row for row in half if row["k"][0] in letters])
                    table.flush()


def current(root: Path, table: str) -> TableMetadata:
    with connect_at(root, SystemClock(), read_only=True) as coordination:
        directory = TableDirectory(coordination, SystemClock())
        table_id = directory.find(table)
        store = MetadataStore(LocalFiles(root))
        return store.load_anyway(table_id, directory.read(table_id)[0].metadata_txnid)[0]


def plant(root: Path, damage: Callable[[TableMetadata], TableMetadata], wrong_checksum: bool = False) -> TableMetadata:
    """Save METADATA that no server would: as a fault of the program could."""
    with connect_at(root, SystemClock()) as coordination:
        directory = TableDirectory(coordination, SystemClock())
        table_id = directory.find("users")
        config, version = directory.read(table_id)
        former = current(root, "users")
        damaged = replace(damage(former), txnid=str(uuid.uuid4()), sequence=former.sequence + 1)
        record = SnapshotRecord(former.txnid, damaged.checksum ^ wrong_checksum, damaged)
        MetadataStore(LocalFiles(root)).write(table_id, damaged.txnid, encode(record))
        changed = replace(config, metadata_txnid=damaged.txnid)
        coordination.compare_and_set(config_path(table_id), encode_config(changed), version)
    return damaged


# --- the damages ---------------------------------------------------------------------------------


def tablet(number: int, **changes: Any) -> Callable[[TableMetadata], TableMetadata]:
    """Change something of one tablet."""

    def damage(metadata: TableMetadata) -> TableMetadata:
        tablets = list(metadata.tablets)
        tablets[number] = replace(tablets[number], **changes)
        return replace(metadata, tablets=tuple(tablets))

    return damage


def group(number: int, change: Callable[[GroupState], GroupState]) -> Callable[[TableMetadata], TableMetadata]:
    def damage(metadata: TableMetadata) -> TableMetadata:
        (state,) = metadata.tablets[number].groups
        return tablet(number, groups=(change(state),))(metadata)

    return damage


def reference(number: int, change: Callable[[FragmentRef], FragmentRef]) -> Callable[[TableMetadata], TableMetadata]:
    return group(number, lambda s: replace(s, fragments=(change(s.fragments[0]), *s.fragments[1:])))


def ref(number: int, **changes: Any) -> Callable[[TableMetadata], TableMetadata]:
    return reference(number, lambda fragment: replace(fragment, **changes))


def more_groups(change: Callable[[GroupState], GroupState]) -> Callable[[TableMetadata], TableMetadata]:
    def damage(metadata: TableMetadata) -> TableMetadata:
        groups = metadata.tablets[0].groups
        return tablet(0, groups=(*groups, change(groups[0])))(metadata)

    return damage


def erasure(wrong: RangeErasure) -> Callable[[TableMetadata], TableMetadata]:
    return group(0, lambda state: replace(state, erasures=(wrong,)))


def fragment_of(number: int) -> Callable[[TableMetadata], TableMetadata]:
    """Give the first tablet a reference of another one, or of its own once more."""

    def damage(metadata: TableMetadata) -> TableMetadata:
        other = metadata.tablets[number].groups[0].fragments[0]
        return group(0, lambda state: replace(state, fragments=(*state.fragments, other)))(metadata)

    return damage


TWO_REPLICAS = (Replica("s", "1"), Replica("s", "2"))


def tablets(change: Callable[[tuple[TabletMetadata, ...]], tuple[TabletMetadata, ...]]) -> Callable[..., TableMetadata]:
    return lambda metadata: replace(metadata, tablets=change(metadata.tablets))


def half_a_split_first_written(t: tuple[TabletMetadata, ...]) -> tuple[TabletMetadata, ...]:
    """Case 1 of the note: the new first half is there, and the whole still is."""
    return t[0], replace(t[1], id="half", last=b"f"), t[1], t[2]


def half_with_something_of_its_own(t: tuple[TabletMetadata, ...]) -> tuple[TabletMetadata, ...]:
    (state,) = t[1].groups
    more = replace(state, erasures=(RangeErasure(b"d", b"e", 1),))
    return t[0], replace(t[1], id="half", last=b"f", groups=(more,)), t[1], t[2]


@dataclass(frozen=True)
class Damage:
    name: str
    plant: Callable[[TableMetadata], TableMetadata]
    kinds: tuple[str, ...]
    is_mended: bool


DAMAGES = [
    Damage("case 1: the first half of a split was written", tablets(half_a_split_first_written), ("overlap",), True),
    Damage("case 2: the second half of a split was written", tablet(1, first=b"f"), ("hole",), True),
    Damage("a half that has something of its own", tablets(half_with_something_of_its_own), ("overlap",), False),
    Damage("hole at the beginning", tablet(0, first=b"b"), ("hole",), True),
    Damage("hole at the end", tablet(2, last=b"k"), ("hole",), True),
    Damage("a tablet is missing in the middle", tablets(lambda t: (t[0], t[2])), ("hole", "epoch"), False),
    Damage("neighbours share rows", tablet(1, first=b"c"), ("overlap",), False),
    Damage("wrong first, after its last", tablet(1, first=b"i"), ("hole",), True),
    Damage("two tablets have the last rows", tablet(1, last=None), ("overlap",), False),
    Damage("tablets out of order", tablets(lambda t: (t[2], t[0], t[1])), ("order",), True),
    Damage("no tablets", tablets(lambda t: ()), ("no tablets", "epoch"), False),
    Damage("two tablets of one id", lambda m: tablet(1, id=m.tablets[0].id)(m), ("duplicate id", "epoch"), False),
    Damage("two replicas on one server", tablet(0, replicas=TWO_REPLICAS), ("replicas",), True),
    Damage("a split plan that divides nothing", tablet(1, split=SplitPlan(b"z", ("x", "y"))), ("split",), True),
    Damage("a join plan of a running tablet", tablet(1, join=JoinPlan("x", "y", "z")), ("plan",), True),
    Damage("an epoch below zero", tablet(1, epoch=-1), ("tablet", "epoch"), False),
    Damage("an empty state of no group", more_groups(lambda state: GroupState(99)), ("group",), True),
    Damage("a group that the schema lacks", group(0, lambda s: replace(s, group=99)), ("group",), False),
    Damage("a group state twice", more_groups(lambda state: state), ("group",), True),
    Damage("two different states of a group", more_groups(lambda s: replace(s, flushed=999)), ("group",), False),
    Damage("flushed below zero", group(0, lambda s: replace(s, flushed=-5, floor_txn=-1)), ("numbers",), True),
    Damage("an erasure of nothing", erasure(RangeErasure(b"b", b"a", 1)), ("erasure",), True),
    Damage("an erasure without a txn", erasure(RangeErasure(b"a", b"b", 0)), ("erasure",), True),
    Damage("a reference twice", fragment_of(0), ("twice",), True),
    Damage("a reference of another tablet", fragment_of(2), ("outside",), True),
    Damage("a file that is not there", ref(0, file="fragments/x/y.parquet"), ("missing",), False),
    Damage("a file of the future", ref(0, schema_version=7), ("future",), False),
    Damage("a wrong size", ref(0, bytes=17), ("size",), False),
    Damage("a wrong number of rows", ref(0, rows=1), ("reference",), True),
    Damage("a range that hides rows", ref(0, first=b"b00"), ("reference",), True),
    Damage("txns the wrong way round", ref(0, txn_min=9, txn_max=8), ("reference",), True),
]  # fmt: skip
