"""Changing a schema under load: writers that go on, files that are not touched, outcomes that are unknown."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ebla
from ebla import Group, Schema, SchemaError
from ebla.coordination.memory import Fault
from ebla.errors import OutcomeUnknown, TableDamaged
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.values.table_config import config_path, encode_config
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.metadata.values.transaction_file import SnapshotRecord, encode
from ebla.model.schema import TableSchema
from ebla.storage.files.local_files import LocalFiles
from tests.crash.machine import Machine
from tests.crash.story import CALM, MIXED, create, put
from tests.support.inside import abandon, coordination_of, engine_of, local_table, state_of

TWO = Schema(
    key={"k": "string"},
    groups=[
        Group("x", columns={"a": "int64", "b": "string"}),
        Group("y", columns={"c": "int64", "d": "string"}),
        Group("z", families=["f", "g"]),
    ],
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "data", settings=ebla.Settings(background_compaction=False)) as database:
        yield database


@pytest.fixture
def table(db: ebla.Database) -> ebla.Table:
    return db.create_table("t", TWO, splits=["m"])


CHANGES: list[dict[str, Any]] = [
    {"move": {"c": "x"}},
    {"add_columns": {"x": {"e": "string"}}},
    {"move": {"a": "y", "f": "z"}},
    {"groups": [Group("w", families=[])], "move": {"f": "w"}},
    {"change_groups": {"x": {"compression": "zstd"}}},
    {"drop_columns": ["b"], "move": {"c": "y"}},
    {"add_columns": {"y": {"b": "int32"}}, "rename": {"d": "dd"}},
    {"move": {"a": "x", "f": "z"}, "drop_groups": ["w"]},
]


def test_writers_go_on_while_the_schema_changes_and_nothing_acknowledged_is_lost(
    db: ebla.Database, table: ebla.Table
) -> None:
    stop = threading.Event()
    written: list[dict[str, int]] = [{} for _ in range(3)]
    failures: list[BaseException] = []

    def write(number: int) -> None:
        n = 0
        try:
            while not stop.is_set():
                n += 1
                key = f"{'amz'[number]}{n % 17}"
                value = {"k": key, "a": n, "c": -n}
                match n % 4:
                    case 0:
                        table.put(iter([value, {"k": "shared", "f:q": b"%d" % n}]))  # can be read only once
                    case 1:
                        table.transact(key, lambda row, n=n: {"a": n, "c": -n})
                    case _:
                        table.put(value, wait="logged")
                table.increment(f"count {number}", "a")
                written[number][key] = n
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for change in CHANGES:
            db.alter_table("t", **change)
            for row in table.scan(columns=["a", "c"]):
                assert row["c"] is None or row["c"] == -row["a"]
            table.flush()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    table.compact()
    for number, rows in enumerate(written):
        for key, n in rows.items():
            row = table.get(key)
            assert row is not None
            assert (row["a"], row["c"]) == (n, -n)
        assert rows
        counted = table.get(f"count {number}")
        assert counted is not None
        assert counted["a"] >= max(rows.values())


@pytest.mark.parametrize("after", ["projection", "_txn"])
def test_a_scan_has_all_that_was_committed_up_to_its_txn_under_whichever_schema(
    after: str, db: ebla.Database, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.put({"k": "a", "a": 1})
    owner = state_of(table) if after == "projection" else local_table(table)
    ask = getattr(owner, after)

    def asked(*arguments: Any) -> Any:
        found = ask(*arguments)
        monkeypatch.undo()
        db.alter_table("t", move={"c": "x"})
        table.put({"k": "b", "a": 2})
        return found

    monkeypatch.setattr(owner, after, asked)  # what others do between two steps that a scan takes to begin
    scan = table.scan()
    assert [row["k"] for row in scan] == [row["k"] for row in table.scan(as_of=scan.txn)]
    assert table.scan().count() == 2


def test_a_change_touches_no_file_of_rows(db: ebla.Database, table: ebla.Table) -> None:
    table.put([{"k": f"{n:05}", "a": n, "c": n, "f:q": b"1"} for n in range(3_000)])
    table.flush()
    before = set(table.files())
    opened = dict(engine_of(db).fragments._open)
    db.alter_table("t", move={"c": "x", "f": "z"}, rename={"a": "n"}, drop_columns=["b"], change_groups={"y": {}})
    assert set(table.files()) == before
    assert engine_of(db).fragments._open == opened
    assert table.scan().count() == 3_000


def test_a_scan_of_one_group_opens_no_file_of_another(tmp_path: Path) -> None:
    with ebla.open(tmp_path / "data") as db:
        table = db.create_table("t", TWO)
        table.put({"k": "1", "a": 1, "c": 1, "d": "d", "f:q": b"1"})
        db.alter_table("t", move={"c": "x"})
        table.compact()

    def opened(columns: list[str]) -> set[str]:
        with ebla.open(tmp_path / "data", read_only=True) as db:
            assert db.table("t").scan(columns=columns).to_arrow().num_rows == 1
            return {file for file, _, _ in engine_of(db).fragments._open}

    x, y, z = opened(["a", "c"]), opened(["d"]), opened(["f"])
    assert [len(files) for files in (x, y, z)] == [1, 1, 1]
    assert len(x | y | z) == 3
    assert opened(["d", "f:q"]) == y | z


# --- schemas that cannot be ----------------------------------------------------------------------


def broken(schema: TableSchema) -> TableSchema:
    """Return the next version of a schema with a column in two groups."""
    x, y, *rest = schema.groups
    twice = msgspec.structs.replace(y, columns=(*y.columns, x.columns[0]))
    return msgspec.structs.replace(schema, version=schema.version + 1, groups=(x, twice, *rest))


def test_a_schema_that_cannot_be_is_ignored_by_a_table_that_is_open(
    table: ebla.Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.put({"k": "1", "a": 1})
    table.flush()
    state = state_of(table)
    metadata = state.view.metadata
    invalid = msgspec.structs.replace(metadata, schema=broken(metadata.schema), sequence=metadata.sequence + 1)
    state.use_metadata(invalid, None)
    assert "is ignored" in caplog.text
    assert isinstance(state.invalid_schema, SchemaError)
    assert table.schema == metadata.schema
    table.put({"k": "1", "a": 2})
    row = table.get("1")
    assert row is not None
    assert row["a"] == 2


def test_a_schema_that_cannot_be_is_told_to_who_asks_for_a_reload_and_the_last_one_stays_in_force(
    tmp_path: Path,
) -> None:
    with ebla.open(tmp_path / "data", settings=ebla.Settings(background_compaction=False)) as db:
        table = db.create_table("t", TWO)
        table.put({"k": "1", "a": 1})
        table.flush()
        former = saved_without_asking(db, table)
        with pytest.raises(SchemaError, match="stands both in group"):
            db.load_table("t")
        assert table.schema == former.schema
        table.put({"k": "1", "a": 2})
        row = table.get("1")
        assert row is not None
        assert row["a"] == 2
        assert [finding.kind for finding in db.verify().findings if finding.kind != "orphan"] == ["schema"]


def saved_without_asking(db: ebla.Database, table: ebla.Table, further: Sequence[Path] = ()) -> TableMetadata:
    """Make METADATA of a table have a schema that cannot be, in all directories; return what it was before."""
    former = state_of(table).view.metadata
    invalid = msgspec.structs.replace(
        former, schema=broken(former.schema), txnid="invalid", sequence=former.sequence + 1
    )
    content = encode(SnapshotRecord(former.txnid, invalid.checksum, invalid))
    for place in (db.path, *further):
        MetadataStore(LocalFiles(place)).write(former.table_id, "invalid", content)
    config, version = engine_of(db).metadata.directory.read(former.table_id)
    changed = encode_config(msgspec.structs.replace(config, metadata_txnid="invalid"))
    coordination_of(db).compare_and_set(config_path(former.table_id), changed, version)
    return former


@pytest.mark.parametrize("is_seen", [False, True], ids=["unseen", "seen"])
@pytest.mark.parametrize("copies", [1, 3])
def test_under_a_schema_that_cannot_be_flushes_go_on_under_the_last_that_could(
    tmp_path: Path, is_seen: bool, copies: int
) -> None:
    settings = ebla.Settings(background_compaction=False, memory_bytes_max=256 << 10, flush_bytes=64 << 10)
    further = [tmp_path / f"disk-{number}" for number in range(1, copies)]
    with ebla.open(tmp_path / "data", settings=settings, metadata=further or None) as db:
        table = db.create_table("t", TWO)
        table.put({"k": "1", "a": 1})
        table.flush()
        former = saved_without_asking(db, table, further)
        if is_seen:
            with pytest.raises(SchemaError, match="stands both in group"):
                db.load_table("t")
            with pytest.raises(SchemaError, match="stands both in group"):
                engine_of(db).reload_metadata()
        for number in range(20):  # more than memory takes
            table.put([{"k": f"{number}-{row:05}", "a": row, "d": "x" * 40} for row in range(400)])
        table.put({"k": "1", "a": 2})
        table.flush()
        table.compact()
        assert not state_of(table).view.memory
        assert table.schema == former.schema
        assert table.scan().count() == 20 * 400 + 1
        assert state_of(table).invalid_schema is None
        assert db.verify().is_clean, "METADATA has the last schema that could be"
        db.alter_table("t", add_columns={"x": {"late": "int64"}})
    with ebla.open(tmp_path / "data") as db:
        assert db.table("t").get("1", columns=["a", "late"]) == {"k": "1", "a": 2, "late": None}
        assert db.table("t").scan().count() == 20 * 400 + 1


def test_a_table_whose_schema_cannot_be_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = ebla.open(tmp_path / "data")
    db.create_table("t", TWO)
    db.create_table("other", TWO).put({"k": "1", "a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(TableSchema, "check", lambda self: None)  # as a program with a fault would
        db.alter_table("t", add_columns={"y": {"a": "int64"}})
    abandon(db)
    for read_only in (False, True):
        with ebla.open(tmp_path / "data", read_only=read_only) as db:
            with pytest.raises(TableDamaged, match=r"'t' cannot be loaded.*'a' stands both in group 'x' and in group"):
                db.table("t")
            with pytest.raises(TableDamaged):
                db.load_table("t")
            other = db.table("other").get("1")
            assert other is not None
            if not read_only:
                db.table("other").put({"k": "2", "a": 2})
                db.table("other").flush()


# --- unknown outcomes ----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY], ids=lambda fault: fault.name)
def test_a_change_of_unknown_outcome_is_found_out_before_the_next_write(fault: Fault) -> None:
    machine = Machine([create("mixed", MIXED), put("mixed", {"user": "ada", "age": 1})], CALM)
    machine.play()
    db = machine.db
    assert db is not None
    table = db.table("mixed")
    is_away = True

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        return fault if is_away and name not in ("read", "list", "watch") else None

    table.flush()  # so that nothing but the change itself is lost
    machine.faults = faults
    with contextlib.suppress(OutcomeUnknown) if fault is Fault.LOSE_REPLY else pytest.raises(OutcomeUnknown):
        db.alter_table("mixed", move={"age": "extra"}, drop_columns=["note"])
    assert table.get("ada") is not None
    if fault is not Fault.LOSE_REPLY:
        with pytest.raises(OutcomeUnknown):
            table.put({"user": "ada", "name": "nobody knows"})
    is_away = False
    machine.nodes.deliver()
    table.put({"user": "ada", "name": "Ada"})
    has_moved = table.schema.resolve("age").group.name == "extra"
    assert table.schema.version == (2 if has_moved else 1)
    expected = {"user": "ada", "name": "Ada", "age": 1} | ({} if has_moved else {"note": None})
    assert table.get("ada") == expected
    db.close()
    db = machine.open()
    assert db.table("mixed").get("ada") == expected
    db.close()
