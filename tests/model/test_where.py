"""The filter language says what it means, as SQL does, and nothing else gets through."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.errors import RequestError, UnknownColumn
from ebla.model.declaration import Group, Schema
from ebla.model.where import to_expression
from ebla.model.where_text import DEPTH_MAX, parse_where

SCHEMA = Schema(
    key={"user": "string", "day": "date32"},
    groups=[
        Group("default", columns={"name": "string", "age": "int32", "first name": "string", "tags": "list<string>"}),
        Group("events", families=["click"]),
    ],
).number()

ROWS = pa.table(
    {
        "user": ["ada", "bob", "zoe"],
        "day": [date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 3)],
        "name": ["Ada", "O'Bob", None],
        "age": pa.array([36, 30, None], pa.int32()),
        "first name": ["x and y", "z", ""],
        "tags": pa.array([["a"], None, []], pa.list_(pa.string())),
        "click:home": [b"1", None, b"\xff"],
    }
)


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ("age > 30", ["ada"]),
        ("age>=30", ["ada", "bob"]),
        ("age < 36 AND age <= 30", ["bob"]),
        ("age = 36", ["ada"]),
        ("age == '36'", ["ada"]),
        ("age <> 36", ["bob"]),
        ("name is null", ["zoe"]),
        ("name IS NOT NULL and user != bob", ["ada"]),
        ("name = 'O''Bob'", ["bob"]),
        ('name = "O\'Bob"', ["bob"]),
        ("`first name` = 'x and y'", ["ada"]),
        ("`first name` = ''", ["zoe"]),
        ("day >= 2026-01-02 and day < 2026-01-03", ["bob"]),
        ("click:home = 1", ["ada"]),
        ("click:home = 'base64:/w=='", ["zoe"]),
        ("age = 36 or name is null", ["ada", "zoe"]),
        ("user = zoe or user = bob and age = 31", ["zoe"]),
        ("(user = zoe or user = bob) and age = 30", ["bob"]),
        ("not age = 36", ["bob"]),
        ("not not age = 36", ["ada"]),
        ("not (age = 36 or name is null)", ["bob"]),
        ("user in (ada, 'zoe')", ["ada", "zoe"]),
        ("age NOT IN (30, 31)", ["ada"]),
        ("not age in (30)", ["ada"]),
        ("age between 30 and 35 and user = bob", ["bob"]),
        ("age not between 30 and 35", ["ada"]),
        ("day between 2026-01-02 and 2026-01-03", ["bob", "zoe"]),
        ("name like 'A%'", ["ada"]),
        ("name not like 'A%'", ["bob"]),
        ("user like '_o_'", ["bob", "zoe"]),
        ("name like '%''%'", ["bob"]),
        ("click:home like 'base64:/w=='", ["zoe"]),
        ("tags is null", ["bob"]),
        ("tags is not null and user > b", ["zoe"]),
    ],
)
def test_filter_keeps_the_rows_it_describes(text: str, users: list[str]) -> None:
    assert ROWS.filter(to_expression(text, SCHEMA))["user"].to_pylist() == users


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("", 1, "it ends where a column should follow"),
        ("age", 4, "it ends where one of =, ==, !="),
        ("age >", 6, "it ends where a value should follow"),
        ("> 30", 1, "'>' stands where a column should be"),
        ("age > 30 and", 13, "it ends where a column should follow"),
        ("age > 30 or or age < 5", 13, "'or' stands where a column should be: .* backquotes, as in `or`"),
        ("age > 30 name = 'x'", 10, "'name': expected 'and' or 'or'"),
        ("age is 30", 8, "'30' stands where 'null': only 'is null'"),
        ("age = null", 7, "nothing is equal to null: write 'is null'"),
        ("age in (1, null)", 12, "nothing is equal to null"),
        ("age in 1", 8, "'1' stands where a list of values"),
        ("age in ()", 9, r"'\)' stands where a value should be"),
        ("age in (1 2)", 11, r"'2' stands where ',' or '\)' should be"),
        ("age between 1, 2", 14, "',' stands where 'and' and the upper end"),
        ("age not = 3", 9, "'=' stands where 'in', 'like' or 'between'"),
        ("'age' = 30", 1, "'age' stands where a column should be"),
        ("name = 'open", 8, "cannot read .* the quote is not closed"),
        ("age > > 3", 7, "'>' stands where a value should be"),
        ("age ! 3", 5, "cannot read '! 3'"),
        ("lower(name) = 'x'", 6, r"'\(' stands where one of ="),
        ("(age > 3", 9, r"it ends where 'and', 'or' or '\)' should follow"),
        ("age > 3)", 8, r"'\)': expected 'and' or 'or'"),
        ("(" * (DEPTH_MAX + 1) + "age > 3", DEPTH_MAX + 1, "brackets stand in each other more than"),
    ],
)
def test_anything_else_is_refused_with_the_place_and_an_example(text: str, at: int, what: str) -> None:
    with pytest.raises(RequestError, match=f"at character {at}: {what}.*write for example"):
        parse_where(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age > 3 and nme = x", "at character 13: no column 'nme'.*did you mean 'name'"),
        ("click = x", "at character 1: 'click' is a whole family"),
        ("age > 3 or age > x", "at character 18: column 'age': 'x' is not int32"),
        ("age in (1, 2.5)", "at character 12: column 'age': '2.5' is not int32"),
        ("day > 2026-13-01", r"at character 7: column 'day': '2026-13-01' is not date32 \(write 2026-01-31\)"),
        ("age like '3%'", "at character 5: 'like' is for text and bytes, and 'age' is int32"),
        ("tags = x", "at character 6: 'tags' is list<string>, for which only 'is null'"),
        ("name like 'x\\'", r"at character 11: .*ends with a \\ that nothing follows"),
        ("name = user", "at character 8: 'user' is a column.*write 'user' in quotes"),
        ("age > day", "'day' is not int32; 'day' is a column"),
    ],
)
def test_columns_and_values_that_do_not_fit_are_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        to_expression(text, SCHEMA)


def test_an_unknown_column_is_an_error_of_its_own_kind() -> None:
    with pytest.raises(UnknownColumn):
        to_expression("nme = x", SCHEMA)


@given(st.text(max_size=40) | st.text(alphabet="ab()'\"`,<=! andorlikebetweenisnull", max_size=40))
@settings(max_examples=300)
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(RequestError):
        parse_where(text)


def test_filters_of_thousands_of_conditions_are_taken() -> None:
    text = " or ".join(f"age = {age}" for age in range(2_000))
    assert ROWS.filter(to_expression(text, SCHEMA))["user"].to_pylist() == ["ada", "bob"]
    assert ROWS.filter(to_expression("not " * 2_000 + "age = 36", SCHEMA))["user"].to_pylist() == ["ada"]


# --- against a model: Python values, and None for what is neither true nor false ---------------------------------

TYPES: dict[str, tuple[str, list[Any]]] = {
    "i": ("int64", [-3, 0, 1, 2, 7]),
    "u": ("uint8", [0, 1, 255]),
    "f": ("float64", [-0.0, 0.0, 1.5, float("nan"), float("inf")]),
    "s": ("string", ["", "a", "ab", "a\nb", "A%", "a_b", "\\", "é", "a'b", "null"]),
    "b": ("binary", [b"", b"a", b"\xff\xfe", b"a\n", b"\0"]),
    "x": ("fixed_size_binary[2]", [b"ab", b"\xffa"]),
    "t": ("bool", [True, False]),
    "d": ("date32", [date(2026, 1, 1), date(1969, 12, 31)]),
    "m": ("timestamp[us]", [datetime(2026, 1, 1, 12), datetime(1960, 1, 1, 0, 0, 0, 1)]),
    "z": ("timestamp[ms, tz=UTC]", [datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]),
    "n": ("decimal128(9, 2)", [Decimal("1.50"), Decimal("-0.01"), Decimal(0)]),
    "c": ("time64[us]", [time(1, 2, 3, 4), time(0, 0)]),
}
TYPED = Schema(key={"k": "int64"}, columns={name: kind for name, (kind, _) in TYPES.items()}).number()
ARROW = {column.name: column.type for group in TYPED.groups for column in group.columns}

Evaluate = Callable[[dict[str, Any]], bool | None]
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def written(value: Any) -> str:
    if isinstance(value, bytes):
        import base64

        return "'base64:" + base64.b64encode(value).decode() + "'"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bool):
        return "TRUE" if value else "false"
    text = value.isoformat() if isinstance(value, (date, time)) else str(value)
    return "'" + text.replace("'", "''") + "'" if isinstance(value, str) else text


def like(value: Any, pattern: Any) -> bool:
    text, shape = (v.decode("latin-1") if isinstance(v, bytes) else v for v in (value, pattern))
    parts, at = "", 0
    while at < len(shape):
        if shape[at] == "\\":
            at += 1
            parts += re.escape(shape[at])
        else:
            parts += {"%": ".*", "_": "."}.get(shape[at], re.escape(shape[at]))
        at += 1
    return re.fullmatch(parts, text, re.DOTALL) is not None


def conjunction(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def inverted(value: bool | None) -> bool | None:
    return None if value is None else not value


def disjunction(values: list[bool | None]) -> bool | None:
    return inverted(conjunction([inverted(value) for value in values]))


@st.composite
def comparisons(draw: st.DrawFn) -> tuple[str, Evaluate]:
    name = draw(st.sampled_from(sorted(TYPES)))
    pool = st.sampled_from(TYPES[name][1])
    kinds = ["sign", "null", "in", "between"] + (["like"] if name in "sb" else [])
    kind = draw(st.sampled_from(kinds))
    negated = draw(st.booleans())
    no = "not " if negated else ""

    def known(test: Callable[[Any], bool]) -> Evaluate:
        def evaluate(row: dict[str, Any]) -> bool | None:
            found = None if row[name] is None else test(row[name])
            return inverted(found) if negated else found

        return evaluate

    if kind == "null":
        return f"{name} is {no}null", lambda row: (row[name] is None) != negated
    if kind == "sign":
        sign, value = draw(st.sampled_from(sorted(SIGNS))), draw(pool)
        negated = False
        return f"{name} {sign} {written(value)}", known(lambda own: SIGNS[sign](own, value))
    if kind == "in":
        values = draw(st.lists(pool, min_size=1, max_size=3))
        listed = ", ".join(map(written, values))
        return f"{name} {no}in ({listed})", known(lambda own: any(own == value for value in values))
    if kind == "between":
        low, high = draw(pool), draw(pool)
        return f"{name} {no}between {written(low)} and {written(high)}", known(lambda own: low <= own <= high)
    shape = draw(st.lists(st.sampled_from(["%", "_", "a", "b", "\\%", "\\_", "\\\\", "\n", "é", ".", "^"]), max_size=4))
    pattern: Any = "".join(shape)
    if name == "b":
        pattern = pattern.replace("é", "\xff").encode("latin-1")
    return f"{name} {no}like {written(pattern)}", known(lambda own: like(own, pattern))


def _negation(inner: tuple[str, Evaluate]) -> tuple[str, Evaluate]:
    return f"not ({inner[0]})", lambda row: inverted(inner[1](row))


def _joined(parts: list[tuple[str, Evaluate]], word: str) -> tuple[str, Evaluate]:
    join = conjunction if word == "and" else disjunction
    return f" {word} ".join(f"({text})" for text, _ in parts), lambda row: join([test(row) for _, test in parts])


conditions = st.recursive(
    comparisons(),
    lambda inner: (
        inner.map(_negation)
        | st.tuples(st.lists(inner, min_size=2, max_size=3), st.sampled_from(["and", "or"])).map(lambda x: _joined(*x))
    ),
    max_leaves=6,
)
rows = st.lists(
    st.fixed_dictionaries({name: st.none() | st.sampled_from(pool) for name, (_, pool) in TYPES.items()}),
    min_size=1,
    max_size=8,
)


@given(conditions, rows)
@settings(max_examples=400, deadline=None)
def test_a_filter_keeps_the_rows_for_which_the_model_says_true(
    condition: tuple[str, Evaluate], given_rows: list[dict[str, Any]]
) -> None:
    text, evaluate = condition
    columns = {name: pa.array([row[name] for row in given_rows], kind) for name, kind in ARROW.items()}
    table = pa.table({"k": pa.array(range(len(given_rows)), pa.int64()), **columns})
    kept = table.filter(to_expression(text, TYPED))["k"].to_pylist()
    assert kept == [at for at, row in enumerate(given_rows) if evaluate(row) is True], text


def test_and_binds_closer_than_or_and_not_closest() -> None:
    table = pa.table({"k": pa.array(range(8), pa.int64()), **{n: pa.nulls(8, ARROW[n]) for n in ARROW}})
    for at, name in ((2, "i"), (1, "u")):
        column = pa.array([(row >> at) & 1 for row in range(8)], ARROW[name])
        table = table.set_column(table.schema.get_field_index(name), name, column)
    a, b, c = "i = 1", "u = 1", "k in (1, 3, 5, 7)"
    pairs = {
        f"{a} or {b} and {c}": f"({a}) or (({b}) and ({c}))",
        f"{a} and {b} or {c}": f"(({a}) and ({b})) or ({c})",
        f"not {a} and {b}": f"(not ({a})) and ({b})",
        f"not {a} or {b}": f"(not ({a})) or ({b})",
    }
    for text, meant in pairs.items():
        kept = table.filter(to_expression(text, TYPED))["k"].to_pylist()
        assert kept == table.filter(to_expression(meant, TYPED))["k"].to_pylist()
        assert 0 < len(kept) < 8
