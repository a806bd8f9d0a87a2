"""A table that comes from elsewhere appears as a whole, at one txn, behind all that it brings along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.direct.jobs_at import order_at
from ebla.service.job_orders import BulkCommit, BulkResult, RestoreCommit
from tests.support.bringing import bring, prepared
from tests.support.inside import carry_out, engine_of

SCHEMA = ebla.Schema(
    key={"k": "string"},
    groups=[ebla.Group("g", columns={"v": "int64"}, max_versions="all"), ebla.Group("cells", families=["tag"])],
)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "there") as db:
        yield db


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ebla.Database]:
    with ebla.open(tmp_path / "here") as db:
        yield db


def rows(table: ebla.Table, **more: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in table.scan(**more)]


def story(db: ebla.Database, name: str = "t") -> list[int]:
    """Fill a table, cut in two; return the txns on the way."""
    table = db.create_table(name, SCHEMA, splits=["m"])
    txns = [table.put([{"k": k, "v": n, "tag:a": b"1"} for n, k in enumerate("abcxyz")])]
    table.flush()
    txns.append(table.put([{"k": "a", "v": 10}, {"k": "x", "tag:b": b"2"}]))
    txns.append(table.erase_range("b", "c"))
    txns.append(table.put({"k": "z", "tag:a": b"3"}))
    return txns


def test_a_table_that_was_brought_reads_like_the_other_at_every_txn(there: ebla.Database, here: ebla.Database) -> None:
    txns = story(there)
    done = bring(there, "t", here, "copy")
    origin, copy = there.table("t"), here.table("copy")
    assert done.txn > txns[-1]
    for txn in txns:
        assert rows(copy, as_of=txn) == rows(origin, as_of=txn)
    assert rows(copy, versions=5) == rows(origin, versions=5)
    assert [tablet["first"] for tablet in copy.tablets()] == [tablet["first"] for tablet in origin.tablets()]


def test_it_is_seen_though_the_last_commit_of_the_store_is_older_than_its_rows(
    there: ebla.Database, here: ebla.Database, tmp_path: Path
) -> None:
    other = here.create_table("other", SCHEMA)
    other.put({"k": "early", "v": 1})  # in the log, before everything that is brought
    story(there)
    expected = rows(there.table("t"))
    bring(there, "t", here, "copy")
    assert rows(here.table("copy")) == expected
    with ebla.open(tmp_path / "here", read_only=True) as reading:
        assert rows(reading.table("copy")) == expected
    here.close()
    with ebla.open(tmp_path / "here") as again:
        assert rows(again.table("copy")) == expected
        assert rows(again.table("other"), columns=["v"]) == [{"k": "early", "v": 1}]


def test_later_writes_are_newer_than_what_was_brought(there: ebla.Database, here: ebla.Database) -> None:
    story(there)
    copy_txn = bring(there, "t", here, "copy").txn
    copy = here.table("copy")
    assert copy.put({"k": "a", "v": 99}) > copy_txn
    with pytest.raises(ebla.Conflict):
        copy.put({"k": "a", "v": 100}, if_unchanged_since=copy_txn)
    copy.compact()
    found = copy.get("a")
    assert found is not None
    assert found["v"] == 99
    assert rows(there.table("t"), columns=["v"])[0] == {"k": "a", "v": 10}


def test_in_place_everything_of_before_is_gone_and_no_snapshot_shows_something_else(
    there: ebla.Database, here: ebla.Database, tmp_path: Path
) -> None:
    story(there)
    former = here.create_table("t", ebla.Schema(key={"n": "int64"}, columns={"x": "string"}))
    before = former.put([{"n": n, "x": "old"} for n in range(3)])
    with here.snapshot("kept"):
        pass
    held = here.snapshot("held")
    done = bring(there, "t", here, "t", in_place=True)
    assert rows(here.table("t")) == rows(there.table("t"))
    assert here.tables() == ["t"]
    for txn in (before, held.txn, done.txn - 1):
        with pytest.raises(ebla.HistoryGone):
            rows(here.table("t"), as_of=txn)
    assert rows(here.table("t"), as_of=done.txn) == rows(there.table("t"))
    with pytest.raises(ebla.UnknownTable, match="dropped"):
        former.put({"n": 1})
    here.table("t").put({"k": "new", "v": 5})
    here.close()
    with ebla.open(tmp_path / "here") as again:
        assert again.tables() == ["t"]
        assert {row["k"] for row in rows(again.table("t"))} == {*(row["k"] for row in rows(there.table("t"))), "new"}
        assert again.verify().is_clean


def test_a_table_can_be_brought_to_the_store_that_has_it_and_be_its_own_successor(here: ebla.Database) -> None:
    story(here)
    expected = rows(here.table("t"), versions=5)
    bring(here, "t", here, "second")
    here.table("t").erase_range()
    bring(here, "second", here, "t", in_place=True)
    here.drop_table("second")
    for _ in range(2):
        here.gc(dry_run=False)
    assert rows(here.table("t"), versions=5) == expected


def test_in_place_the_jobs_that_it_has_are_remembered_and_later_ones_may_be_repeated(here: ebla.Database) -> None:
    def load(table: str, job: str) -> BulkResult:
        state = engine_of(here).table(table)
        return carry_out(here, BulkCommit(job, state.id, state.view.schema.version, ()))

    here.create_table("t", SCHEMA)
    first = load("t", "before")
    bring(here, "t", here, "copy")
    load("t", "after")
    assert not load("copy", "before").repeated  # it never wrote to this one
    order = prepared(here, "t", here, "t", in_place=True)
    load("t", "too-late")
    carry_out(here, order)
    assert load("t", "before") == BulkResult(first.txn, repeated=True)
    assert load("t", "after").repeated
    assert not load("t", "too-late").repeated


def test_an_order_is_carried_out_once(there: ebla.Database, here: ebla.Database, tmp_path: Path) -> None:
    story(there)
    order = prepared(there, "t", here, "copy")
    first = carry_out(here, order)
    here.table("copy").put({"k": "later", "v": 1})
    assert carry_out(here, order) == BulkResult(first.txn, repeated=True)
    assert order_at(tmp_path / "here", order) == BulkResult(first.txn, repeated=True)
    assert here.table("copy").get("later") is not None


def test_the_owner_carries_out_what_others_ask_for(there: ebla.Database, here: ebla.Database, tmp_path: Path) -> None:
    story(there)
    order_at(tmp_path / "here", prepared(there, "t", here, "copy"))
    assert rows(here.table("copy")) == rows(there.table("t"))
    with pytest.raises(ebla.TableExists):
        order_at(tmp_path / "here", prepared(there, "t", here, "copy", job="another"))


def test_what_does_not_fit_is_refused_and_nothing_changes(
    there: ebla.Database, here: ebla.Database, tmp_path: Path
) -> None:
    story(there)
    here.create_table("t", SCHEMA).put({"k": "mine", "v": 1})

    def order(job: str, **more: Any) -> RestoreCommit:
        return prepared(there, "t", here, **{"name": "copy", **more}, job=job)

    with pytest.raises(ebla.TableExists, match="in its place"):
        carry_out(here, order("taken", name="t"))
    replaced = order("replaced", name="t", in_place=True)
    here.drop_table("t")
    with pytest.raises(ebla.UnknownTable):
        carry_out(here, replaced)
    here.create_table("t", SCHEMA).put({"k": "mine", "v": 1})
    with pytest.raises(ebla.Conflict, match="another table"):
        carry_out(here, replaced)
    damaged = order("damaged")
    file = next((tmp_path / "here" / "fragments").glob("*/damaged.*"))
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(ebla.MissingFile, match="bytes"):
        carry_out(here, damaged)
    file.unlink()
    with pytest.raises(ebla.MissingFile, match=file.name):
        carry_out(here, damaged)
    with pytest.raises(ebla.SchemaError):
        carry_out(here, order("named", name="META"))
    assert here.tables() == ["t"]
    assert rows(here.table("t"), columns=["v"]) == [{"k": "mine", "v": 1}]


def test_txns_from_the_future_are_refused(there: ebla.Database, here: ebla.Database) -> None:
    ahead = engine_of(there).txn_clock
    ahead.observe(ahead.next() + (50_000_000 << 10))  # as far as clocks may differ
    ahead.observe(ahead.next() + (9_000_000 << 10))
    story(there)
    done = bring(there, "t", here, "near")
    assert rows(here.table("near")) == rows(there.table("t"))
    assert here.table("near").put({"k": "a", "v": 1}) > done.txn > there.snapshot().txn
    engine_of(there).txn_clock._skew_microseconds_max = 10**12
    ahead.observe(ahead.next() + (600_000_000 << 10))
    there.table("t").put({"k": "far", "v": 1})
    with pytest.raises(ebla.ClockSkew, match="set the clock right"):
        bring(there, "t", here, "far")
    assert here.tables() == ["near"]
