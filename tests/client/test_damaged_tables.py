"""A store of which one table is damaged: that table is refused, or a tablet of it, and everything else is served."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.cli import main
from tests.client.damages import DAMAGES, ROWS, SCHEMA, Damage, plant, ref, tablet, tablets

TABLETS = {"abc": ("a", "d"), "defg": ("d", "h"), "hijkl": ("h", None)}
# These leave no tablet that could be told apart or found; a file that is not right is found when it is read.
REFUSED = (
    "no tablets",
    "tablets out of order",
    "two tablets of one id",
    "wrong first, after its last",
    "a tablet is missing in the middle",  # and the log names it
    "an epoch below zero",  # and the log has it at a later one
)
OF_FILES = ("missing", "size", "future", "reference")
ADVICE = re.compile("repair|restore")


def rows_or_refusal(table: ebla.Table, start: str, stop: str | None) -> Any:
    """Return the rows of a range, or what is told about the damage."""
    try:
        return [dict(row) for row in table.scan(start=start, stop=stop)]
    except (ebla.Corruption, ebla.MissingFile) as refusal:
        return str(refusal)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_a_damaged_tablet_is_refused_and_everything_else_is_served(root: Path, damage: Damage, read_only: bool) -> None:
    with ebla.open(root, settings=ebla.Settings(close_flush_bytes=1 << 30)) as database:
        database.table("users").put({"k": "a00", "v": -1})  # in the log alone
    plant(root, damage.plant)
    with ebla.open(root, read_only=read_only, settings=ebla.Settings(background_compaction=False)) as database:
        assert database.tables() == ["other", "users"]
        assert database.table("other").scan().to_arrow().num_rows == len(ROWS)
        served = 0
        if damage.name in REFUSED:
            with pytest.raises(ebla.TableDamaged, match=r"users.*cannot be loaded.*verify"):
                database.table("users")
        else:
            users = database.table("users")
            for letters, (start, stop) in TABLETS.items():
                expected = [row | {"v": -1} if row["k"] == "a00" else row for row in ROWS if row["k"][0] in letters]
                answer = rows_or_refusal(users, start, stop)
                assert answer == expected or ADVICE.search(answer), "a wrong answer"
                served += answer == expected
            assert served or damage.name == "two tablets have the last rows"
            assert database.table("META").scan().to_arrow().num_rows > 0
        is_of_files = damage.kinds[0] in OF_FILES and damage.name != "txns the wrong way round"
        assert ("users" in database.stats()["damaged"]) == (not is_of_files)
        if read_only or is_of_files:
            return
        if damage.name not in REFUSED:
            for change in (
                lambda: users.put({"k": "a01", "v": 1}),
                users.flush,
                users.compact,
                lambda: users.split("b"),
                lambda: database.alter_table("users", add_columns={"w": "int32"}),
                lambda: database.clone_table("users", "clone"),
                lambda: database.unload_table("users"),
                lambda: database.load_table("users"),
            ):
                with pytest.raises(ebla.TableDamaged, match=r"`ebla\.repair` mends"):
                    change()
        database.table("other").put({"k": "x", "v": 1})
        database.table("other").flush()
    if ebla.repair(root, dry_run=False).repaired:
        with ebla.open(root) as database:
            row = database.table("users").get("a00")
            assert row is not None
            assert row["v"] == -1, "what was in the log stays there until the table is mended"
            assert database.stats()["damaged"] == {}


def test_a_refused_table_can_be_dropped_and_lets_the_log_go_then(root: Path) -> None:
    with ebla.open(root, settings=ebla.Settings(close_flush_bytes=1 << 30)) as database:
        database.table("users").put({"k": "a00", "v": -1})
    plant(root, tablets(lambda t: ()))
    with ebla.open(root) as database:
        held = database.stats()["log_held_by"]
        assert (held["table"], held["group"]) == ("users", "")
        with pytest.raises(ebla.TableExists):
            database.create_table("users", SCHEMA)
        database.drop_table("users")
        assert database.tables() == ["other"]
        with pytest.raises(ebla.UnknownTable):
            database.table("users")
        database.create_table("users", SCHEMA).put({"k": "new", "v": 1})
    with ebla.open(root) as database:
        database.table("users").flush()
        assert database.stats()["log_held_by"] is None
        assert [dict(row) for row in database.table("users").scan()] == [{"k": "new", "v": 1}]


def test_a_damaged_table_of_which_much_is_in_the_log_is_refused(root: Path) -> None:
    small = ebla.Settings(flush_bytes=4096, background_compaction=False)
    with ebla.open(root, settings=ebla.Settings(close_flush_bytes=1 << 30)) as database:
        database.table("users").put([{"k": f"a{n:04}", "v": n} for n in range(2000)])
    plant(root, tablet(1, first=b"f"))
    with ebla.open(root, settings=small) as database:
        with pytest.raises(ebla.TableDamaged, match="much of it is in the log"):
            database.table("users")
        database.table("other").put({"k": "x", "v": 1})
        database.table("other").flush()
    assert ebla.repair(root, dry_run=False).repaired
    with ebla.open(root) as database:
        assert database.table("users").scan().to_arrow().num_rows == len(ROWS) + 2000


def test_commands_for_all_tables_leave_out_the_damaged_one_and_say_so(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(root, tablet(1, first=b"f"))
    said = []
    for command in ("tables", "flush", "compact"):
        with pytest.raises(SystemExit) as left:
            main([command, "--store", str(root)])
        assert not left.value.code
        said.append(capsys.readouterr().out)
    assert "damaged: see `ebla verify`" in said[0]
    for text in said[1:]:
        assert "left out users: it is damaged" in text
        assert "other" in text
    with pytest.raises(SystemExit):
        main(["compact", "--json", "--store", str(root)])
    captured = capsys.readouterr()
    assert [one["table"] for one in json.loads(captured.out)] == ["other"]
    assert "left out users: it is damaged" in captured.err


def test_an_open_store_is_repaired_while_it_is_written(root: Path) -> None:
    with ebla.open(root, settings=ebla.Settings(close_flush_bytes=1 << 30)) as database:
        database.table("users").put({"k": "a00", "v": -1})  # in the log alone
    plant(root, ref(0, rows=1))  # it is served all the same
    with ebla.open(root, settings=ebla.Settings(background_compaction=False)) as database:
        plan = database.repair()
        assert [(finding.kind, bool(finding.repair)) for finding in plan.findings] == [("reference", True)]
        assert database.verify() == plan, "a dry run"
        assert database.repair(dry_run=False).repaired
        assert database.verify().is_clean
        users = database.table("users")
        users.put({"k": "new", "v": 1})
        users.flush()
        assert users.scan().to_arrow().num_rows == len(ROWS) + 1
    assert ebla.verify(root).is_clean


def test_a_damaged_table_of_an_open_store_is_repaired_and_served_when_it_is_opened_again(root: Path) -> None:
    with ebla.open(root, settings=ebla.Settings(close_flush_bytes=1 << 30)) as database:
        database.table("users").put({"k": "a00", "v": -1})
    plant(root, tablet(1, first=b"f"))
    with ebla.open(root) as database:
        assert database.repair(dry_run=False).repaired
        with pytest.raises(ebla.TableDamaged):
            database.table("users").put({"k": "x", "v": 1})
        database.table("other").put({"k": "x", "v": 1})
        with ebla.open(root, read_only=True) as reader, pytest.raises(ebla.ReadOnly):
            reader.repair(dry_run=False)
    with ebla.open(root) as database:
        row = database.table("users").get("a00")
        assert row is not None
        assert row["v"] == -1
        database.table("users").put({"k": "x", "v": 1})


def test_no_file_is_collected_while_nobody_knows_what_a_table_names(root: Path) -> None:
    plant(root, tablets(lambda t: ()))
    files = sorted((root / "fragments").rglob("*.parquet"))
    with ebla.open(root, settings=ebla.Settings(garbage_age_seconds=0, background_compaction=False)) as database:
        for _ in range(3):
            with pytest.raises(ebla.Corruption):
                database.gc(dry_run=False)
        database.drop_table("users")
        for _ in range(3):
            database.gc(dry_run=False)
    left = sorted((root / "fragments").rglob("*.parquet"))
    assert len(left) == len(files) / 2
    with ebla.open(root) as database:
        assert database.table("other").scan().to_arrow().num_rows == len(ROWS)
