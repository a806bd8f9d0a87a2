"""Verify and repair: every planted damage is found, what can be mended is, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.cli import main
from ebla.metadata.values.check import FileFacts, check_load, examine
from ebla.metadata.values.table_metadata import FragmentRef, TableMetadata
from tests.client.damages import DAMAGES, ROWS, SCHEMA, Damage, current, plant, replace, tablet


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
    assert [finding.kind for finding in ebla.verify(root).findings] == ["checksum"]
    assert ebla.repair(root, dry_run=False).repaired
    with ebla.open(root) as database:
        assert database.table("users").scan().to_arrow().num_rows == len(ROWS)


def test_metadata_that_cannot_be_read_is_told(root: Path) -> None:
    metadata = current(root, "users")
    path = root / "metadata" / metadata.table_id / f"{metadata.txnid}.meta"
    path.write_bytes(path.read_bytes()[:-1])
    (finding,) = ebla.verify(root).findings  # and none that calls its files nobody's
    assert (finding.kind, finding.table) == ("metadata", "users")
    assert "from a backup" in finding.text
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
    assert [bool(check_load("t", gap, name, facts)) for name in names] == [True, True, False]
    end = tablet(2, first=b"k")(metadata)
    assert [bool(check_load("t", end, name, facts)) for name in names] == [False, True, True]
    missing = check_load("t", metadata, names[0], {})
    assert [finding.kind for finding in missing] == ["missing"]
    assert [finding.kind for finding in check_load("t", metadata, "unknown", facts)] == ["unknown tablet"]


def _pure() -> tuple[TableMetadata, dict[str, FileFacts]]:
    from ebla.metadata.values.table_metadata import initial_metadata

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


def test_a_log_that_is_ahead_of_metadata_is_told(root: Path) -> None:
    with ebla.open(root, settings=ebla.Settings(close_flush_bytes=1 << 30, background_compaction=False)) as database:
        users = database.table("users")
        users.put({"k": "a00", "v": -1})
        users.split("b")  # all of the tablet is in fragments then, and METADATA knows that it is gone
        users.put({"k": "a00", "v": -2})
        assert database.verify().is_clean
    assert ebla.verify(root).is_clean
    newer = current(root, "users")
    plant(root, lambda metadata: replace(metadata, retired=()))
    (finding,) = [finding for finding in ebla.verify(root).findings if finding.kind != "orphan"]
    assert (finding.kind, finding.table, finding.repair) == ("epoch", "users", "")
    assert "which METADATA does not know" in finding.text
    plant(root, lambda metadata: replace(newer, tablets=tuple(replace(t, epoch=0) for t in newer.tablets)))
    findings = [finding for finding in ebla.verify(root).findings if finding.kind != "orphan"]
    assert findings
    assert all("at epoch 1, and METADATA is at 0" in finding.text for finding in findings)
    with ebla.open(root) as database, pytest.raises(ebla.TableDamaged, match="led at epoch 1"):
        database.table("users")
    plant(root, lambda metadata: newer)
    assert ebla.verify(root).is_clean


def test_a_damaged_log_is_told(root: Path) -> None:
    with ebla.open(root, settings=ebla.Settings(close_flush_bytes=1 << 30)) as database:
        for n in range(3):
            database.table("users").put({"k": "a00", "v": n})
    (segment, *_) = sorted((root / "log").rglob("*.log"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(bytes(content))
    assert "log" in {finding.kind for finding in ebla.verify(root).findings}
