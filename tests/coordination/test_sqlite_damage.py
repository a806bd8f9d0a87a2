"""Flipped bits in the coordination file: the answer is right, or an error names the file; never is anything missing."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import google_crc32c
import pytest

from ebla.clock import ManualClock
from ebla.coordination.service import CoordinationService, Node
from ebla.coordination.sqlite import FILE_NAME, SqliteCoordination
from ebla.errors import Corruption, EblaError

PAGE_BYTES = 4096
FORMAT_1 = """
    PRAGMA application_id = 0x45626C61;
    PRAGMA user_version = 1;
    CREATE TABLE nodes (
        path TEXT PRIMARY KEY, parent TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
        checksum INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX nodes_by_parent ON nodes (parent, path);
    CREATE TABLE changes (revision INTEGER PRIMARY KEY, path TEXT NOT NULL);
"""
ABSENT = ["tables", "names/a", "names/table-3", "names/zzz", "large", "zzz"]


def opened(file: Path, **options: bool) -> SqliteCoordination:
    return SqliteCoordination(file, ManualClock(), is_lasting=False, **options)


def all_of(service: CoordinationService) -> dict[str, Node | None]:
    """What a store asks for: every directory with its nodes, and some nodes that are not there."""
    listed = [path for directory in ("", "names", "pins", "tables") for path in service.list(directory)]
    return {path: service.read(path) for path in [*listed, *ABSENT]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Node | None]]:
    """A file with several levels of pages, large values and free pages; and what it holds."""
    file = tmp_path_factory.mktemp("whole") / FILE_NAME
    with opened(file) as service:
        for number in range(24):
            service.create(f"tables/{number * 7919:032x}", b'{"name": "table", "state": "running"}')
            service.create(f"names/table-{number}", b"%032x" % number)
        for number in range(5):
            service.create(f"pins/{number}", b"a snapshot")
        service.create("large", bytes(20_000))
        service.create("long", bytes(6_000))
        service.delete("large", 1)
        service.delete("names/table-3", 1)
        ((free,),) = service._reader.query("PRAGMA freelist_count")
        assert free > 2
        held = all_of(service)
    assert len(held) == 24 + 23 + 5 + 1 + len(ABSENT)
    return file.read_bytes(), held


def outcome(file: Path, held: dict[str, Node | None], *, read_only: bool) -> str:
    """Open, read everything, and write; "right" or the name of the error, anything else fails."""
    try:
        with opened(file, read_only=read_only) as service:
            assert all_of(service) == held
            if not read_only:
                service.create("names/new", b"")
                service.compare_and_set("long", b"short", 1)
                service.delete("names/new", 1)
                assert all_of(service) == {**held, "long": Node(b"short", 2)}
    except EblaError as error:
        return type(error).__name__ if FILE_NAME in str(error) else f"without the name of the file: {error}"
    return "right"


def flip(file: Path, content: bytes, bit: int) -> None:
    for rest in file.parent.iterdir():
        rest.unlink()
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    file.write_bytes(changed)


def sampled(content: bytes) -> list[int]:
    """Bits of every region: header, tables, and of each page its head, its pointers, its middle and its end."""
    bits = [offset * 8 + (offset * 5) % 8 for offset in range(100)]
    for page in range(0, len(content), PAGE_BYTES):
        places = [*range(0, 24, 2), *range(24, 120, 13), *range(130, PAGE_BYTES, 397), PAGE_BYTES - 9]
        bits += [(page + place) * 8 + (page // PAGE_BYTES + place) % 8 for place in places]
    return bits


def test_no_flipped_bit_makes_a_node_invisible(tmp_path: Path, whole: tuple[bytes, dict[str, Node | None]]) -> None:
    content, held = whole
    outcomes: Counter[str] = Counter()
    for bit in sampled(content):
        flip(tmp_path / FILE_NAME, content, bit)
        outcomes[outcome(tmp_path / FILE_NAME, held, read_only=False)] += 1
    assert outcomes.keys() <= {"right", "Corruption", "FormatTooNew", "CoordinationFailed"}
    assert outcomes["Corruption"] > 100
    assert outcomes["right"] > 100


def test_no_flipped_bit_makes_a_node_invisible_to_a_reader(
    tmp_path: Path, whole: tuple[bytes, dict[str, Node | None]]
) -> None:
    content, held = whole
    outcomes = Counter()
    for bit in sampled(content)[::9]:
        flip(tmp_path / FILE_NAME, content, bit)
        outcomes[outcome(tmp_path / FILE_NAME, held, read_only=True)] += 1
    assert outcomes.keys() <= {"right", "Corruption", "FormatTooNew", "CoordinationFailed"}
    assert outcomes["Corruption"] > 10


@pytest.mark.parametrize("path", ["names/table-1", "pins/0", "tables/" + "0" * 32])
def test_a_node_that_was_taken_out_behind_our_back_is_missed(
    tmp_path: Path, whole: tuple[bytes, dict[str, Node | None]], path: str
) -> None:
    file = tmp_path / FILE_NAME
    file.write_bytes(whole[0])
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM nodes WHERE path = ?", (path,))
    connection.close()
    with opened(file) as service:
        uses = [
            lambda: service.list(path.split("/")[0]),
            lambda: service.read(path),
            lambda: service.create(path, b""),
            lambda: service.compare_and_set(path, b"", 1),
            lambda: service.delete(path, 1),
        ]
        for use in uses:
            with pytest.raises(Corruption, match=r"cannot be found.*bring the file back from a copy"):
                use()


def test_a_statement_that_is_no_text_any_more_is_corruption(
    tmp_path: Path, whole: tuple[bytes, dict[str, Node | None]]
) -> None:
    content, held = whole
    place = content.index(b"NOT NULL, link") + 4
    for read_only in (True, False):
        flip(tmp_path / FILE_NAME, content, place * 8 + 7)
        assert outcome(tmp_path / FILE_NAME, held, read_only=read_only) == "Corruption"


# --- files of format 1 ---------------------------------------------------------------------------


def old_file(file: Path) -> dict[str, bytes]:
    held = {f"tables/{number:02}": b"%d" % number for number in range(40)} | {"names/a": b"00", "master": b"me"}
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(f"BEGIN;{FORMAT_1}COMMIT;")
    for path, value in held.items():
        checksum = google_crc32c.extend(google_crc32c.value(path.encode()), value)
        row = (path, path.rpartition("/")[0], value, 7, checksum)
        connection.execute("INSERT INTO nodes VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("INSERT INTO changes (path) VALUES ('master')")
    connection.close()
    return held


def test_an_old_file_is_read_as_it_is_and_upgraded_by_the_first_who_writes(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    held = old_file(file)
    before = file.read_bytes()
    with opened(file, read_only=True) as reader:
        assert reader.list("tables") == sorted(path for path in held if path.startswith("tables/"))
        assert reader.read("names/b") is None
        assert reader.read("master") == Node(b"me", 7)
        assert file.read_bytes() == before
        with opened(file) as service:
            assert {path: service.read(path) for path in held} == {path: Node(held[path], 7) for path in held}
            assert service.list("") == ["master"]
            assert service.compare_and_set("tables/05", b"new", 7) == 8
            # Who was reading meanwhile reads on.
            assert reader.read("tables/05") == Node(b"new", 8)
            assert len(reader.list("tables")) == 40
    with opened(file) as service, sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert service.read("tables/05") == Node(b"new", 8)
    connection.close()


@pytest.mark.parametrize("read_only", [True, False])
def test_an_old_file_whose_index_lacks_a_node_is_corruption_and_is_not_upgraded(
    tmp_path: Path, read_only: bool
) -> None:
    file = tmp_path / FILE_NAME
    old_file(file)
    with sqlite3.connect(file) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'nodes_by_parent'").fetchone()[0]
    connection.close()
    content = file.read_bytes()
    place = content.index(b"tablestables/07", (root - 1) * PAGE_BYTES)
    flip(file, content, (place + 14) * 8 + 3)
    before = file.read_bytes()
    with pytest.raises(Corruption, match=FILE_NAME):
        opened(file, read_only=read_only)
    assert file.read_bytes() == before


def test_an_old_file_with_a_damaged_value_is_not_upgraded(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    old_file(file)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE nodes SET value = x'00' WHERE path = 'master'")
    connection.close()
    with pytest.raises(Corruption, match="'master'"):
        opened(file)
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
