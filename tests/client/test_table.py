"""The API of a table, one fact at a time. Read it from top to bottom to learn how Ebla is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ebla

DAY = date(2026, 1, 1)

USERS = ebla.Schema(
    key={"user": "string", "day": "date32"},
    groups=[
        ebla.Group("profile", columns={"name": "string", "age": "int32", "tags": "list<string>"}),
        ebla.Group("events", families=["click", "view"], max_versions=3),
    ],
)
COUNTS = ebla.Schema(key={"word": "string"}, columns={"n": "int64", "text": "string"})


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "data") as database:
        yield database


@pytest.fixture
def users(db: ebla.Database) -> ebla.Table:
    return db.create_table("users", USERS)


@pytest.fixture
def counts(db: ebla.Database) -> ebla.Table:
    table = db.create_table("counts", COUNTS)
    table.put([{"word": word, "n": len(word)} for word in ("and", "banana", "cherry", "dates")])
    return table


def words(rows: Any) -> list[str]:
    return [row["word"] for row in rows]


# --- a database ----------------------------------------------------------------------------------


class TestDatabase:
    def test_tables_are_made_found_listed_and_dropped(self, db: ebla.Database) -> None:
        made = db.create_table("users", USERS)
        assert (made.name, made.key_names) == ("users", ("user", "day"))
        db.create_table("counts", COUNTS)
        assert db.tables() == ["counts", "users"]
        assert db.table("users").schema == made.schema
        db.drop_table("users")
        assert db.tables() == ["counts"]
        with pytest.raises(ebla.UnknownTable, match="'users'"):
            db.table("users")

    def test_a_name_is_taken_once_and_free_after_a_drop(self, db: ebla.Database) -> None:
        first = db.create_table("t", COUNTS)
        first.put({"word": "old", "n": 1})
        with pytest.raises(ebla.TableExists):
            db.create_table("t", COUNTS)
        db.drop_table("t")
        assert list(db.create_table("t", COUNTS).scan()) == []
        with pytest.raises(ebla.UnknownTable, match="dropped"):
            first.put({"word": "late", "n": 2})

    def test_what_was_put_is_there_after_reopening(self, tmp_path: Path) -> None:
        with ebla.open(tmp_path) as db:
            db.create_table("t", COUNTS).put({"word": "a", "n": 1})
        with ebla.open(tmp_path) as db:
            assert db.table("t").get("a") == {"word": "a", "n": 1, "text": None}

    def test_a_closed_database_says_so(self, tmp_path: Path) -> None:
        db = ebla.open(tmp_path)
        table = db.create_table("t", COUNTS)
        db.close()
        db.close()
        with pytest.raises(ebla.Closed):
            db.tables()
        with pytest.raises(ebla.Closed):
            table.put({"word": "a", "n": 1})

    def test_a_reader_beside_a_writer_can_only_read(self, tmp_path: Path) -> None:
        with ebla.open(tmp_path) as db:
            table = db.create_table("t", COUNTS)
            table.put({"word": "a", "n": 1})
            with ebla.open(tmp_path, read_only=True) as reader:
                assert reader.read_only
                assert reader.table("t").get("a")["n"] == 1
                with pytest.raises(ebla.ReadOnly):
                    reader.table("t").put({"word": "b", "n": 1})
                with pytest.raises(ebla.ReadOnly):
                    reader.create_table("u", COUNTS)

    def test_reading_where_no_store_is_does_not_make_one(self, tmp_path: Path) -> None:
        for given in ({"read_only": True}, {"create": False}):
            with pytest.raises(ebla.StoreNotFound):
                ebla.open(tmp_path / "nowhere", **given)
        assert not (tmp_path / "nowhere").exists()

    def test_a_place_that_cannot_hold_a_store_is_a_typed_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(ebla.StoreError, match="Not a directory"):
            ebla.open(tmp_path / "file" / "data")
        (tmp_path / "data" / "LOCK").mkdir(parents=True)
        with pytest.raises(ebla.StoreError, match="Is a directory"):
            ebla.open(tmp_path / "data")

    def test_a_table_can_be_cut_into_tablets_at_once(self, db: ebla.Database) -> None:
        table = db.create_table("t", USERS, splits=[("g",), ("p", DAY)])
        assert [(t["first"], t["last"]) for t in table.tablets()][1][1] == ("p", DAY)
        rows = [{"user": user, "day": DAY, "age": n} for n, user in enumerate(["a", "g", "p", "z"])]
        table.put(rows)
        table.flush()
        assert [row["user"] for row in table.scan()] == ["a", "g", "p", "z"]
        assert [tablet["rows"] > 0 for tablet in table.tablets()] == [True, True, True]

    @pytest.mark.parametrize("splits", [["b", "a"], ["a", "a"], [""]])
    def test_splits_must_cut(self, db: ebla.Database, splits: list[str]) -> None:
        with pytest.raises(ebla.RequestError, match="split"):
            db.create_table("t", COUNTS, splits=splits)


# --- put and get ---------------------------------------------------------------------------------


class TestPut:
    def test_a_row_is_put_as_a_dict_and_got_by_its_key(self, users: ebla.Table) -> None:
        txn = users.put({"user": "ada", "day": DAY, "name": "Ada", "age": 36, "click:home": b"1"})
        row = users.get(("ada", DAY))
        assert row == {"user": "ada", "day": DAY, "name": "Ada", "age": 36, "tags": None, "click:home": b"1"}
        assert row.txn >= txn
        assert users.get(("eve", DAY)) is None

    def test_a_key_is_a_tuple_a_dict_or_if_it_has_one_column_a_value(
        self, users: ebla.Table, counts: ebla.Table
    ) -> None:
        users.put({"user": "ada", "day": DAY, "age": 36})
        assert users.get({"day": DAY, "user": "ada"}) == users.get(("ada", DAY))
        assert counts.get("and") == counts.get(("and",))

    def test_rows_come_as_dicts_arrow_pandas_or_polars(self, counts: ebla.Table) -> None:
        pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
        columns = {"word": ["x", "y"], "n": [1, 2]}
        table = pa.table(columns)
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        forms = [
            [{"word": "x", "n": 1}, {"word": "y", "n": 2}],
            ({"word": w, "n": n} for w, n in zip(*columns.values(), strict=True)),
            table,
            table.to_batches()[0],
            pandas.DataFrame(columns),
            polars.DataFrame(columns),
            stream.getvalue().to_pybytes(),
        ]
        for rows in forms:
            counts.erase_range()
            counts.put(rows)
            assert counts.scan().to_arrow().select(["word", "n"]).to_pydict() == columns

    def test_a_missing_column_stays_as_it_was_and_none_sets_null(self, users: ebla.Table) -> None:
        users.put({"user": "ada", "day": DAY, "name": "Ada", "age": 36})
        users.put({"user": "ada", "day": DAY, "age": 37})
        assert users.get(("ada", DAY), columns=["name", "age"]) == {"user": "ada", "day": DAY, "name": "Ada", "age": 37}
        users.put({"user": "ada", "day": DAY, "name": None})
        assert users.get(("ada", DAY))["name"] is None

    def test_rows_of_one_put_may_set_different_columns(self, counts: ebla.Table) -> None:
        counts.put([{"word": "and", "text": "x"}, {"word": "banana", "n": 0}])
        assert counts.get("and") == {"word": "and", "n": 3, "text": "x"}
        assert counts.get("banana") == {"word": "banana", "n": 0, "text": None}

    def test_of_two_rows_with_one_key_the_later_wins(self, counts: ebla.Table) -> None:
        counts.put([{"word": "z", "n": 1}, {"word": "z", "n": 2, "text": "t"}, {"word": "z", "n": 3}])
        assert counts.get("z") == {"word": "z", "n": 3, "text": "t"}

    def test_a_row_of_nothing_but_its_key_exists(self, counts: ebla.Table) -> None:
        counts.put({"word": "bare"})
        assert counts.get("bare") == {"word": "bare", "n": None, "text": None}

    def test_replace_puts_whole_rows(self, users: ebla.Table) -> None:
        users.put({"user": "ada", "day": DAY, "name": "Ada", "age": 36, "click:home": b"1", "view:x": b"2"})
        users.put({"user": "ada", "day": DAY, "age": 40, "view:y": b"3"}, replace=True)
        assert users.get(("ada", DAY)) == {
            "user": "ada",
            "day": DAY,
            "name": None,
            "age": 40,
            "tags": None,
            "view:y": b"3",
        }

    def test_if_absent_puts_only_rows_that_are_not_there_and_all_or_none(self, counts: ebla.Table) -> None:
        counts.put({"word": "new", "n": 1}, if_absent=True)
        with pytest.raises(ebla.Conflict, match=r"'and'.*exists"):
            counts.put([{"word": "newer", "n": 1}, {"word": "and", "n": 1}], if_absent=True)
        assert counts.get("newer") is None
        counts.erase("and")
        counts.put({"word": "and", "n": 9}, if_absent=True)
        assert counts.get("and")["n"] == 9

    def test_txns_grow_and_are_times(self, counts: ebla.Table) -> None:
        before = datetime.now(UTC)
        first, second = counts.put({"word": "a", "n": 1}), counts.put({"word": "b", "n": 1})
        assert first < second
        assert before - timedelta(seconds=60) < ebla.time_of(second) < datetime.now(UTC) + timedelta(seconds=60)

    @pytest.mark.parametrize("wait", ["durable", "logged", "none"])
    def test_wait_says_what_put_waits_for(self, db: ebla.Database, counts: ebla.Table, wait: Any) -> None:
        txn = counts.put({"word": "w", "n": 1}, wait=wait)
        assert counts.get("w", read_uncommitted=True)["n"] == 1
        assert db.sync(txn) >= txn
        assert counts.get("w")["n"] == 1

    @pytest.mark.parametrize(
        ("rows", "error"),
        [
            ({"word": "a", "m": 1}, ebla.UnknownColumn),
            ({"n": 1}, ebla.InvalidBatch),
            ({"word": None, "n": 1}, ebla.InvalidKey),
            ({"word": "a", "n": "one"}, ebla.InvalidBatch),
            ({"word": "a", "_n": 1}, ebla.InvalidBatch),
            ([{"word": "fine", "n": 1}, {"word": "a", "n": 1 << 70}], ebla.InvalidBatch),
            (b"not arrow", ebla.InvalidBatch),
            ("text", ebla.InvalidBatch),
            (7, ebla.InvalidBatch),
        ],
        ids=str,
    )
    def test_rows_that_do_not_fit_are_refused_as_a_whole(
        self, counts: ebla.Table, rows: Any, error: type[Exception]
    ) -> None:
        before = counts.scan().to_arrow()
        with pytest.raises(error):
            counts.put(rows)
        assert counts.scan().to_arrow().equals(before)

    def test_what_is_larger_than_the_settings_allow_is_refused(self, tmp_path: Path) -> None:
        settings = ebla.Settings(key_bytes_max=10, value_bytes_max=100, batch_bytes_max=10_000)
        with ebla.open(tmp_path, settings=settings) as db:
            table = db.create_table("t", COUNTS)
            table.put({"word": "k" * 10, "text": "v" * 100})
            with pytest.raises(ebla.InvalidKey, match="at most 10"):
                table.put({"word": "k" * 11, "text": ""})
            with pytest.raises(ebla.InvalidBatch, match="at most 100"):
                table.put({"word": "k", "text": "v" * 101})
            with pytest.raises(ebla.InvalidBatch, match="at most 10000"):
                table.put([{"word": f"{n}", "text": "v" * 90} for n in range(200)])
            assert table.scan().count() == 1


class TestGet:
    def test_only_the_columns_asked_for_are_returned_with_the_key(self, users: ebla.Table) -> None:
        users.put({"user": "ada", "day": DAY, "age": 36, "click:a": b"1", "click:b": b"2", "view:c": b"3"})
        assert users.get(("ada", DAY), columns=["age"]) == {"user": "ada", "day": DAY, "age": 36}
        assert users.get(("ada", DAY), columns=["click:a"]) == {"user": "ada", "day": DAY, "click:a": b"1"}
        assert users.get(("ada", DAY), columns=["click"]) == {
            "user": "ada",
            "day": DAY,
            "click:a": b"1",
            "click:b": b"2",
        }

    def test_a_row_is_the_callers_own(self, users: ebla.Table) -> None:
        users.put({"user": "ada", "day": DAY, "tags": ["x"]})
        for _ in range(3):  # from disk, then from the cache
            row = users.get(("ada", DAY))
            row["tags"].append("mine")
            row["age"] = 1
        assert users.get(("ada", DAY))["tags"] == ["x"]
        assert users.get(("ada", DAY))["age"] is None

    def test_get_many_answers_in_the_order_asked(self, counts: ebla.Table) -> None:
        found = counts.get_many(["dates", "nothing", "and", "dates"], columns=["n"])
        assert found.to_pydict() == {
            "word": ["dates", "nothing", "and", "dates"],
            "n": [5, None, 3, 5],
            "_found": [True, False, True, True],
        }
        assert counts.get_many([]).num_rows == 0

    def test_get_many_takes_arrow_keys(self, users: ebla.Table) -> None:
        users.put([{"user": "ada", "day": DAY, "age": 1}, {"user": "bob", "day": DAY, "age": 2}])
        keys = pa.table({"user": ["bob", "eve"], "day": pa.array([DAY, DAY])})
        assert users.get_many(keys)["age"].to_pylist() == [2, None]

    @pytest.mark.parametrize("key", ["ada", ("ada",), ("ada", DAY, 1), ("ada", "monday"), (None, DAY), {"user": "ada"}])
    def test_a_key_of_another_shape_is_refused(self, users: ebla.Table, key: Any) -> None:
        with pytest.raises(ebla.InvalidKey):
            users.get(key)


# --- cells ---------------------------------------------------------------------------------------


class TestCells:
    def test_cells_come_by_name_or_as_a_dict_for_the_family(self, users: ebla.Table) -> None:
        users.put({"user": "ada", "day": DAY, "click:home": b"1", "view": {"a": b"2", "b": b"3"}})
        row = users.get(("ada", DAY))
        assert {name: row[name] for name in row if ":" in name} == {"click:home": b"1", "view:a": b"2", "view:b": b"3"}

    def test_in_arrow_a_family_is_a_map_column(self, users: ebla.Table) -> None:
        users.put({"user": "ada", "day": DAY, "click:home": b"1"})
        found = users.scan(columns=["click", "view:x"]).to_arrow()
        assert found.schema.field("click").type == pa.map_(pa.string(), pa.binary())
        assert found["click"].to_pylist() == [[("home", b"1")]]
        assert found["view:x"].to_pylist() == [None]
        users.put(found)  # and it can be put back

    def test_a_row_exists_while_it_has_a_cell(self, users: ebla.Table) -> None:
        users.put({"user": "ada", "day": DAY, "click:home": b"1"})
        assert users.get(("ada", DAY), columns=["click"]) is not None
        users.erase(("ada", DAY), ["click:home"])
        assert users.get(("ada", DAY), columns=["click"]) is None

    def test_long_form_gives_cells_their_own_timestamps(self, users: ebla.Table) -> None:
        cells = pa.table(
            {
                "user": ["ada"] * 3,
                "day": pa.array([DAY] * 3),
                "family": ["click"] * 3,
                "qualifier": ["home"] * 3,
                "value": [b"second", b"third", b"first"],
                "timestamp": pa.array([2, 3, 1], pa.timestamp("us")),
            }
        )
        users.put_cells(cells)
        assert users.get(("ada", DAY))["click:home"] == b"third"
        (row,) = users.scan(versions=5)
        assert [version.value for version in row["click:home"]] == [b"third", b"second", b"first"]
        assert row["click:home"][0].timestamp == datetime(1970, 1, 1, microsecond=3)

    def test_no_more_versions_are_kept_than_the_group_says(self, users: ebla.Table) -> None:
        for n in range(5):
            users.put({"user": "ada", "day": DAY, "click:home": b"%d" % n})
        (row,) = users.scan(versions=10)
        assert [version.value for version in row["click:home"]] == [b"4", b"3", b"2"]

    def test_a_wildcard_group_takes_any_family_and_bare_names(self, db: ebla.Database) -> None:
        table = db.create_table("open", ebla.Schema(groups=[ebla.Group("all", families=["*"])]))
        table.put({"row": b"r", "any:thing": b"1", "bare": b"2"})
        assert table.get(b"r") == {"row": b"r", "any:thing": b"1", "bare": b"2"}
        assert table.scan().to_arrow()["*"].to_pylist() == [[("bare", b"2"), ("any:thing", b"1")]]
        assert table.get(b"r", columns=["any:"]) == {"row": b"r", "any:thing": b"1"}

    def test_a_bare_cell_that_is_called_like_something_else_takes_the_place_of_nothing(self, db: ebla.Database) -> None:
        groups = [
            ebla.Group("all", families=["*"]),
            ebla.Group("g", columns={"n": "int64"}),
            ebla.Group("f", families=["f"]),
        ]
        table = db.create_table("open", ebla.Schema(groups=groups))
        names = ("row", "n", "f", "f:q", "loose")
        table.put({"row": b"r", "n": 1, "f:q": b"named"})
        table.put_cells([{"row": b"r", "family": "", "qualifier": name, "value": name.encode()} for name in names])
        bare = {":row": b"row", ":n": b"n", ":f": b"f", ":f:q": b"f:q"}
        assert table.get(b"r") == {"row": b"r", "n": 1, "f:q": b"named", "loose": b"loose", **bare}
        assert list(table.scan(columns=list(bare))) == [{"row": b"r", **bare}]
        table.erase(b"r")
        table.put({"row": b"r", **bare})
        assert table.get(b"r") == {"row": b"r", "n": None, **bare}
        db.alter_table("open", add_columns={"loose": "int64"})
        table.put({"row": b"r", ":loose": b"cell", "loose": 5})
        assert table.get(b"r", columns=["loose", ":loose"]) == {"row": b"r", "loose": 5, ":loose": b"cell"}
        assert dict(table.scan().to_arrow()["*"].to_pylist()[0]) == {**bare, ":loose": b"cell"}

    def test_timestamps_are_ordered_from_the_smallest_to_the_greatest(self, users: ebla.Table) -> None:
        stamps = (5, -(2**63), 2**63 - 1, -1, 0)
        cells = {"user": "ada", "day": DAY, "family": "view", "qualifier": "q"}
        users.put_cells([{**cells, "value": b"%d" % stamp, "timestamp": stamp} for stamp in stamps])
        for _ in range(2):
            versions = users.scan(columns=["view:q"], versions=9).to_arrow()["view:q"].combine_chunks().values
            assert versions.field("value").to_pylist() == [b"%d" % stamp for stamp in sorted(stamps)[::-1]][:3]
            users.compact()
        with pytest.raises(ebla.InvalidBatch, match="stands for the time of the commit"):
            users.put_cells({**cells, "value": b"1", "timestamp": 2**63 - 2})

    def test_a_family_that_the_table_does_not_have_is_refused(self, users: ebla.Table) -> None:
        with pytest.raises(ebla.UnknownColumn, match="buy"):
            users.put({"user": "ada", "day": DAY, "buy:x": b"1"})


# --- scan ----------------------------------------------------------------------------------------


class TestScan:
    def test_rows_come_in_key_order_from_start_to_before_stop(self, counts: ebla.Table) -> None:
        assert words(counts.scan()) == ["and", "banana", "cherry", "dates"]
        assert words(counts.scan("banana", "dates")) == ["banana", "cherry"]
        assert words(counts.scan(reverse=True, limit=2)) == ["dates", "cherry"]
        assert words(counts.scan("x")) == []

    def test_start_stop_and_prefix_may_be_parts_of_a_key(self, users: ebla.Table) -> None:
        days = [DAY + timedelta(days=n) for n in range(3)]
        users.put([{"user": user, "day": day, "age": 1} for user in ("ada", "bob", "bobby") for day in days])
        assert {row["user"] for row in users.scan(prefix=("bob",))} == {"bob"}
        assert {row["user"] for row in users.scan(("bob",))} == {"bob", "bobby"}
        assert [row["day"] for row in users.scan(("ada", days[1]), ("bob",))] == days[1:]
        with pytest.raises(ebla.RequestError, match="either prefix"):
            users.scan(("a",), prefix=("b",))
        users.erase_range(prefix=("bob",))
        assert [row["user"] for row in users.scan()] == ["ada"] * 3 + ["bobby"] * 3
        with pytest.raises(ebla.RequestError, match="either prefix"):
            users.erase_range(("a",), prefix=("b",))

    def test_of_a_single_string_key_a_prefix_is_the_beginning_of_the_string(self, counts: ebla.Table) -> None:
        assert words(counts.scan(prefix="ba")) == ["banana"]

    def test_the_answer_comes_as_arrow_batches_pandas_or_polars(self, counts: ebla.Table) -> None:
        scan = counts.scan(columns=["n"])
        assert scan.schema == pa.schema([("word", pa.string()), ("n", pa.int64())])
        assert scan.to_arrow().schema == scan.schema
        assert sum(batch.num_rows for batch in scan.to_batches()) == scan.count() == 4
        assert list(scan.to_pandas()["n"]) == list(scan.to_polars()["n"]) == [3, 6, 6, 5]

    def test_a_scan_is_a_stream_of_arrow(self, db: ebla.Database, counts: ebla.Table) -> None:
        scan = counts.scan(columns=["n"])
        assert pa.table(scan) == scan.to_arrow()
        assert scan.position.key == ("dates",)
        assert pl.DataFrame(scan)["n"].to_list() == [3, 6, 6, 5]
        assert duckdb.sql("select sum(n) from scan").fetchall() == [(20,)]
        copy = db.create_table("copy", ebla.Schema(key={"word": "string"}, columns={"n": "int64"}))
        copy.put(scan)
        assert copy.scan().to_arrow() == scan.to_arrow()

    @pytest.mark.parametrize("kind", ["fixed_size_list<float>[2]", "list<fixed_size_list<float>[2]>"])
    def test_lists_of_a_fixed_size_come_as_polars_wherever_a_batch_is_cut(self, db: ebla.Database, kind: str) -> None:
        table = db.create_table("t", ebla.Schema(key={"n": "int64"}, columns={"v": kind}))
        values = (
            [[[0.5, None]], None, [[1.0, 2.0], None], None]
            if kind.startswith("list")
            else [[0.5, 1.0], None, None, None]
        )
        table.put([{"n": n, "v": value} for n, value in enumerate(values)])
        assert table.scan(limit=3).to_polars()["v"].to_list() == values[:3]
        assert table.scan(1, 3).to_polars()["v"].to_list() == values[1:3]
        table.flush()
        assert table.scan(1, 3).to_polars()["v"].to_list() == values[1:3]

    @pytest.mark.parametrize("form", ["to_arrow", "to_pandas", "to_polars", "__iter__"])
    def test_what_is_scanned_of_any_family_can_be_put_again(self, db: ebla.Database, form: str) -> None:
        groups = [
            ebla.Group("a", columns={"n": "int8"}),
            ebla.Group("b", families=["f"]),
            ebla.Group("c", families=["*"]),
        ]
        origin, copy = (db.create_table(name, ebla.Schema(key={"k": "int64"}, groups=groups)) for name in ("t", "u"))
        origin.put([{"k": 1, "n": 1, "f:x": b"1", "z:y": b"2", "z:": b"", "bare": b"3"}, {"k": 2, "n": 2}])
        origin.put([{"k": 3, ":n": b"cell", ":f": b"cell", "z:a:b\nc": b"4"}, {"k": 4, "f:x": b"5"}])
        copy.put(getattr(origin.scan(), form)())
        assert list(copy.scan()) == list(origin.scan())

    def test_all_other_families_are_asked_for_as_they_are_named_in_the_answer(self, db: ebla.Database) -> None:
        groups = [
            ebla.Group("a", columns={"n": "int8"}),
            ebla.Group("b", families=["f"]),
            ebla.Group("c", families=["*"]),
        ]
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=groups))
        table.put([{"k": 1, "n": 1, "f:x": b"1", "z:y": b"2", "bare": b"3", ":*": b"4"}, {"k": 2, "n": 2, "f:x": b"5"}])
        others = {"z:y": b"2", "bare": b"3", ":*": b"4"}
        for _ in ("in memory", "in files"):
            assert table.scan(columns=table.scan().schema.names).to_arrow() == table.scan().to_arrow()
            assert list(table.scan(columns=["*"])) == [{"k": 1, **others}]
            assert table.get(1, ["*", "n"]) == {"k": 1, "n": 1, **others}
            assert table.get_many([1], ["*"])["*"].to_pylist() == [sorted(others.items())]
            assert table.get(1, [":*"]) == {"k": 1, ":*": b"4"}
            table.flush()
        with pytest.raises(ebla.UnknownColumn, match="stands for many families"):
            table.erase(1, ["*"])
        table.erase(1, [":*"])
        assert ":*" not in (table.get(1) or {})

    def test_cells_of_any_family_in_one_map_are_named_in_full(self, db: ebla.Database) -> None:
        groups = [ebla.Group("a", columns={"n": "int8"}), ebla.Group("c", families=["*"])]
        table = db.create_table("t", ebla.Schema(key={"k": "int64"}, groups=groups))
        kind = pa.map_(pa.string(), pa.binary())
        table.put(pa.table({"k": [1], "*": pa.array([[("z:y", b"1"), ("n", b"2"), ("w", None)]], kind), "z:y": [b"3"]}))
        assert table.get(1) == {"k": 1, "n": None, "z:y": b"3", ":n": b"2"}
        table.put(pa.table({"k": [2], "*": [{"z:y": b"1", "bare": b"2"}]}))
        assert table.get(2) == {"k": 2, "n": None, "z:y": b"1", "bare": b"2"}
        for name, told in (("n:x", "'n' is a column"), ("_z:x", "no family '_z'")):
            with pytest.raises(ebla.UnknownColumn, match=told):
                table.put(pa.table({"k": [1], "*": pa.array([[(name, b"1")]], kind)}))
        narrow = db.create_table("narrow", ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("b", families=["f"])]))
        with pytest.raises(ebla.UnknownColumn, match="the table has f"):
            narrow.put(pa.table({"k": [1], "*": pa.array([[("f:x", b"1")]], kind)}))

    def test_where_is_an_arrow_expression(self, counts: ebla.Table) -> None:
        assert words(counts.scan(where=pc.field("n") == 6)) == ["banana", "cherry"]
        assert words(counts.scan(columns=["text"], where=(pc.field("n") > 3) & (pc.field("word") < "d"))) == [
            "banana",
            "cherry",
        ]
        with pytest.raises(ebla.UnknownColumn):
            counts.scan(where=pc.field("m") == 6)

    def test_where_leaves_the_rows_of_all_groups_to_who_asks_for_keys(self, users: ebla.Table) -> None:
        users.put({"user": "ada", "day": DAY, "age": 30})
        users.put({"user": "bob", "day": DAY, "click:home": b"1"})
        keyed = [row["user"] for row in users.scan(columns=[], where=pc.field("age").is_null())]
        assert keyed == [row["user"] for row in users.scan(where=pc.field("age").is_null())] == ["bob"]
        assert users.scan(columns=["user"], where=pc.field("click:home").is_null()).count() == 1

    def test_versions_show_what_a_column_was(self, db: ebla.Database) -> None:
        group = ebla.Group("g", columns={"n": "int64", "text": "string"}, max_versions="all")
        counts = db.create_table("kept", ebla.Schema(key={"word": "string"}, groups=[group]))
        first = counts.put({"word": "v", "n": 1})
        second = counts.put({"word": "v", "n": 2})
        (row,) = counts.scan(prefix="v", versions=2)
        assert [(v.value, v.txn) for v in row["n"]] == [(2, second), (1, first)]
        assert row["text"] == []

    def test_what_cannot_be_asked_is_refused(self, db: ebla.Database, counts: ebla.Table) -> None:
        open_table = db.create_table("open", ebla.Schema(groups=[ebla.Group("all", families=["*"])]))
        for wrong in ([5], [None]):
            with pytest.raises(ebla.UnknownColumn, match="named by a string"):
                counts.scan(columns=wrong)  # type: ignore[arg-type]
            with pytest.raises(ebla.UnknownColumn, match="named by a string"):
                counts.erase("and", wrong)  # type: ignore[arg-type]
        for ask in (counts.scan, counts.get_many):
            with pytest.raises(ebla.RequestError, match="a list of names"):
                ask(["and"], columns=5)  # type: ignore[operator]
        for change in (lambda: open_table.erase(b"a", ["row"]), lambda: open_table.increment(b"a", "row")):
            with pytest.raises(ebla.UnknownColumn, match="part of the key"):
                change()
        with db.snapshot() as snapshot, pytest.raises(ebla.RequestError, match="latest follows"):
            snapshot.table("counts").scan(latest=True)
        with pytest.raises(ebla.RequestError, match="latest follows"):
            counts.scan(latest=True, as_of=counts.scan().txn)
        assert counts.scan(limit=1 << 70).count() == 4

    def test_a_scan_sees_one_moment_and_can_be_repeated(self, counts: ebla.Table) -> None:
        scan = counts.scan()
        counts.put({"word": "elder", "n": 5})
        counts.erase("and")
        assert words(scan) == words(scan) == ["and", "banana", "cherry", "dates"]
        assert words(counts.scan()) == ["banana", "cherry", "dates", "elder"]

    def test_a_scan_goes_on_where_another_stopped(self, counts: ebla.Table) -> None:
        scan = counts.scan()
        rows = iter(scan)
        next(rows)
        where = scan.position
        counts.erase_range()
        assert words(counts.scan(resume=where)) == ["banana", "cherry", "dates"]

    @pytest.mark.parametrize(
        "given", [{"limit": -1}, {"versions": 0}, {"columns": "n"}, {"columns": ["m"]}, {"as_of": "yesterday"}]
    )
    def test_a_request_that_makes_no_sense_is_refused_at_once(self, counts: ebla.Table, given: dict[str, Any]) -> None:
        with pytest.raises(ebla.RequestError):
            counts.scan(**given)


# --- the past ------------------------------------------------------------------------------------


class TestThePast:
    def test_as_of_a_txn_shows_the_table_as_it_was(self, counts: ebla.Table) -> None:
        before = counts.put({"word": "and", "n": 30})
        counts.put({"word": "and", "n": 31})
        counts.erase("banana")
        assert counts.get("and", as_of=before)["n"] == 30
        assert words(counts.scan(as_of=before)) == ["and", "banana", "cherry", "dates"]
        assert counts.get_many(["banana"], as_of=before)["_found"].to_pylist() == [True]
        counts.flush()
        assert counts.get("and", as_of=before)["n"] == 30

    def test_as_of_may_be_a_time(self, counts: ebla.Table) -> None:
        txn = counts.put({"word": "and", "n": 30})
        while counts.put({"word": "and", "n": 31}) >> 10 == txn >> 10:
            pass
        assert counts.get("and", as_of=ebla.time_of(txn))["n"] == 30

    def test_a_snapshot_is_all_tables_at_one_txn_and_cannot_be_written(
        self, db: ebla.Database, counts: ebla.Table
    ) -> None:
        with db.snapshot() as snapshot:
            counts.erase_range()
            assert words(snapshot.table("counts").scan()) == ["and", "banana", "cherry", "dates"]
            assert counts.get("and", as_of=snapshot)["n"] == 3
            with pytest.raises(ebla.ReadOnly):
                snapshot.table("counts").put({"word": "x", "n": 1})
        assert words(counts.scan()) == []

    def test_a_txn_far_in_the_future_is_refused(self, counts: ebla.Table) -> None:
        with pytest.raises(ebla.ClockSkew):
            counts.get("and", as_of=datetime.now(UTC) + timedelta(hours=1))


# --- erase ---------------------------------------------------------------------------------------


class TestErase:
    def test_a_row_is_erased_and_can_come_back_without_its_past(self, users: ebla.Table) -> None:
        users.put({"user": "ada", "day": DAY, "name": "Ada", "age": 36, "click:home": b"1"})
        users.erase(("ada", DAY))
        assert users.get(("ada", DAY)) is None
        users.put({"user": "ada", "day": DAY, "age": 1})
        assert users.get(("ada", DAY)) == {"user": "ada", "day": DAY, "name": None, "age": 1, "tags": None}

    def test_columns_cells_and_families_are_erased_by_name(self, users: ebla.Table) -> None:
        users.put(
            {"user": "ada", "day": DAY, "name": "Ada", "age": 36, "click:a": b"1", "click:b": b"2", "view:c": b"3"}
        )
        users.erase(("ada", DAY), ["name", "click:a", "view"])
        assert users.get(("ada", DAY)) == {
            "user": "ada",
            "day": DAY,
            "name": None,
            "age": 36,
            "tags": None,
            "click:b": b"2",
        }

    def test_erasing_a_column_does_not_make_a_row(self, counts: ebla.Table) -> None:
        counts.erase("nobody", ["n"])
        assert counts.get("nobody") is None

    def test_many_rows_are_erased_in_one_commit(self, counts: ebla.Table) -> None:
        txn = counts.erase_many(["and", "dates", "and", "nobody"])
        assert words(counts.scan()) == ["banana", "cherry"]
        assert words(counts.scan(as_of=txn - 1)) == ["and", "banana", "cherry", "dates"]
        counts.erase_many([])

    def test_a_range_is_erased_in_one_step_and_may_be_filled_again(self, counts: ebla.Table) -> None:
        counts.erase_range("b", "d")
        assert words(counts.scan()) == ["and", "dates"]
        counts.put({"word": "banana", "n": 1})
        counts.flush()
        assert words(counts.scan()) == ["and", "banana", "dates"]
        counts.erase_range()
        assert words(counts.scan()) == []
        assert counts.get_many(["and", "banana"])["_found"].to_pylist() == [False, False]


# --- changes that depend on what was read --------------------------------------------------------


class TestReadModifyWrite:
    def test_if_unchanged_since_guards_against_others(self, counts: ebla.Table) -> None:
        row = counts.get("and")
        counts.put({"word": "and", "n": row["n"] + 1}, if_unchanged_since=row.txn)
        with pytest.raises(ebla.Conflict, match=r"'and'.*changed"):
            counts.put({"word": "and", "n": 0}, if_unchanged_since=row.txn)
        assert counts.get("and")["n"] == 4

    def test_a_change_of_another_row_is_no_conflict(self, counts: ebla.Table) -> None:
        row = counts.get("and")
        counts.put({"word": "banana", "n": 0})
        counts.put({"word": "and", "n": 1}, if_unchanged_since=row.txn)
        assert counts.get("and")["n"] == 1

    @pytest.mark.parametrize("change", ["erase", "erase_range", "flush"])
    def test_erasures_count_as_changes_and_flushes_do_not(self, counts: ebla.Table, change: str) -> None:
        row = counts.get("and")
        {"erase": lambda: counts.erase("and"), "erase_range": counts.erase_range, "flush": counts.flush}[change]()
        if change == "flush":
            counts.put({"word": "and", "n": 1}, if_unchanged_since=row.txn)
        else:
            with pytest.raises(ebla.Conflict):
                counts.put({"word": "and", "n": 1}, if_unchanged_since=row.txn)

    def test_changes_of_a_cached_row_go_on_from_what_is_not_in_the_log_yet(self, counts: ebla.Table) -> None:
        for _ in range(3):
            counts.get("and")
        counts.put({"word": "and", "n": 10}, wait="none")
        assert counts.increment("and", "n") == 11
        counts.get("and")
        counts.transact("and", lambda row: {"n": row["n"] + 1, "text": "x"})
        assert counts.append("and", "text", "y") == "xy"
        assert counts.get("and") == {"word": "and", "n": 12, "text": "xy"}
        seen = []
        counts.transact("and", lambda row: seen.append(row))
        assert (dict(seen[0]), seen[0].txn) == (counts.get("and"), counts.get("and").txn)
        seen[0]["n"] = 99  # a row that was given out is not the one that is cached
        assert counts.get("and")["n"] == 12

    def test_increment_returns_the_sum_and_begins_at_zero(self, counts: ebla.Table) -> None:
        assert counts.increment("and", "n") == 4
        assert counts.increment("and", "n", -10) == -6
        assert counts.increment("new", "n", 5) == 5
        with pytest.raises(ebla.RequestError, match="only numbers"):
            counts.increment("and", "text")

    def test_a_change_is_seen_even_where_the_cell_has_a_timestamp_of_the_future(self, users: ebla.Table) -> None:
        cell = {"user": "ada", "day": date(2026, 1, 1), "family": "click", "qualifier": "n"}
        future = 4_000_000_000_000_000
        users.put_cells([{**cell, "value": (5).to_bytes(8, "big"), "timestamp": future}])
        key = ("ada", date(2026, 1, 1))
        assert users.increment(key, "click:n") == 6
        assert users.increment(key, "click:n") == 7
        assert users.get(key)["click:n"] == (7).to_bytes(8, "big")
        users.put_cells([{**cell, "qualifier": "t", "value": b"a", "timestamp": future}])
        assert users.append(key, "click:t", b"b") == users.get(key)["click:t"] == b"ab"

    def test_a_cell_can_be_a_counter(self, users: ebla.Table) -> None:
        assert users.increment(("ada", DAY), "click:home") == 1
        assert users.increment(("ada", DAY), "click:home", 41) == 42
        assert users.get(("ada", DAY))["click:home"] == (42).to_bytes(8, "big")
        with pytest.raises(ebla.RequestError, match="whole family"):
            users.increment(("ada", DAY), "click")

    def test_append_adds_to_text_bytes_and_lists(self, users: ebla.Table) -> None:
        assert users.append(("ada", DAY), "name", "A") == "A"
        assert users.append(("ada", DAY), "name", "da") == "Ada"
        assert users.append(("ada", DAY), "tags", ["x", "y"]) == ["x", "y"]
        assert users.append(("ada", DAY), "click:home", b"ab") == b"ab"
        assert users.get(("ada", DAY))["tags"] == ["x", "y"]

    def test_transact_reads_and_writes_one_row_in_one_step(self, counts: ebla.Table) -> None:
        def double(row: ebla.Row | None) -> dict[str, Any] | None:
            return None if row is None else {"n": row["n"] * 2, "text": "doubled"}

        counts.transact("and", double)
        assert counts.get("and") == {"word": "and", "n": 6, "text": "doubled"}
        counts.transact("nobody", double)
        assert counts.get("nobody") is None

    def test_no_increment_is_lost_among_threads(self, counts: ebla.Table) -> None:
        def work() -> None:
            for _ in range(25):
                counts.increment("and", "n")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts.get("and")["n"] == 103


# --- care ----------------------------------------------------------------------------------------


class TestCare:
    def test_flush_writes_ordinary_parquet_files(self, db: ebla.Database, counts: ebla.Table) -> None:
        assert counts.files() == []
        counts.flush()
        (file,) = counts.files()
        found = pq.read_table(db.path / file)
        assert found["word"].to_pylist() == ["and", "banana", "cherry", "dates"]
        assert found["n"].to_pylist() == [3, 6, 6, 5]
        counts.flush()  # nothing to do
        assert counts.files() == [file]

    def test_stats_count_what_is_where(self, db: ebla.Database, counts: ebla.Table) -> None:
        group = counts.stats()["groups"]["default"]
        assert (group["memory_records"], group["fragment_records"]) == (4, 0)
        counts.flush()
        group = counts.stats()["groups"]["default"]
        assert (group["memory_records"], group["fragment_records"], group["fragments"]) == (0, 4, 1)
        stats = db.stats()
        assert stats["tables"]["counts"] == counts.stats()
        assert stats["txn_committed"] >= stats["txn_stable"] > 0

    def test_objects_say_what_they_are(self, db: ebla.Database, counts: ebla.Table) -> None:
        assert repr(counts) == "<ebla.Table 'counts'>"
        assert "data" in repr(db)
        assert str(db.snapshot().txn) in repr(db.snapshot())


def test_a_row_that_python_cannot_show_conflicts_all_the_same(db: ebla.Database) -> None:
    days = db.create_table("days", ebla.Schema(key={"day": "date32"}, columns={"n": "int64"}))
    beyond = pa.table({"day": pa.array([4_000_000], pa.int32()).cast(pa.date32()), "n": [1]})
    days.put(beyond)
    with pytest.raises(ebla.Conflict, match="exists already"):
        days.put(beyond, if_absent=True)
    assert days.scan().to_arrow().column("n").to_pylist() == [1]


def test_columns_may_come_from_an_iterator_and_are_the_same_the_next_time(db: ebla.Database) -> None:
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"a": "int64", "b": "int64"}))
    table.put({"k": "x", "a": 1, "b": 2})
    for columns in (iter(["a"]), ["a"]):
        assert table.get("x", columns=columns) == {"k": "x", "a": 1}
    for columns in (iter(["b"]), ["b"]):
        assert list(table.scan(columns=columns)) == [{"k": "x", "b": 2}]
    for columns in (iter(["b", "a"]), ["b", "a"]):
        assert table.get_many(["x"], columns).column_names == ["k", "b", "a", "_found"]


def test_a_transaction_that_is_tried_again_reads_the_same_columns(db: ebla.Database) -> None:
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"a": "int64", "b": "int64"}))
    table.put({"k": "x", "a": 1, "b": 2})
    seen: list[Any] = []

    def change(row: Any) -> dict[str, int]:
        seen.append(dict(row))
        if len(seen) == 1:
            table.put({"k": "x", "b": 3})
        return {"a": row["a"] + 1}

    table.transact("x", change, columns=iter(["a"]))
    assert seen == [{"k": "x", "a": 1}] * 2


def test_lists_of_an_alteration_may_come_from_iterators(db: ebla.Database) -> None:
    groups = [ebla.Group("g", columns={"a": "int64", "b": "int64"}), ebla.Group("f", families=["x"])]
    table = db.create_table("t", ebla.Schema(key={"k": "string"}, groups=groups))
    table.put({"k": "x", "a": 1, "b": 2})
    db.alter_table("t", drop_columns=iter(["b"]), add_families={"f": iter(["y"])})
    table.put({"k": "x", "y:1": b"1"})
    assert table.get("x") == {"k": "x", "a": 1, "y:1": b"1"}
