"""Filters as text, on tables: the rows of memory and of files, and errors that say where and which column."""

from __future__ import annotations

from datetime import date

import pyarrow.compute as pc
import pytest

import ebla

DAYS = ebla.Schema(
    key={"shop": "string", "n": "int32"},
    groups=[
        ebla.Group("order", columns={"day": "date32", "state": "string"}),
        ebla.Group("seen", families=["page"]),
    ],
)


@pytest.fixture
def orders(db: ebla.Database) -> ebla.Table:
    table = db.create_table("orders", DAYS)
    table.put([{"shop": "a", "n": n, "day": date(2026, 1, n), "state": "new"} for n in range(1, 6)])
    table.flush()
    table.put([{"shop": "a", "n": 2, "state": None, "page:home": b"x"}, {"shop": "b", "n": 1, "state": "paid"}])
    return table


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("day >= 2026-01-04 or state = paid", [("a", 4), ("a", 5), ("b", 1)]),
        ("not (day >= 2026-01-04 or state = paid)", [("a", 1), ("a", 3)]),
        ("state is null and page:home is not null", [("a", 2)]),
        ("shop in (b, c) or n between 3 and 4", [("a", 3), ("a", 4), ("b", 1)]),
        ("state like '_a%'", [("b", 1)]),
    ],
)
def test_text_filters_find_rows_in_memory_and_files(
    orders: ebla.Table, where: str, found: list[tuple[str, int]]
) -> None:
    assert [(row["shop"], row["n"]) for row in orders.scan(where=where)] == found
    assert [(row["shop"], row["n"]) for row in orders.scan(columns=["day"], where=where)] == found


def test_text_filters_work_on_system_tables(db: ebla.Database, orders: ebla.Table) -> None:
    assert [row["table"] for row in db.table("sys.tablets").scan(where="records > 0 and table like 'ord%'")] == [
        "orders"
    ]


def test_a_text_filter_is_read_under_the_schema_in_force(db: ebla.Database, orders: ebla.Table) -> None:
    db.alter_table("orders", rename={"state": "phase"})
    assert orders.scan(where="phase = paid").count() == 1
    with pytest.raises(ebla.UnknownColumn, match="at character 1: no column 'state'"):
        orders.scan(where="state = paid")


def test_a_wrong_text_filter_says_where_when_the_scan_is_made(orders: ebla.Table) -> None:
    with pytest.raises(ebla.RequestError, match="at character 7: column 'day': 'soon' is not date32"):
        orders.scan(where="day > soon")
    with pytest.raises(ebla.UnknownColumn, match=r"no column 'stat'.*did you mean 'state'"):
        orders.scan(where="stat = new")


@pytest.mark.parametrize(
    ("where", "named"),
    [
        (pc.field("day") > 5, r"it names 'day' \(date32\[day\]\)"),
        ((pc.field("state") == "new") & (pc.field("n") > "x"), r"'state' \(string\), 'n' \(int32\)"),
        (pc.field("state") + 1 > 5, r"it names 'state' \(string\)"),
    ],
)
def test_an_expression_that_cannot_be_used_names_its_columns(
    orders: ebla.Table, where: pc.Expression, named: str
) -> None:
    with pytest.raises(ebla.RequestError, match=named):
        orders.scan(where=where).to_arrow()
