"""META and sys.*: read like any table, written by nobody."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
import pytest

import ebla
from ebla.metadata.values.meta_view import seek_row
from tests.support.inside import engine_of, state_of

USERS = ebla.Schema(
    key={"user": "string"},
    groups=[ebla.Group("profile", columns={"name": "string"}), ebla.Group("rest", families=["*"])],
)


@pytest.fixture
def users(db: ebla.Database) -> ebla.Table:
    table = db.create_table("users", USERS, splits=["g", "p"])
    table.put([{"user": "ada", "name": "Ada"}, {"user": "zoe", "name": "Zoe", "x:y": b"1"}])
    table.flush()
    return table


def test_meta_has_a_row_for_each_table_and_tablet(db: ebla.Database, users: ebla.Table) -> None:
    db.create_table("users.old", ebla.Schema(columns={"n": "int64"}))
    meta = db.table("META")
    rows = {row["row"]: row for row in meta.scan()}
    assert list(rows) == [b"users", b"users g", b"users p", b"users!", b"users.old", b"users.old!"]
    assert rows[b"users"]["schema:profile:columns"] == b"name string"
    assert [rows[row]["first:"] for row in (b"users g", b"users p", b"users!")] == [b"", b"g", b"p"]
    files = {
        file for row in rows.values() for name in row if name.startswith("fragments:") for file in row[name].split()
    }
    assert files == {file.encode() for file in users.files()}
    assert rows[b"users g"]["location:"] == engine_of(db).server.encode()


def test_a_table_that_is_unloaded_has_no_location_until_it_is_loaded(db: ebla.Database, users: ebla.Table) -> None:
    def places() -> tuple[list[object], list[object], list[object]]:
        return (
            [row["location:"] for row in db.table("META").scan() if "location:" in row],
            [row["leader"] for row in db.table("sys.tablets").scan()],
            [row["tablets"] for row in db.table("sys.servers").scan()],
        )

    server = engine_of(db).server
    loaded = ([server.encode()] * 3, [server] * 3, [3])
    assert places() == loaded
    db.unload_table("users")
    assert places() == ([], [None] * 3, [])
    db.load_table("users")
    assert places() == loaded


def test_a_tablet_is_located_with_one_seek(db: ebla.Database, users: ebla.Table) -> None:
    meta = db.table("META")
    for user in ("", "ada", "f", "g", "gz", "p", "zoe"):
        (found,) = meta.scan(start=seek_row("users", user.encode()), columns=["first:"], limit=1)
        expected = next(t for t in reversed(state_of(users).view.metadata.tablets) if t.first <= user.encode())
        assert found["first:"] == expected.first


def test_system_tables_take_every_way_of_reading(db: ebla.Database, users: ebla.Table) -> None:
    tables = db.table("sys.tables")
    assert tables.get("users")["tablets"] == 3
    assert tables.get("nobody") is None
    assert tables.get_many(["nobody", "users"]).column("_found").to_pylist() == [False, True]
    tablets = db.table("sys.tablets").scan(prefix=None, where=pc.field("records") > 0)
    assert [row["first"] for row in tablets] == [b"", b"p"]
    assert db.table("sys.tablets").scan(("users", b"g"), columns=["id", "last"]).to_pandas().shape == (2, 4)
    (server,) = db.table("sys.servers").scan()
    assert (server["tablets"], server["server"]) == (3, engine_of(db).server)
    assert db.table("META").scan(prefix=b"users", reverse=True).count() == 4
    sizes = {row["name"]: row["bytes"] for row in tables.scan()}
    assert sizes["users"] == sum((db.path / file).stat().st_size for file in users.files())


def test_a_system_table_shows_the_moment_it_was_asked_for(db: ebla.Database, users: ebla.Table) -> None:
    before = db.table("sys.tables")
    txn = db.create_table("more", USERS).put({"user": "a"})
    assert [row["name"] for row in before.scan()] == ["users"]
    now = db.table("sys.tables")
    assert [row["name"] for row in now.scan()] == ["more", "users"]
    for as_of in (txn - 1, datetime(2020, 1, 1, tzinfo=UTC)):
        with pytest.raises(ebla.HistoryGone):
            list(now.scan(as_of=as_of))


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.put({"name": "x"}),
        lambda t: t.put({"name": "x"}, if_absent=True),
        lambda t: t.erase("users"),
        lambda t: t.erase_many(["users"]),
        lambda t: t.erase_range(),
        lambda t: t.increment("users", "tablets"),
        lambda t: t.append("users", "id", "x"),
        lambda t: t.transact("users", lambda row: {"tablets": 0}),
        lambda t: t.flush(),
        lambda t: t.compact(),
        lambda t: t.split("m"),
        lambda t: t.join("a", "b"),
    ],
    ids=["put", "insert", "erase", "erase_many", "erase_range", "increment", "append", "transact", "flush", "compact",
         "split", "join"],
)  # fmt: skip
def test_nobody_writes_a_system_table(
    db: ebla.Database, users: ebla.Table, write: Callable[[ebla.Table], object]
) -> None:
    with pytest.raises(ebla.ReadOnly, match=r"sys\.tables shows what the store knows"):
        write(db.table("sys.tables"))
    assert db.table("sys.tables").get("users")["tablets"] == 3


@pytest.mark.parametrize("name", ["META", "sys.tables", "sys.other"])
def test_no_table_can_take_such_a_name(db: ebla.Database, name: str) -> None:
    with pytest.raises(ebla.SchemaError, match="system table"):
        db.create_table(name, USERS)
    if name == "sys.other":
        with pytest.raises(ebla.UnknownTable):
            db.table(name)


def test_an_empty_store_has_empty_system_tables_also_read_only(tmp_path: Path) -> None:
    ebla.open(tmp_path / "empty").close()
    with ebla.open(tmp_path / "empty", read_only=True) as db:
        for name in ("META", "sys.tables", "sys.tablets", "sys.servers"):
            assert db.table(name).scan().count() == 0
