"""Numbered schemas: what a name means, and that they are stored and read back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import UnknownColumn
from ebla.model.declaration import Group, Schema
from ebla.model.schema import TableSchema, decode_hook, encode_hook


class TestResolve:
    SCHEMA = Schema(
        groups=[
            Group("typed", columns={"name": "string", "odd:name": "int8"}),
            Group("events", families=["click"]),
            Group("rest", families=["*"]),
        ]
    ).number()
    NARROW = Schema(groups=[Group("events", families=["click"])]).number()

    @pytest.mark.parametrize(
        ("name", "group", "family", "qualifier"),
        [
            ("click:home", "events", "click", "home"),
            ("click:a:b", "events", "click", "a:b"),
            ("click", "events", "click", None),
            ("click:", "events", "click", None),
            ("other:x", "rest", "other", "x"),
            ("other:", "rest", "other", None),
            ("bare", "rest", "", "bare"),
        ],
    )
    def test_a_name_is_a_cell_or_a_family(self, name: str, group: str, family: str, qualifier: str | None) -> None:
        target = self.SCHEMA.resolve(name)
        assert (target.group.name, target.family, target.qualifier) == (group, family, qualifier)
        assert target.column is None

    def test_a_declared_column_comes_first_even_with_a_colon_in_its_name(self) -> None:
        for name in ("name", "odd:name"):
            target = self.SCHEMA.resolve(name)
            assert target.column is not None
            assert target.column.name == name
            assert target.group.name == "typed"

    @pytest.mark.parametrize("name", ["bare", "view:x", "view", "*", ""])
    def test_without_a_wildcard_only_declared_families_are_known(self, name: str) -> None:
        with pytest.raises(UnknownColumn, match=r"the table has click:\*"):
            self.NARROW.resolve(name)

    def test_a_long_list_of_columns_is_cut_in_messages(self) -> None:
        wide = Schema(columns={f"c{n}": "int8" for n in range(30)}).number()
        assert wide.describe_columns().endswith("c19, ...")


KINDS = st.sampled_from(["int8", "string", "timestamp[s, tz=UTC]", "list<struct<x: decimal(5, 2)>>", "date64"])
GROUPS = st.one_of(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), KINDS, min_size=1).map(lambda c: Group("g", columns=c)),
    st.just(Group("g", families=["*", "f"], max_versions=2, max_age="1h", in_memory=True)),
)


@given(GROUPS)
def test_a_numbered_schema_is_stored_and_read_back(group: Group) -> None:
    schema = Schema(key={"k1": "string", "k2": "timestamp[ns]"}, groups=[group]).number()
    stored = msgspec.msgpack.encode(schema, enc_hook=encode_hook)
    assert msgspec.msgpack.decode(stored, type=TableSchema, dec_hook=decode_hook) == schema
