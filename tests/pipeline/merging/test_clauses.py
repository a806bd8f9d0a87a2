"""What the arguments of a merge mean, and which mean nothing."""

from __future__ import annotations

import pytest

import ebla
from ebla.errors import RequestError, UnknownColumn
from ebla.pipeline.merging.clauses import (
    Clause,
    check_columns,
    check_on,
    check_source,
    clauses_of,
    columns_named,
    needs_sql,
    values_of,
)

SCHEMA = ebla.Schema(
    key={"id": "int64"},
    groups=[ebla.Group("g", columns={"n": "int64", "name": "string"}), ebla.Group("c", families=["click"])],
).number()


def test_actions_dicts_and_lists_become_clauses() -> None:
    assert clauses_of("matched", "update") == [Clause("matched", None, "update")]
    assert clauses_of("not_matched", {"n": "1"}) == [Clause("not_matched", None, "insert", (("n", "1"),))]
    assert clauses_of("matched", [("source.n > 1", "delete"), (None, {"n": "2"})]) == [
        Clause("matched", "source.n > 1", "delete"),
        Clause("matched", None, "update", (("n", "2"),)),
    ]
    assert clauses_of("matched", None) == []


@pytest.mark.parametrize(
    ("side", "given", "said"),
    [
        ("matched", "insert", "'update' or 'delete'"),
        ("not_matched", "delete", "'insert'"),
        ("not_matched_by_source", "update", "'delete'"),
        ("matched", {}, "a dict has columns"),
        ("matched", {"n": 1}, "SQL expressions as text"),
        ("matched", [("a", "b", "c")], "list of"),
        ("matched", [(None, "delete"), ("n > 1", "update")], "would never be done"),
        ("matched", [(3, "delete")], "condition"),
        ("matched", 7, "list of"),
    ],
)
def test_what_means_nothing_is_refused(side: str, given: object, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        clauses_of(side, given)


def test_keys_and_unknown_columns_cannot_be_set() -> None:
    with pytest.raises(RequestError, match="of the key"):
        values_of(clauses_of("matched", {"id": "1"})[0], SCHEMA, ())
    with pytest.raises(UnknownColumn, match="nope"):
        values_of(clauses_of("matched", {"nope": "1"})[0], SCHEMA, ())
    with pytest.raises(UnknownColumn, match="nope"):
        check_columns(clauses_of("matched", "update"), SCHEMA, ["id", "nope"])
    check_columns(clauses_of("matched", {"n": "source.nope"}), SCHEMA, ["id", "nope"])


def test_a_source_has_the_key_and_is_matched_by_it() -> None:
    with pytest.raises(RequestError, match="no column 'id'"):
        check_source(["n"], SCHEMA)
    with pytest.raises(RequestError, match="two columns called 'n'"):
        check_source(["id", "n", "n"], SCHEMA)
    with pytest.raises(RequestError, match=r"on=\['id'\]"):
        check_on("n", "t", SCHEMA)
    check_on("id", "t", SCHEMA)


def test_columns_that_expressions_may_name_are_read() -> None:
    assert columns_named(["target.n + 1"], SCHEMA) == ["n"]
    assert columns_named(["source.x"], SCHEMA) == []
    assert columns_named(["struct(target)"], SCHEMA) == ["n", "name", "click"]
    assert not needs_sql(clauses_of("matched", "update"))
    assert needs_sql(clauses_of("matched", [("source.x", "update")]))
