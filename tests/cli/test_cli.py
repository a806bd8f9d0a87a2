"""The command line does what it says, tells errors in one line, and leaves with an exit code that means something.

Most tests run the commands in this process, which is quick; what only a real process shows (pipes, signals, a second
process that writes, the environment) runs in one.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ebla
from ebla.cli.shared.command_failures import ExitCode, error_line, exit_code
from ebla.client.embedded.opening import open_alone
from tests.cli.conftest import Cli, Shell

USERS = shlex.split(
    "create users --key user:string --key day:date32 --column name:string --column age:int32 "
    "--group 'events:families=click,view;max_versions=3' --split m"
)
ADA = '{"user": "ada", "day": "2026-01-01", "name": "Ada", "age": 36, "click:home": "1"}'
BOB = '{"user": "bob", "day": "2026-01-01", "name": "Bob", "age": 29}'
ZOE = '{"user": "zoe", "day": "2026-01-02", "name": null, "view": {"a": "base64:/w==", "b": "x"}}'


@pytest.fixture
def users(cli: Cli) -> Cli:
    cli.fine(*USERS)
    cli.fine("put", "users", ADA, BOB, ZOE)
    return cli


# --- tables --------------------------------------------------------------------------------------


def test_created_table_is_listed_and_described(users: Cli) -> None:
    assert json.loads(users.fine("tables", "--json").out) == ["users"]
    assert "user, day" in users.fine("tables").out
    described = json.loads(users.fine("describe", "users", "--json").out)
    assert described["key"] == {"user": "string", "day": "date32"}
    assert [group["name"] for group in described["groups"]] == ["default", "events"]
    drawn = users.fine("describe", "users").out
    assert "click:…" in drawn
    assert "2 tablet(s)" in drawn


def test_described_schema_makes_the_same_table(users: Cli) -> None:
    text = users.fine("describe", "users", "--json").out
    Path("schema.json").write_text(text)
    users.fine("create", "copy", "--schema", "schema.json")
    users.fine("create", "again", "--schema", "-", stdin=text.encode())
    for name in ("copy", "again"):
        again = json.loads(users.fine("describe", name, "--json").out)
        assert again | {"name": "users"} == json.loads(text)


def test_table_without_a_key_has_one_binary_column(cli: Cli) -> None:
    cli.fine("create", "blobs", "--column", "n:int64")
    cli.fine("put", "blobs", '{"row": "base64:/w==", "n": 1}', '{"row": "a", "n": 2}')
    assert cli.scan("blobs") == [{"row": "a", "n": 2}, {"row": "base64:/w==", "n": 1}]
    assert json.loads(cli.fine("get", "blobs", "base64:/w==", "--json").out)["n"] == 1
    assert cli.scan("blobs", "--prefix", "") == cli.scan("blobs")
    assert cli.scan("blobs", "--prefix", "b") == []


def test_an_altered_table_shows_its_new_columns(users: Cli) -> None:
    users.fine("put", "users", '{"user": "ada", "day": "2026-01-01", "name": "Ada"}')
    changes = "--add-column mail:string --rename name=called --set events:max_versions=5"
    assert "schema version 2" in users.fine("alter", "users", *changes.split()).out
    row = json.loads(users.fine("get", "users", "ada", "2026-01-01", "--json").out)
    assert (row["called"], row["mail"]) == ("Ada", None)
    assert "mail" in users.fine("describe", "users").out


def test_an_age_limit_can_be_lifted(users: Cli) -> None:
    users.fine("alter", "users", "--set", "events:max_age=30d;max_versions=all")
    assert json.loads(users.fine("describe", "users", "--json").out)["groups"][-1]["max_age"] == "30d"
    users.fine("alter", "users", "--set", "events:max_age=none")
    assert "max_age" not in json.loads(users.fine("describe", "users", "--json").out)["groups"][-1]


def test_a_key_that_looks_like_an_option_is_told_how_to_be_written(cli: Cli) -> None:
    cli.fine("create", "t", "--key", "n:int64", "--column", "v:int64")
    cli.fine("put", "t", '{"n": -7, "v": 1}')
    assert "`ebla get TABLE -- -7`" in cli.fails(ExitCode.REQUEST, "get", "t", "-7")
    assert json.loads(cli.fine("get", "t", "--json", "--", "-7").out)["v"] == 1
    assert "--" not in cli.fails(ExitCode.REQUEST, "get", "t", "-q").partition(";")[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--drop-column", "nope"], "no column 'nope'"),
        (["--rename", "name"], "OLD=NEW"),
        (["--move", "name"], "NAME=GROUP"),
        (["--add-column", "mail"], "name:type"),
        (["--set", "events:colour=red"], "no option 'colour'"),
        ([], "nothing to change"),
    ],
    ids=["unknown", "rename", "move", "add", "set", "nothing"],
)
def test_an_alteration_that_cannot_be_says_why(users: Cli, arguments: list[str], told: str) -> None:
    assert told in users.fails(ExitCode.REQUEST, "alter", "users", *arguments)


def test_a_dropped_table_is_listed_and_brought_back(users: Cli) -> None:
    assert users.fine("tables", "--dropped").out == "no dropped tables that could be brought back\n"
    rows = users.scan("users")
    assert "`ebla undelete users` brings it back" in users.fine("drop", "users", "--yes").out
    (dropped,) = json.loads(users.fine("tables", "--dropped", "--json").out)
    assert (dropped["table"], sorted(dropped)) == ("users", ["dropped", "id", "table", "until"])
    assert dropped["id"] in users.fine("tables", "--dropped").out
    assert "no dropped table has the name 'nope'" in users.fails(ExitCode.REQUEST, "undelete", "nope")
    assert users.fine("undelete", "users", "--id", dropped["id"], "--as", "people").out == "people is back\n"
    assert users.scan("people") == rows
    assert users.fine("drop", "people", "--purge", "--yes").out == "dropped people\n"
    assert users.fine("tables", "--dropped", "--json").out == "[]\n"


def test_dropped_table_is_gone_and_needs_a_yes(users: Cli) -> None:
    assert "--yes" in users.fails(ExitCode.REQUEST, "drop", "users")
    assert users.scan("users")
    users.fine("drop", "users", "--yes")
    assert json.loads(users.fine("tables", "--json").out) == []
    assert "ebla create" in users.fine("tables").out


def test_create_without_a_table_makes_an_empty_store(cli: Cli) -> None:
    assert "`ebla create`, without a table, makes an empty store" in cli.fails(ExitCode.STORE, "tables")
    assert "with 0 table(s)" in cli.fine("create").out
    assert json.loads(cli.fine("tables", "--json").out) == []
    cli.fine("create", "t", "--column", "a:int32")
    assert "with 1 table(s)" in cli.fine("create").out  # what is there stays


@pytest.mark.parametrize("command", ["tables", "scan users", "put users {}", "verify", "compact --spark"])
def test_a_store_that_lost_its_coordination_file_is_not_said_to_be_none(users: Cli, command: str) -> None:
    (Path(users.store) / "coordination.sqlite").unlink()
    line = users.fails(ExitCode.STORE, *command.split())
    assert "has files of a store, but neither coordination.sqlite nor coordination.address: bring back" in line
    assert "ebla create" not in line


def test_stats_are_told_for_store_and_table(users: Cli) -> None:
    assert isinstance(json.loads(users.fine("stats", "--json").out), dict)
    assert isinstance(json.loads(users.fine("stats", "users", "--json").out), dict)
    told = users.fine("stats").out
    assert "block_cache.bytes_max" in told
    assert "block_cache.hits" not in told  # zero says nothing
    assert "users" in users.fine("stats", "users").out


def test_flush_writes_parquet_files_that_hold_the_rows(users: Cli) -> None:
    assert users.fine("flush").out == "flushed users\n"
    files = list(Path(users.store).rglob("*.parquet"))
    names = [name for file in files if "name" in (table := pq.read_table(file)).column_names for name in table["name"]]
    assert sorted(str(name) for name in names) == ["Ada", "Bob", "None"]
    users.fine("flush", "users")
    assert len(users.scan("users")) == 3


# --- rows ----------------------------------------------------------------------------------------


def test_put_rows_come_back_with_their_types(users: Cli) -> None:
    assert json.loads(users.fine("get", "users", "ada", "2026-01-01", "--json").out) == json.loads(ADA)
    with ebla.open(users.store, read_only=True) as db:
        row = db.table("users").get(("zoe", date(2026, 1, 2)))
        assert row is not None
        assert (row["name"], row["view:a"], row["view:b"]) == (None, b"\xff", b"x")


def test_a_column_not_named_stays_and_null_sets_null(users: Cli) -> None:
    users.fine("put", "users", '{"user": "ada", "day": "2026-01-01", "age": null}')
    row = json.loads(users.fine("get", "users", "ada", "2026-01-01", "--json").out)
    assert (row["name"], row["age"], row["click:home"]) == ("Ada", None, "1")


def test_rows_with_different_columns_keep_what_they_do_not_name(users: Cli) -> None:
    users.fine(
        "put",
        "users",
        '{"user": "ada", "day": "2026-01-01", "age": 37}',
        '{"user": "bob", "day": "2026-01-01", "name": "Robert", "click:a": "2"}',
    )
    ada, bob, _ = users.scan("users")
    assert (ada["name"], ada["age"], ada["click:home"]) == ("Ada", 37, "1")
    assert (bob["name"], bob["age"], bob["click:a"]) == ("Robert", 29, "2")


def test_replace_erases_what_is_not_given(users: Cli) -> None:
    users.fine("put", "users", "--replace", '{"user": "ada", "day": "2026-01-01", "name": "A"}')
    assert users.scan("users", "--prefix", "ada") == [{"user": "ada", "day": "2026-01-01", "name": "A", "age": None}]


def test_if_absent_refuses_an_existing_row(users: Cli) -> None:
    users.fails(ExitCode.CONFLICT, "put", "users", "--if-absent", ADA)
    before = users.fine("scan", "users", "--format", "jsonl").rows
    users.fine("put", "users", "--if-absent", '{"user": "new", "day": "2026-01-01"}')
    after = users.fine("scan", "users", "--format", "jsonl").rows
    assert [row["user"] for row in after if row not in before] == ["new"]
    assert len(after) == len(before) + 1


def test_every_type_survives_the_way_through_json_and_csv(cli: Cli) -> None:
    columns = {
        "s": "string", "b": "binary", "flag": "bool", "i": "int8", "u": "uint64", "f": "float64", "d": "date32",
        "t": "timestamp[us]", "z": "timestamp[ms, tz=UTC]", "dec": "decimal128(20, 4)", "c": "time64[us]",
        "l": "list<date32>", "p": "struct<x: int32, y: string>",
    }  # fmt: skip
    options = [part for name, kind in columns.items() for part in ("--column", f"{name}:{kind}")]
    for name in ("one", "two", "three"):
        cli.fine("create", name, "--key", "k:int64", *options, "--group", "g:families=x")
    with ebla.open(cli.store) as db:
        db.table("one").put(
            [
                {
                    "k": -1, "s": 'a,"b"\n', "b": b"\xff\x00", "flag": True, "i": -5, "u": 2**64 - 1, "f": 0.1,
                    "d": date(2026, 1, 31), "t": datetime(2026, 1, 31, 1, 2, 3, 4), "dec": Decimal("1.5"),
                    "z": datetime(2026, 1, 31, tzinfo=UTC), "c": datetime(2026, 1, 31, 1, 2).time(),
                    "l": [date(2026, 1, 1), None], "p": {"x": 1, "y": None}, "x:q": b"\xfe", "x:": b"",
                },
                {"k": 2, "s": "", "f": float("inf"), "b": b"", "l": []},
                {"k": 3} | dict.fromkeys(columns),
            ]
        )  # fmt: skip
    cli.fine("put", "two", "--file", "-", stdin=cli.fine("scan", "one", "--format", "jsonl").out.encode())
    Path("rows.csv").write_text(cli.fine("scan", "one", "--format", "csv").out)
    cli.fine("put", "three", "--file", "rows.csv")
    assert json.loads(cli.fine("get", "two", "--json", "--", "-1").out)["x:"] == ""
    with ebla.open(cli.store, read_only=True) as db:
        one = list(db.table("one").scan())
        assert one[0]["x:q"] == b"\xfe"
        assert one[0]["x:"] == b""
        assert list(db.table("two").scan()) == one
        assert list(db.table("three").scan()) == one


def test_files_are_put_in_batches(users: Cli) -> None:
    lines = [json.dumps({"user": f"u{n:04}", "day": "2026-02-01", "age": n}) for n in range(1_000)]
    Path("rows.jsonl").write_text("\ufeff" + "\n".join(lines) + "\n\n")
    assert "put 1,000 row(s)" in users.fine("put", "users", "--file", "rows.jsonl", "--batch-rows", "64").out
    assert [row["age"] for row in users.scan("users", "--start", "u", "--stop", "v")] == list(range(1_000))


def test_parquet_files_are_cast_to_the_columns_types(users: Cli) -> None:
    rows = {"user": pa.array(["p", "q"]).dictionary_encode(), "day": [date(2026, 1, 1)] * 2, "age": [1, 2]}
    pq.write_table(pa.table(rows), "rows.parquet")
    users.fine("put", "users", "--file", "rows.parquet")
    assert [row["age"] for row in users.scan("users", "--start", "p", "--stop", "r")] == [1, 2]
    pq.write_table(pa.table(rows | {"age": [2**40, 2]}), "rows.parquet")
    assert "column 'age'" in users.fails(ExitCode.REQUEST, "put", "users", "--file", "rows.parquet")


def test_progress_goes_to_standard_error_when_asked(users: Cli) -> None:
    Path("rows.jsonl").write_text(BOB)
    result = users("put", "users", "--file", "rows.jsonl", "--progress")
    assert result.code == 0
    assert result.out.startswith("put 1 row(s)")
    assert "rows" in result.err


def test_a_bad_line_is_named_and_what_came_before_is_stored(users: Cli) -> None:
    good = [json.dumps({"user": f"u{n}", "day": "2026-02-01"}) for n in range(4)]
    Path("rows.jsonl").write_text("\n".join([*good, '{"user": "x", "day": "tomorrow"}']))
    line = users.fails(ExitCode.REQUEST, "put", "users", "--file", "rows.jsonl", "--batch-rows", "2")
    assert "rows.jsonl line 5: column 'day': 'tomorrow' is not date32" in line
    assert "the 4 row(s) before are stored" in line
    assert len(users.scan("users", "--start", "u", "--stop", "v")) == 4


def test_of_many_rows_in_a_file_the_bad_one_is_named(users: Cli) -> None:
    lines = ['{"user": "a", "day": "2026-02-01"}', "", '{"user": "b", "day": "2026-02-01", "age": "old"}']
    Path("rows.jsonl").write_text("\n".join(lines))
    assert "rows.jsonl line 3: column 'age': 'old' is not int32" in users.fails(
        ExitCode.REQUEST, "put", "users", "--file", "rows.jsonl"
    )
    rows = [f"u{n},2026-02-01,{n}" for n in range(5)]
    Path("rows.csv").write_text("\n".join(["user,day,age", *rows, "v,2026-02-01,old", "w,2026-02-01,7"]))
    assert "rows.csv row 6: column 'age': 'old' is not int32" in users.fails(
        ExitCode.REQUEST, "put", "users", "--file", "rows.csv"
    )
    # In batches of four the row keeps its number.
    line = users.fails(ExitCode.REQUEST, "put", "users", "--file", "rows.csv", "--batch-rows", "4")
    assert "rows.csv row 6: column 'age'" in line
    assert "the 4 row(s) before are stored" in line


def test_erase_takes_a_row_some_columns_or_a_range(users: Cli) -> None:
    users.fine("erase", "users", "ada", "2026-01-01", "--columns", "name,click:home")
    assert users.scan("users", "--prefix", "ada") == [{"user": "ada", "day": "2026-01-01", "name": None, "age": 36}]
    users.fine("erase", "users", "ada", "2026-01-01")
    users.fine("erase", "users", "nobody", "2026-01-01")
    assert [row["user"] for row in users.scan("users")] == ["bob", "zoe"]
    users.fine("erase", "users", "--prefix", "zo")  # a prefix of a composite key is whole columns
    users.fine("erase", "users", "--range", "a", "c")
    assert [row["user"] for row in users.scan("users")] == ["zoe"]
    users.fine("erase", "users", "--range", '["zoe", "2026-01-03"]', "")
    assert [row["user"] for row in users.scan("users")] == ["zoe"]
    users.fine("put", "users", '{"user": "zoey", "day": "2026-01-01"}')
    users.fine("erase", "users", "--prefix", "zoe")
    assert [row["user"] for row in users.scan("users")] == ["zoey"]
    users.fine("erase", "users", "--range", "", "")
    assert users.scan("users") == []


# --- scan ----------------------------------------------------------------------------------------


def test_scan_prints_json_lines_when_json_is_asked_for(users: Cli) -> None:
    assert users.fine("scan", "users", "--json").out == users.fine("scan", "users", "--format", "jsonl").out


def test_create_takes_a_table_that_is_there_if_it_is_the_same(users: Cli) -> None:
    wanted = ("create", "new", "--key", "k:int64", "--column", "v:string", "--if-not-exists")
    assert users.fine(*wanted).out == "created new\n"
    assert users.fine(*wanted).out == "new is there already\n"
    told = users.fails(ExitCode.REQUEST, *wanted, "--column", "w:string")
    assert "there is a table 'new' already, and it has no column 'w'" in told


def test_scan_counts_rows_instead_of_printing_them(users: Cli) -> None:
    def count(*more: str) -> str:
        return users.fine("scan", "users", "--count", *more).out

    assert count() == "3\n"
    assert count("--start", "b", "--stop", "z") == "1\n"
    assert count("--prefix", "zoe", "--json") == "1\n"
    assert count("--where", "age > 30 or user = zoe") == "2\n"
    assert count("--columns", "click", "--limit", "1", "--reverse") == "1\n"


def test_scan_takes_a_part_of_the_table(users: Cli) -> None:
    def names(*more: str) -> list[object]:
        return [row["user"] for row in users.scan("users", *more)]

    assert names() == ["ada", "bob", "zoe"]
    assert names("--start", "b", "--stop", "z") == ["bob"]
    assert names("--start", '["zoe", "2026-01-02"]') == ["zoe"]
    assert names("--stop", '["ada", "2026-01-01"]') == []
    assert names("--prefix", "zoe") == ["zoe"]
    assert names("--prefix", "zo") == []
    assert names("--reverse", "--limit", "2") == ["zoe", "bob"]
    assert names("--limit", "0") == []
    assert names("--where", "age > 30") == ["ada"]
    assert names("--where", "day = 2026-01-02") == ["zoe"]
    assert names("--where", "age > 30", "--columns", "name") == ["ada"]
    assert names("--where", "click:home = 1") == ["ada"]
    assert names("--where", "name like 'B%' or not (age < 100 or name is null)") == ["bob"]
    assert names("--where", "user in (zoe, ada) and day between 2026-01-01 and 2026-01-02") == ["ada", "zoe"]
    assert users.scan("users", "--columns", "age,click:home", "--limit", "1") == [
        {"user": "ada", "day": "2026-01-01", "age": 36, "click:home": "1"}
    ]


def test_scan_and_get_look_back(users: Cli) -> None:
    txn = users.fine("put", "users", BOB).out.split()[-1]
    moment = datetime.now(UTC).isoformat()
    for name in ("monday", "2026-01-01"):
        users.fine("snapshots", "--take", name)
    users.fine("put", "users", '{"user": "bob", "day": "2026-01-01", "age": 99}')
    assert users.scan("users", "--prefix", "bob")[0]["age"] == 99
    for as_of in (txn, moment, "monday", "2026-01-01"):
        assert users.scan("users", "--prefix", "bob", "--as-of", as_of)[0]["age"] == 29
        got = users.fine("get", "users", "bob", "2026-01-01", "--as-of", as_of, "--json").out
        assert json.loads(got)["age"] == 29


def test_scan_draws_a_table_and_says_when_rows_are_left_out(users: Cli) -> None:
    drawn = users.fine("scan", "users").out
    assert "click:home" in drawn
    assert "3 row(s), txn " in drawn
    lines = "\n".join(json.dumps({"user": f"u{n:03}", "day": "2026-02-01"}) for n in range(150))
    users.fine("put", "users", "--file", "-", stdin=lines.encode())
    cut = users("scan", "users")
    assert (cut.code, cut.err.count("\n")) == (0, 1)
    assert "not shown" in cut.err
    assert "u096" in cut.out
    assert "u098" not in cut.out
    assert "u149" in users.fine("scan", "users", "--limit", "1000").out


def test_an_empty_scan_still_has_a_csv_header(users: Cli) -> None:
    assert (
        users.fine("scan", "users", "--columns", "name", "--limit", "0", "--format", "csv").out
        == '"user","day","name"\n'
    )
    assert users.scan("users", "--prefix", "none") == []
    assert "0 row(s)" in users.fine("scan", "users", "--prefix", "none").out


# --- failures ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cli, list[dict[str, object]]]:
    """A store that no failing command may change, and its rows; some unfit files beside it."""
    directory = tmp_path_factory.mktemp("untouched")
    (directory / "rows.txt").write_text("{}")
    (directory / "bad.json").write_text("{")
    (directory / "bad.parquet").write_bytes(b"PAR1 or so")
    (directory / "bad.csv").write_text("user,day\na\n")
    (directory / "binary.csv").write_bytes(b"\xff\xfe,\x00")
    (directory / "twice.csv").write_text("user,user\na,b\n")
    users = Cli(str(directory / "store"))
    users.fine(*USERS)
    users.fine("put", "users", ADA, BOB, ZOE)
    return users, users.scan("users")


def test_get_of_no_row_leaves_with_1(users: Cli) -> None:
    assert "no row ada 2027-01-01 in users" in users.fails(ExitCode.NOT_FOUND, "get", "users", "ada", "2027-01-01")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("get nope x", "`ebla tables`"),
        ("get users ada", "the key is USER DAY"),
        ("get users ada yesterday", "'yesterday' is not date32"),
        ("get users ada 2026-01-01 --columns nme", "'nme'"),
        ("get users ada 2026-01-01 --columns ,", "--columns is empty"),
        ("scan users --where age>thirty", "'thirty' is not int32"),
        ("scan users --where age>", "ends where a value should follow"),
        ("scan users --as-of yesterday", "neither a transaction number nor a time nor a snapshot"),
        ("scan users --start [", "not a JSON array"),
        ("scan users --limit -1", "ebla scan --help"),
        ("scan users --format xml", "ebla scan --help"),
        ("scan", "missing argument 'TABLE'"),
        ("scn users", "see `ebla --help`"),
        ("scan users --wher x", "see `ebla scan --help`"),
        ("put users", "--file"),
        ("put users {}", ""),
        ("put users []", "not a JSON object"),
        ("put users {", "not a JSON object"),
        ('put users {"user":"a","day":"2026-01-01","nme":1}', "'nme'"),
        ('put users {"user":"a","day":"2026-01-01","age":"x"}', "'x' is not int32"),
        ('put users {"user":null,"day":"2026-01-01"}', ""),
        ('put users {"user":"a"}', "day"),
        ('put users {"user":"a","day":"2026-01-01","click":"1"}', "click:qualifier"),
        ('put users {"user":"a","day":"2026-01-01","click:x":1}', "click"),
        ("put users --file none.jsonl", "none.jsonl"),
        ("put users --file rows.txt", "--format"),
        ("put users --file .", "--format"),
        ("put users --file bad.parquet", "not a Parquet file"),
        ("put users --file bad.csv", "bad.csv"),
        ("put users --file twice.csv", "twice"),
        ("put users --file binary.csv", "is it CSV in UTF-8?"),
        ("put users --file bad.csv --format jsonl", "bad.csv line 1 is not a JSON object"),
        ("put users --file - --format parquet", "pipe"),
        ("erase users", "--range"),
        ("erase users ada 2026-01-01 --range a b", "one of the three"),
        ("erase users ada 2026-01-01 --prefix a", "one of the three"),
        ("erase users --prefix ada --columns name", "leave out --columns"),
        ("create --column a:int32", "give the name of the table"),
        ("erase users --range a b --columns name", "leave out --columns"),
        ("create users --column a:int32", "already"),
        ("create META --column a:int32", "system table"),
        ("create t", "--column NAME:TYPE"),
        ("create t --column a:int33", "unknown type 'int33'"),
        ("create t --column a", "name:type"),
        ("create t --group g", "--group"),
        ("create t --schema none.json", "none.json"),
        ("create t --schema bad.json", "not a schema"),
        ("create t --schema bad.json --column a:int32", "stands alone"),
        ("create t --key k:int32 --column a:int32 --split x", "'x' is not int32"),
        ("describe nope", "`ebla tables`"),
        ("flush nope", "`ebla tables`"),
        ("stats nope", "`ebla tables`"),
        ("drop nope --yes", "`ebla tables`"),
    ],
)
def test_wrong_requests_leave_with_2_and_one_line(
    untouched: tuple[Cli, list[dict[str, object]]], arguments: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, rows = untouched
    monkeypatch.chdir(Path(users.store).parent)
    words = arguments.split(" ", 2) if "{" in arguments else arguments.split(" ")
    assert part in users.fails(ExitCode.REQUEST, *words)
    assert users.scan("users") == rows
    assert json.loads(users.fine("tables", "--json").out) == ["users"]


def test_no_store_leaves_with_6_and_makes_none(cli: Cli) -> None:
    for arguments in (["tables"], ["scan", "users"], ["put", "users", "{}"], ["flush"], ["drop", "users", "--yes"]):
        assert "ebla create" in cli.fails(ExitCode.STORE, *arguments)
    assert not Path(cli.store).exists()


def test_damaged_store_leaves_with_6(users: Cli) -> None:
    users.fine("flush")
    for file in Path(users.store).rglob("*.parquet"):
        file.write_bytes(b"\x00" * file.stat().st_size)
    assert ".parquet" in users.fails(ExitCode.STORE, "scan", "users", "--format", "jsonl")


def test_a_second_writer_leaves_with_4_and_readers_go_on(users: Cli, shell: Shell) -> None:
    with ebla.open(users.store) as db:
        db.table("users").put({"user": "new", "day": date(2026, 1, 1)})
        refused = shell(f"ebla --store {users.store} put users '{BOB}'")
        assert refused.returncode == ExitCode.UNAVAILABLE
        assert refused.stderr.startswith("error: ")
        assert refused.stderr.count("\n") == 1
        read = shell("ebla get users new 2026-01-01 --json", EBLA_STORE=users.store)
        assert (read.returncode, read.stderr) == (0, "")
        assert json.loads(read.stdout)["user"] == "new"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ebla.InvalidBatch("x"), 2),
        (ebla.Conflict("x"), 3),
        (ebla.TimedOut("x"), 4),
        (ebla.OutcomeUnknown("x"), 5),
        (ebla.LogFailed("x"), 6),
        (ebla.Corruption("file", "x", 7), 6),
        (OSError(28, "No space left on device"), 6),
        (KeyError("x"), 70),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda given: type(given).__name__,
)
def test_exit_codes_follow_the_error_tree(error: BaseException, code: int) -> None:
    assert exit_code(error) == code
    assert "\n" not in error_line(error)
    assert error_line(error)


def test_what_to_do_without_a_store_or_beside_another_process_is_said_for_a_shell(cli: Cli) -> None:
    told = cli.fails(ExitCode.STORE, "tables")
    assert f"there is no store at {cli.store}; check --store or EBLA_STORE; `ebla create`" in told
    with open_alone(cli.store):
        told = cli.fails(ExitCode.UNAVAILABLE, "create", "t", "--column", "n:int32")
        assert "has the store open for writing already; wait until that process closes it" in told
        assert "read_only=True" not in told


def test_debug_shows_the_traceback(users: Cli) -> None:
    result = users("--debug", "scan", "nope")
    assert result.code == ExitCode.REQUEST
    assert "Traceback" in result.err
    assert "UnknownTable" in result.err


def test_an_interrupt_before_the_command_begins_is_told_in_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ebla.cli._commands", interrupted)
    assert cli.fails(ExitCode.INTERRUPTED, "tables") == "error: interrupted\n"


def test_bare_command_prints_the_help(cli: Cli) -> None:
    assert "Commands:" in cli.fine().out


# --- processes -----------------------------------------------------------------------------------


def test_store_comes_from_option_environment_or_default(shell: Shell) -> None:
    assert shell("ebla create a --column n:int32 && ebla tables --store data --json").stdout.endswith('"a"\n]\n')
    assert shell("ebla create b --column n:int32", EBLA_STORE="other").returncode == 0
    assert '"b"' in shell("ebla --store other tables --json", EBLA_STORE="data").stdout


def test_closed_pipe_is_quiet(users: Cli, shell: Shell) -> None:
    rows = "\n".join(json.dumps({"user": f"u{n:05}", "day": "2026-02-01", "name": "x" * 100}) for n in range(3_000))
    users.fine("put", "users", "--file", "-", stdin=rows.encode())
    for form in ("jsonl", "table --limit 3000"):
        cut = shell(f"{{ ebla --store {users.store} scan users --format {form}; echo left $? >&2; }} | head -1")
        assert cut.stdout.count("\n") == 1
        assert cut.stderr == "left 0\n"


@pytest.fixture
def feeding(users: Cli) -> Iterator[subprocess.Popen[bytes]]:
    """A `put` that waits for more lines on standard input."""
    command = [
        sys.executable,
        "-c",
        "from ebla.cli import main; main()",
        "put",
        "users",
        "--file",
        "-",
        "--batch-rows",
        "1",
    ]
    environment = os.environ | {"EBLA_STORE": users.store, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    yield process
    process.kill()
    process.communicate()


def test_interrupt_leaves_with_130_and_keeps_what_was_acknowledged(
    users: Cli, feeding: subprocess.Popen[bytes]
) -> None:
    assert feeding.stdin is not None
    feeding.stdin.write(b'{"user": "u1", "day": "2026-02-01"}\n')
    feeding.stdin.flush()
    while not users.scan("users", "--prefix", "u1"):  # until the line has been stored
        assert feeding.poll() is None
    feeding.send_signal(signal.SIGINT)
    assert feeding.wait(timeout=60) == ExitCode.INTERRUPTED
    assert feeding.stderr is not None
    # A row can be seen, by those who read meanwhile, just before `put` returns; then it is not counted.
    told = ("error: interrupted\n", "error: interrupted; the 1 row(s) before are stored\n")
    assert feeding.stderr.read().decode() in told
    assert len(users.scan("users", "--prefix", "u1")) == 1


def test_cells_of_a_wildcard_group_survive_the_way_through_json_and_csv(cli: Cli) -> None:
    for name in ("one", "two", "three"):
        cli.fine("create", name, "--key", "k:string", "--group", "some:families=known", "--group", "rest:families=*")
    cli.fine(
        "put",
        "one",
        '{"k": "a", "x:y": "1", "bare": "base64:/w==", "known:z": "2", "other": "3", "v": null}',
        '{"k": "b", "known": {"q": "4"}, "x:w": ""}',
        '{"k": "c", "new:": {"n": "5"}}',
    )
    rows = cli.fine("scan", "one", "--format", "jsonl").out
    assert json.loads(rows.splitlines()[0]) == {
        "k": "a", "known:z": "2", "bare": "base64:/w==", "other": "3", "x:y": "1",
    }  # fmt: skip
    assert json.loads(cli.fine("get", "one", "a", "--json").out) == json.loads(rows.splitlines()[0])
    cli.fine("put", "two", "--file", "-", stdin=rows.encode())
    cli.fine(
        "put", "three", "--file", "-", "--format", "csv", stdin=cli.fine("scan", "one", "--format", "csv").out.encode()
    )
    assert cli.fine("scan", "two", "--format", "jsonl").out == rows
    assert cli.fine("scan", "three", "--format", "jsonl").out == rows
    assert "x:y" in cli.fine("scan", "one").out


def test_system_tables_are_scanned_like_others_and_not_written(users: Cli) -> None:
    (row,) = users.fine("scan", "sys.tables", "--format", "jsonl").rows
    assert (row["name"], row["tablets"]) == ("users", 2)
    rows = users.fine("scan", "META", "--prefix", "users", "--format", "jsonl").rows
    assert (rows[0]["row"], rows[-1]["row"], len(rows)) == ("users", "users!", 3)
    users.fails(ExitCode.REQUEST, "put", "sys.tables", '{"name": "x"}')


def test_the_package_runs_as_the_command_does(users: Cli) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "ebla", "--store", str(users.store), "tables", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ran.stdout) == ["users"]


def test_the_version_is_told(cli: Cli) -> None:
    assert cli.fine("--version").out.strip() == f"ebla {ebla.__version__}"
