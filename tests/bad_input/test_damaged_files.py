"""Files that are not what was written: refused by name, nothing answered wrongly, and other tables still served."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ebla
from ebla.client.embedded.coordination_place import COORDINATION_FILE
from ebla.settings import KIB, Settings
from tests.support.inside import abandon

SCHEMA = ebla.Schema(
    key={"k": "string", "d": "int32"},
    groups=[
        ebla.Group("typed", columns={"n": "int64", "s": "string", "f": "float64", "b": "bool"}, block_bytes=4 * KIB),
        ebla.Group("cells", families=["x"], block_bytes=4 * KIB),
    ],
)
ROLLING = Settings(log_segment_bytes=4 * KIB, recent_row_slots=1 << 8)


class Scene:
    """A store with a table in fragments, one in the log, and what both hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        db = ebla.open(path, settings=ROLLING)
        table = db.create_table("flushed", SCHEMA, [("k050",)])
        rows = [
            {
                "k": f"k{i % 97:03d}",
                "d": i,
                "n": i * 7 if i % 3 else None,
                "s": f"s{i % 11}",
                "f": i / 3,
                "b": i % 2 == 0,
            }
            for i in range(400)
        ]
        table.put([{**row, "x:q": b"v%d" % row["d"]} for row in rows])
        table.put([{"k": f"k{i % 97:03d}", "d": i, "n": -i} for i in range(0, 400, 5)])
        table.erase(("k003", 3))
        table.flush()
        logged = db.create_table("logged", SCHEMA)
        for i in range(30):
            logged.put({"k": f"k{i:03d}", "d": i, "n": i, "s": "x" * 100})
        self.expected = {name: answers(db.table(name)) for name in ("flushed", "logged")}
        self.fragments = [path / file for file in table.files()]
        abandon(db)

    def files(self, directory: str) -> list[Path]:
        return sorted(file for file in (self.path / directory).rglob("*") if file.is_file())

    def check_whole(self) -> None:
        with ebla.open(self.path, settings=ROLLING) as db:
            for name, expected in self.expected.items():
                assert answers(db.table(name)) == expected


def answers(table: ebla.Table) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan()]


READS: dict[str, Callable[[ebla.Table, list[dict[str, Any]]], tuple[Any, Any]]] = {
    "scan": lambda table, rows: (answers(table), rows),
    "get": lambda table, rows: ([dict(table.get((r["k"], r["d"])) or {}) for r in rows[::9]], rows[::9]),
    "get_many": lambda table, rows: (
        table.get_many([(r["k"], r["d"]) for r in rows]).column("n").to_pylist(),
        [r["n"] for r in rows],
    ),
    "versions": lambda table, rows: (
        [row["n"][0].value if row["n"] else None for row in table.scan(versions=3)],
        [row["n"] for row in rows],
    ),
}


def check_reads(scene: Scene, file: Path) -> int:
    """Read a damaged table in every way: each answers rightly, or names the file. Returns how many refused."""
    refused = 0
    with ebla.open(scene.path, read_only=True) as db:
        for read in READS.values():
            answer = answer_or_refusal(lambda read=read: read(db.table("flushed"), scene.expected["flushed"]))
            if isinstance(answer, ebla.StoreError):
                assert file.name in str(answer)
                refused += 1
            else:
                assert answer[0] == answer[1], "a wrong answer"
        assert answers(db.table("logged")) == scene.expected["logged"], "other tables are served"
    return refused


def answer_or_refusal(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ebla.StoreError as refusal:
        return refusal


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "store")


# --- fragments -----------------------------------------------------------------------------------


def test_random_bytes_in_place_of_a_fragment_are_refused_by_name(scene: Scene) -> None:
    dice = random.Random(3)
    for file in scene.fragments:
        whole = file.read_bytes()
        for junk in (b"", b"x", b"PAR1", b"PAR1" + bytes(200) + b"PAR1", dice.randbytes(len(whole))):
            file.write_bytes(junk)
            assert check_reads(scene, file) > 0
        file.write_bytes(whole)
    scene.check_whole()


def test_a_missing_fragment_is_named_and_everything_else_is_served(scene: Scene) -> None:
    file = scene.fragments[0]
    away = file.rename(file.with_suffix(".away"))
    assert check_reads(scene, file) > 0
    with ebla.open(scene.path, settings=ROLLING) as db:
        with pytest.raises(ebla.MissingFile, match=file.name):
            answers(db.table("flushed"))
        # The store can still be written, the table too, and nothing that is written meanwhile is lost.
        db.table("logged").put({"k": "new", "d": 1})
        db.table("flushed").put({"k": "zzz", "d": 1, "n": 5})
        db.table("flushed").flush()
        with pytest.raises(ebla.MissingFile, match=file.name):
            answers(db.table("flushed"))
    away.rename(file)
    with ebla.open(scene.path, settings=ROLLING) as db:
        assert answers(db.table("flushed"))[:-1] == scene.expected["flushed"]
        assert db.table("flushed").get(("zzz", 1))["n"] == 5
        assert db.table("logged").get(("new", 1)) is not None


def test_a_truncated_fragment_is_refused_wherever_it_is_cut(scene: Scene) -> None:
    for file in scene.fragments:
        whole = file.read_bytes()
        for size in (len(whole) - 1, len(whole) - 8, len(whole) * 3 // 4, len(whole) // 2, 12, 4):
            file.write_bytes(whole[:size])
            assert check_reads(scene, file) > 0
        file.write_bytes(whole)
    scene.check_whole()


def pages_end(file: Path) -> int:
    """Return where the pages of a fragment end, and bloom filters, indexes and footer begin."""
    metadata = pq.read_metadata(file)
    columns = [
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]
    return max(
        (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size for column in columns
    )


def flip_bits(scene: Scene, count: int, seed: int, region: Callable[[Path, int], tuple[int, int]]) -> int:
    dice = random.Random(seed)
    refused = 0
    for file in scene.fragments:
        whole = file.read_bytes()
        begin, end = region(file, len(whole))
        for _ in range(count):
            damaged = bytearray(whole)
            damaged[dice.randrange(begin, end)] ^= 1 << dice.randrange(8)
            file.write_bytes(damaged)
            refused += check_reads(scene, file) > 0
        file.write_bytes(whole)
    return refused


def test_a_flipped_bit_in_the_pages_never_gives_a_wrong_answer(scene: Scene) -> None:
    assert flip_bits(scene, 14, 4, lambda file, size: (4, pages_end(file))) > 8
    scene.check_whole()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_many_flipped_bits_in_the_pages_never_give_a_wrong_answer(scene: Scene, seed: int) -> None:
    assert flip_bits(scene, 1_000, 100 + seed, lambda file, size: (0, pages_end(file))) > 500


def test_a_flipped_bit_after_the_pages_never_gives_a_wrong_answer(scene: Scene) -> None:
    assert flip_bits(scene, 40, 5, lambda file, size: (pages_end(file), size)) > 15


def test_a_fragment_in_the_place_of_another_is_refused(scene: Scene) -> None:
    with ebla.open(scene.path, settings=ROLLING) as db:
        table = db.table("flushed")
        table.put([{"k": f"k{i % 97:03d}", "d": i, "n": 1} for i in range(0, 400, 7)])
        table.flush()
        newer = next(scene.path / file for file in table.files() if scene.path / file not in scene.fragments)
        schemas = {file: pq.read_schema(file).names for file in scene.fragments}
        db.drop_table("logged")
    older = next(file for file in scene.fragments if "n" in schemas[file])
    kept = older.read_bytes()
    shutil.copy(newer, older)
    with ebla.open(scene.path, settings=ROLLING) as db, pytest.raises(ebla.StoreError, match=older.name):
        answers(db.table("flushed"))
    older.write_bytes(kept)


# --- METADATA ------------------------------------------------------------------------------------


def check_alone(scene: Scene, file: Path, *, read_only: bool) -> int:
    """Open a store with a damaged METADATA file: its table is refused by the name of the file, the other is served.

    Returns how many were refused: none if it was an older transaction, which nobody needs any more.
    """
    refused = 0
    with ebla.open(scene.path, read_only=read_only, settings=ROLLING) as db:
        for name, expected in scene.expected.items():
            answer = answer_or_refusal(lambda name=name: answers(db.table(name)))
            if isinstance(answer, ebla.TableDamaged):
                assert file.name in str(answer)
                assert name in db.stats()["damaged"]
                refused += 1
            else:
                assert answer == expected, "a wrong answer"
    assert refused <= 1, "the other table is served"
    return refused


def test_damaged_metadata_is_refused_by_name_and_the_other_table_is_served(scene: Scene) -> None:
    dice = random.Random(6)
    refused = 0
    for file in scene.files("metadata"):
        whole = file.read_bytes()
        place = dice.randrange(len(whole))
        flipped = whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :]
        for junk in (b"", dice.randbytes(len(whole)), whole[:-1], whole + b"\0", flipped):
            file.write_bytes(junk)
            found = check_alone(scene, file, read_only=True)
            assert not found or check_alone(scene, file, read_only=False)
            refused += found
        file.write_bytes(whole)
    assert refused >= 10
    scene.check_whole()


def test_missing_metadata_is_refused_by_name_and_the_other_table_is_served(scene: Scene) -> None:
    refused = 0
    for file in scene.files("metadata"):
        away = file.rename(file.with_suffix(".away"))
        refused += check_alone(scene, file, read_only=True)
        away.rename(file)
    assert refused >= 2
    scene.check_whole()


# --- the log -------------------------------------------------------------------------------------


def test_random_bytes_in_place_of_a_log_segment_are_refused_by_name(scene: Scene) -> None:
    dice = random.Random(7)
    segments = scene.files("log")
    assert len(segments) > 2
    for file in segments:
        whole = file.read_bytes()
        for junk in (dice.randbytes(len(whole)), b"EBLA-LOG" + dice.randbytes(len(whole))):
            file.write_bytes(junk)
            for read_only in (True, False):
                with pytest.raises(ebla.Corruption, match=file.name):
                    ebla.open(scene.path, read_only=read_only)
            assert file.read_bytes() == junk, "what is refused is not touched"
        file.write_bytes(whole)
    scene.check_whole()


def test_files_that_are_none_of_ours_are_left_alone(scene: Scene) -> None:
    strangers = [
        next((scene.path / "log").iterdir()) / "notes.txt",
        scene.path / "fragments" / "README",
        scene.path / "x",
    ]
    for stranger in strangers:
        stranger.write_bytes(b"mine")
    scene.check_whole()
    assert [stranger.read_bytes() for stranger in strangers] == [b"mine"] * 3


# --- the coordination file -----------------------------------------------------------------------


def closed(scene: Scene) -> Path:
    """Let the store be closed in order, so that its coordination file is alone; return that file."""
    ebla.open(scene.path, settings=ROLLING).close()
    return scene.path / COORDINATION_FILE


def test_random_bytes_in_place_of_the_coordination_file_are_refused_by_name(scene: Scene) -> None:
    file = closed(scene)
    whole = file.read_bytes()
    dice = random.Random(8)
    for junk in (b"", b"x", dice.randbytes(len(whole)), whole[:100], whole[:16] + dice.randbytes(len(whole) - 16)):
        file.write_bytes(junk)
        for read_only in (True, False):
            with pytest.raises(ebla.StoreError, match=COORDINATION_FILE):
                ebla.open(scene.path, read_only=read_only)
    file.write_bytes(whole)
    for leftover in scene.path.glob(f"{COORDINATION_FILE}-*"):
        leftover.unlink()
    scene.check_whole()


def test_a_store_without_its_coordination_file_is_not_taken_for_a_new_one(scene: Scene) -> None:
    file = closed(scene)
    away = file.rename(scene.path / "away")
    with pytest.raises(ebla.StoreError, match=COORDINATION_FILE):
        ebla.open(scene.path)
    assert not file.exists()
    away.rename(file)
    scene.check_whole()


def test_a_coordination_file_that_is_older_than_the_log_is_refused(scene: Scene) -> None:
    file = closed(scene)
    older = file.read_bytes()
    db = ebla.open(scene.path, settings=ROLLING)
    db.table("logged").put({"k": "new", "d": 1, "n": 1})
    abandon(db)
    newer = {path: path.read_bytes() for path in scene.path.glob(f"{COORDINATION_FILE}*")}
    for path in newer:
        path.unlink()
    file.write_bytes(older)
    with pytest.raises(ebla.Corruption, match="newer"):
        ebla.open(scene.path)
    for path in scene.path.glob(f"{COORDINATION_FILE}*"):
        path.unlink()
    for path, content in newer.items():
        path.write_bytes(content)
    with ebla.open(scene.path) as db:
        assert db.table("logged").get(("new", 1))["n"] == 1
