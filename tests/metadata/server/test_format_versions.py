"""Stores that earlier versions wrote open for ever, and what a later one wrote is refused with a clear error.

The stores lie in stores/, one of each format version of METADATA, each made with the code of that version: a table of
three tablets, altered, split, with a range erasure, and a row that is in the log alone; from version 3 on, a stream
went into it as well. From version 4 on it is known when the table was made.

Beside them lies one of each format version of the log, as a process left it that was killed: batches over four tablets,
one of which came by a split, so that the log names one that is gone; one group flushed and the other not; commits that
were combined; a range erasure of two tablets; replies to requests, and an entry of nothing else.
"""

from __future__ import annotations

import struct
import tarfile
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest

import ebla
from ebla.errors import FormatTooNew
from ebla.metadata.values.transaction_file import FORMAT_VERSION, ChangeRecord, SnapshotRecord, decode, encode
from ebla.rows.rows import to_put_batch
from ebla.storage.log.log_format import FORMAT_VERSION as LOG_FORMAT_VERSION
from tests.support.inside import abandon, engine_of, state_of

STORES = Path(__file__).with_name("stores")
VERSIONS = range(1, FORMAT_VERSION + 1)
ROWS = [
    {"k": "a", "n": 1, "s": None, "c:x": b"1"},
    {"k": "b", "n": 3, "s": "late"},
    {"k": "z", "n": 2, "s": None},
]


LOG_VERSIONS = range(1, LOG_FORMAT_VERSION + 1)
LOGGED = [
    {"k": "a", "n": 30, "s": "second", "c:x": b"1", "c:y": b"2"},
    {"k": "b", "n": 31, "s": "second", "c:x": b"1", "c:y": b"2"},
    {"k": "c", "n": 3, "s": "third"},
    {"k": "d", "n": None, "s": None, "c:z": b"3"},
    {"k": "h", "n": 2, "s": "second", "c:x": b"1", "c:y": b"2"},
    {"k": "q", "n": 20, "s": None},
    {"k": "r", "n": 3, "s": "third"},
    {"k": "t", "n": 3, "s": "third"},
    {"k": "u", "n": 32, "s": None},
    {"k": "z", "n": 30, "s": "second", "c:x": b"1", "c:y": b"2"},
]
LOGGED_VERSIONS = [[30, 11, 10, 2, 1], [31, 2, 1], [3], [], [2, 1], [20], [3], [3], [32], [30, 15, 2, 1]]


def unpacked(version: int, into: Path, kind: str = "store") -> Path:
    with tarfile.open(STORES / f"{kind}-{version}.tar.xz") as tar:
        tar.extractall(into, filter="data")
    return into


def meta_files(root: Path) -> list[Path]:
    return sorted((root / "metadata").rglob("*.meta"))


def snapshot_of(root: Path) -> Path:
    (found,) = [file for file in meta_files(root) if isinstance(decode(file.read_bytes(), file.name), SnapshotRecord)]
    return found


def written(version: int, kind: int, body: Any) -> bytes:
    """Return a file of any version."""
    packed = msgspec.msgpack.encode(body)
    fields = struct.pack("<8sHBBQ", b"EBLAMETA", version, kind, 0, len(packed))
    return fields + struct.pack("<I", google_crc32c.value(fields + packed)) + packed


def test_there_is_a_store_of_every_version() -> None:
    there = [f"log-{version}.tar.xz" for version in LOG_VERSIONS] + [f"store-{version}.tar.xz" for version in VERSIONS]
    assert sorted(path.name for path in STORES.iterdir()) == there


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("read_only", [True, False], ids=["reading", "writing"])
def test_a_store_of_that_version_opens_and_has_its_rows(tmp_path: Path, version: int, read_only: bool) -> None:
    root = unpacked(version, tmp_path)
    assert {struct.unpack_from("<H", file.read_bytes(), 8) for file in meta_files(root)} == {(version,)}
    assert ebla.verify(root).is_clean
    with ebla.open(root, read_only=read_only) as db:
        assert [dict(row) for row in db.table("t").scan()] == ROWS
        if not read_only:
            db.table("t").put({"k": "new", "n": 4})
            db.table("t").flush()  # a change of this version upon those of that one
            db.table("t").compact()
    with ebla.open(root) as db:
        assert db.table("t").scan().to_arrow().num_rows == len(ROWS) + (not read_only)
    assert ebla.verify(root).is_clean


def log_versions(root: Path) -> list[int]:
    return [struct.unpack_from("<I", file.read_bytes(), 8)[0] for file in sorted((root / "log").rglob("*.log"))]


@pytest.mark.parametrize("version", LOG_VERSIONS)
@pytest.mark.parametrize("read_only", [True, False], ids=["reading", "writing"])
def test_a_log_of_that_version_is_replayed_and_has_its_commits(tmp_path: Path, version: int, read_only: bool) -> None:
    root = unpacked(version, tmp_path, "log")
    assert log_versions(root) == [version]
    assert not [found for found in ebla.verify(root).findings if found.kind != "orphan"]
    with ebla.open(root, read_only=read_only) as db:
        table = db.table("t")
        assert [dict(row) for row in table.scan()] == LOGGED
        assert [[version.value for version in row["n"]] for row in table.scan(versions=9)] == LOGGED_VERSIONS
        assert [table.get(row["k"]) for row in LOGGED] == LOGGED


@pytest.mark.parametrize("version", LOG_VERSIONS)
def test_a_log_of_that_version_is_not_written_on_and_what_comes_is_of_today(tmp_path: Path, version: int) -> None:
    root = unpacked(version, tmp_path, "log")
    with ebla.open(root) as db:
        db.table("t").put({"k": "v", "n": 40})
        abandon(db)
    is_of_today = version == LOG_FORMAT_VERSION
    assert log_versions(root) == ([version] if is_of_today else [version, LOG_FORMAT_VERSION])
    with ebla.open(root) as db:
        assert [row["k"] for row in db.table("t").scan()] == [*"abcdhqrtuvz"]
        db.table("t").flush()
        db.table("t").put({"k": "w", "n": 41})
    with ebla.open(root) as db:
        assert [row["k"] for row in db.table("t").scan()] == [*"abcdhqrtuvwz"]
    assert ebla.verify(root).is_clean


@pytest.mark.parametrize("version", LOG_VERSIONS)
def test_requests_that_a_log_of_that_version_answered_are_not_carried_out_again(tmp_path: Path, version: int) -> None:
    for _ in range(2):  # also when what was told has moved on to a log of today
        root = unpacked(version, tmp_path, "log") if not (tmp_path / "log").exists() else tmp_path
        with ebla.open(root) as db:
            engine, state = engine_of(db), state_of(db.table("t"))
            for request, row in ((("client", 7), {"k": "a", "n": 99}), (("another", 1), {"k": "b", "n": 99})):
                mutation = state.admission.put(to_put_batch(row, state.view.schema))
                assert engine.apply(state, mutation, request=request) < engine.sequencer.committed
            assert [db.table("t").get(key)["n"] for key in "ab"] == [30, 31]
            db.table("t").flush()


@pytest.mark.parametrize("version", VERSIONS)
def test_when_a_table_was_made_is_known_from_version_4_on(tmp_path: Path, version: int) -> None:
    with ebla.open(unpacked(version, tmp_path)) as db:
        table = db.table("t")
        clone = db.clone_table("t", "clone")
        for one in (table, clone):
            if version < 4:
                one.scan(as_of=1)  # what it finds depends on how far history reaches
            else:
                with pytest.raises(ebla.UnknownTable, match="yet"):
                    one.scan(as_of=1)
            assert one.scan(as_of=one.scan().txn).count() == len(ROWS)


def test_what_this_version_writes_is_what_its_store_says(tmp_path: Path) -> None:
    """If this fails, tables are written in another way than before: raise FORMAT_VERSION and add a store of it."""
    file = snapshot_of(unpacked(FORMAT_VERSION, tmp_path))
    content = file.read_bytes()
    record = decode(content, file.name)
    assert isinstance(record, SnapshotRecord)
    assert encode(record) == content
    assert msgspec.structs.replace(record.metadata).checksum == record.checksum


def test_a_later_version_is_refused_and_names_the_file(tmp_path: Path) -> None:
    root = unpacked(FORMAT_VERSION, tmp_path)
    for file in meta_files(root):
        content = file.read_bytes()
        body = msgspec.msgpack.decode(content[24:])
        file.write_bytes(written(FORMAT_VERSION + 1, content[10], [*body, "something new"]))
    for read_only in (True, False):
        with pytest.raises(FormatTooNew, match=rf"\.meta: format {FORMAT_VERSION + 1} is newer"):
            ebla.open(root, read_only=read_only)


def test_fields_that_an_older_file_does_not_have_get_their_defaults(tmp_path: Path) -> None:
    """Early files of version 1 end before what came later; their checksums are of fewer fields as well."""
    file = snapshot_of(unpacked(1, tmp_path))
    base, checksum, table, *_ = msgspec.msgpack.decode(file.read_bytes()[24:])
    table = table[:5]
    table[4] = [[*tablet[:8], [state[:2] for state in tablet[8]]] for tablet in table[4]]
    record = decode(written(1, 2, [base, checksum + 1, table]), file.name)
    whole = decode(file.read_bytes(), file.name)
    assert isinstance(record, SnapshotRecord)
    assert isinstance(whole, SnapshotRecord)
    assert record.metadata == whole.metadata, "it had nothing but defaults there"
    assert record.checksum == whole.checksum == record.metadata.checksum
    assert record.requests == ()


def test_a_change_of_an_older_version_has_no_checksum_to_compare(tmp_path: Path) -> None:
    root = unpacked(1, tmp_path)
    changes = [decode(file.read_bytes(), file.name) for file in meta_files(root) if file != snapshot_of(root)]
    assert changes
    assert all(isinstance(change, ChangeRecord) and change.checksum is None for change in changes)
