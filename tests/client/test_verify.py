"""Verify and repair: every planted damage is found, what can be mended is, and nothing else is touched."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ebla
from ebla.cli import main
from ebla.client.coordination_place import connect_at
from ebla.clock import SystemClock
from ebla.metadata.check import FileFacts, check_load, examine
from ebla.metadata.directory import TableDirectory
from ebla.metadata.store import MetadataStore
from ebla.metadata.table_config import config_path, encode_config
from ebla.metadata.table_metadata import (
    FragmentRef,
    GroupState,
    JoinPlan,
    RangeErasure,
    Replica,
    SplitPlan,
    TableMetadata,
    TabletMetadata,
)
from ebla.metadata.transaction_file import SnapshotRecord, encode
from ebla.storage.files import LocalFiles

replace = msgspec.structs.replace
SCHEMA = ebla.Schema(key={"k": "string"}, groups=[ebla.Group("g", columns={"v": "int32"})])
ROWS = [{"k": f"{letter}{number:02d}", "v": number} for letter in "abcdefghijkl" for number in range(10)]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two tables; the first has three tablets, and each of those two fragments of its own."""
    root = tmp_path_factory.mktemp("healthy")
    with ebla.open(root, settings=ebla.Settings(background_compaction=False)) as database:
        for name in ("users", "other"):
            table = database.create_table(name, SCHEMA, splits=["d", "h"])
            for half in (ROWS[::2], ROWS[1::2]):
                for letters in ("abc", "defg", "hijkl"):
                    table.put([row for row in half if row["k"][0] in letters])
                    table.flush()
    return root


@pytest.fixture
def root(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "store"))


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
    Damage("a tablet is missing in the middle", tablets(lambda t: (t[0], t[2])), ("hole",), False),
    Damage("neighbours share rows", tablet(1, first=b"c"), ("overlap",), False),
    Damage("wrong first, after its last", tablet(1, first=b"i"), ("hole",), True),
    Damage("two tablets have the last rows", tablet(1, last=None), ("overlap",), False),
    Damage("tablets out of order", tablets(lambda t: (t[2], t[0], t[1])), ("order",), True),
    Damage("no tablets", tablets(lambda t: ()), ("no tablets",), False),
    Damage("two tablets of one id", lambda m: tablet(1, id=m.tablets[0].id)(m), ("duplicate id",), False),
    Damage("two replicas on one server", tablet(0, replicas=TWO_REPLICAS), ("replicas",), True),
    Damage("a split plan that divides nothing", tablet(1, split=SplitPlan(b"z", ("x", "y"))), ("split",), True),
    Damage("a join plan of a running tablet", tablet(1, join=JoinPlan("x", "y", "z")), ("plan",), True),
    Damage("an epoch below zero", tablet(1, epoch=-1), ("tablet",), False),
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


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_planted_damage_is_found_and_mended_if_nothing_is_lost_by_it(root: Path, damage: Damage) -> None:
    damaged = plant(root, damage.plant)
    untouched = current(root, "other")
    report = ebla.verify(root)
    findings = [finding for finding in report.findings if finding.kind not in ("not mended", "orphan")]
    assert tuple(dict.fromkeys(finding.kind for finding in findings)) == damage.kinds
    assert all(finding.table == "users" for finding in findings)
    assert any(finding.repair for finding in findings) == damage.is_mended
    assert ebla.repair(root) == report
    assert current(root, "users") == damaged  # a dry run
    assert ebla.repair(root, dry_run=False).repaired == damage.is_mended
    assert current(root, "other") == untouched
    if not damage.is_mended:
        assert current(root, "users") == damaged
        return
    after = ebla.verify(root)
    assert after.is_clean
    mended = current(root, "users")
    assert mended.sequence == damaged.sequence + 1
    with ebla.open(root) as database:
        assert database.table("users").scan().to_arrow().num_rows == len(ROWS)
        database.table("users").put({"k": "d999", "v": 1})
        assert database.table("users").get("d999") is not None


def test_a_healthy_store_has_nothing_to_tell_and_is_left_as_it_is(root: Path) -> None:
    before = current(root, "users")
    report = ebla.verify(root)
    assert report == ebla.VerifyReport(2, 12, ())
    assert not ebla.repair(root, dry_run=False).repaired
    assert current(root, "users") == before


def test_files_that_are_damaged_foreign_or_nobodys_are_told(root: Path) -> None:
    users, other = current(root, "users"), current(root, "other")
    files = list(dict.fromkeys(users.files()))
    content = bytearray((root / files[0]).read_bytes())
    content[-20] ^= 1
    (root / files[0]).write_bytes(bytes(content))
    (root / files[1]).unlink()
    foreign = (root / next(iter(other.files()))).read_bytes()
    (root / files[2]).write_bytes(foreign)
    (root / files[0]).with_name("nobody.parquet").write_bytes(b"")
    kinds = {finding.file: finding.kind for finding in ebla.verify(root).findings}
    assert kinds.pop(files[0].rpartition("/")[0] + "/nobody.parquet") == "orphan"
    assert kinds == {files[0]: "unreadable", files[1]: "missing", files[2]: "unreadable"}
    assert not ebla.repair(root, dry_run=False).repaired


def test_a_file_of_another_table_is_foreign() -> None:
    metadata, facts = _pure()
    (file,) = set(metadata.files())
    found = examine("t", metadata, {file: replace_facts(facts[file], table="someone")}).findings
    assert [finding.kind for finding in found] == ["foreign"]


def test_a_wrong_checksum_is_found_and_saved_anew(root: Path) -> None:
    plant(root, lambda metadata: metadata, wrong_checksum=True)
    with pytest.raises(ebla.Corruption):
        ebla.open(root)
    assert [finding.kind for finding in ebla.verify(root).findings] == ["checksum"]
    assert ebla.repair(root, dry_run=False).repaired
    with ebla.open(root) as database:
        assert database.table("users").scan().to_arrow().num_rows == len(ROWS)


def test_metadata_that_cannot_be_read_is_told(root: Path) -> None:
    metadata = current(root, "users")
    path = root / "metadata" / metadata.table_id / f"{metadata.txnid}.meta"
    path.write_bytes(path.read_bytes()[:-1])
    assert next(finding.kind for finding in ebla.verify(root).findings) == "metadata"
    assert not ebla.repair(root, dry_run=False).repaired


def test_a_store_can_be_verified_while_it_is_written_but_not_repaired(root: Path) -> None:
    with ebla.open(root) as database:
        database.table("users").put({"k": "x", "v": 1})
        database.table("users").flush()
        assert ebla.verify(root).is_clean
        assert database.verify().is_clean
        with pytest.raises(ebla.StoreLocked):
            ebla.repair(root, dry_run=False)
    with pytest.raises(ebla.StoreNotFound):
        ebla.verify(root / "nothing")


def test_a_tablet_is_loaded_only_if_its_neighbours_meet_it() -> None:
    metadata, facts = _pure()
    names = [t.id for t in metadata.tablets]
    assert [check_load("t", metadata, name, facts) for name in names] == [[], [], []]
    gap = tablet(1, first=b"f")(metadata)
    assert [bool(check_load("t", gap, name, facts)) for name in names] == [True, True, True]
    end = tablet(2, first=b"k")(metadata)
    assert [bool(check_load("t", end, name, facts)) for name in names] == [False, True, True]
    missing = check_load("t", metadata, names[0], {})
    assert [finding.kind for finding in missing] == ["missing"]
    assert [finding.kind for finding in check_load("t", metadata, "unknown", facts)] == ["unknown tablet"]


def _pure() -> tuple[TableMetadata, dict[str, FileFacts]]:
    from ebla.metadata.table_metadata import initial_metadata

    metadata = initial_metadata("id", SCHEMA.number(), ["1", "2", "3"], [b"d", b"h"]).with_txnid("x", 1)
    fragment = FragmentRef("fragments/id/f.parquet", 3, 100, b"a", b"c", 1, 2, 1)
    (state,) = metadata.tablets[0].groups
    metadata = tablet(0, groups=(replace(state, fragments=(fragment,)),))(metadata)
    return metadata, {fragment.file: FileFacts(100, "", "id", 3, b"a", b"c", 1, 2)}


def replace_facts(facts: FileFacts, **changes: Any) -> FileFacts:
    import dataclasses

    return dataclasses.replace(facts, **changes)


def test_the_command_line_tells_plans_and_mends(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--store", str(root)])
        return int(left.value.code or 0), capsys.readouterr().out

    assert run("verify") == (0, "2 table(s), 12 file(s), 0 finding(s)\n")
    plant(root, tablet(1, first=b"f"))
    code, said = run("verify")
    assert code == 6
    assert "hole: users: no tablet has the rows from" in said
    code, said = run("repair")
    assert "-> let" in said
    assert said.endswith("nothing was changed\n")
    assert run("repair", "--apply")[1].endswith("repaired\n")
    assert run("verify", "--json")[0] == 0
