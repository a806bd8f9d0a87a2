"""META as rows: their order, and what stands in them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ebla.metadata.values.meta_view import meta_batch, meta_cells, meta_row, seek_row
from ebla.metadata.values.serving import UNLOADED
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, TableMetadata, initial_metadata
from ebla.model.declaration import Group, Schema

SCHEMA = Schema(
    key={"user": "string"},
    groups=[
        Group("profile", columns={"name": "string", "age": "int32"}, compression="zstd", in_memory=True),
        Group("events", families=["click", "view"], max_versions=3, max_age=1.5, purge_join="and"),
    ],
).number()
PROFILE, EVENTS = (group.id for group in SCHEMA.groups)

names = st.text("abz059_.-", min_size=1, max_size=4)
rows = st.lists(st.binary(min_size=1, max_size=3), unique=True, max_size=5).map(sorted)


def table(splits: list[bytes]) -> TableMetadata:
    return initial_metadata("t", SCHEMA, [f"tablet {n}" for n in range(len(splits) + 1)], splits, leader="s", log="s")


@given(st.dictionaries(names, rows, max_size=4))
def test_rows_of_a_table_stand_together_its_own_first_and_the_unbounded_tablet_last(
    tables: dict[str, list[bytes]],
) -> None:
    expected = []
    for name in sorted(tables):
        expected += [name.encode(), *(meta_row(name, last) for last in [*tables[name], None])]
    assert expected == sorted(expected)


@given(names, rows, st.binary(max_size=4), names)
def test_the_tablet_of_a_row_is_the_first_from_its_seek_on(
    name: str, splits: list[bytes], row: bytes, other: str
) -> None:
    metadata = table(splits)
    cells = [*meta_cells(name, metadata)]
    if other != name:
        cells += meta_cells(other, table([b"m"]))
    found = min(cell.row for cell in cells if cell.row >= seek_row(name, row))
    assert found == meta_row(name, metadata.tablet_for(row).last)


def test_cells_say_what_the_table_and_its_tablets_are() -> None:
    metadata = table([b"m"])
    whole = FragmentRef("fragments/t/1.parquet", 5, 100, b"a", b"k", 1, 2, 1)
    limited = msgspec.structs.replace(whole, file="fragments/t/2.parquet", columns=(2,), clip=(b"a", None))
    of_families = msgspec.structs.replace(whole, file="fragments/t/3.parquet", families=("click",))
    first = metadata.tablets[0].with_group(GroupState(PROFILE, (whole, limited)))
    first = first.with_group(GroupState(EVENTS, (of_families,)))
    metadata = metadata.with_tablets([first]).with_txnid("x", 7)
    cells = {(cell.row, f"{cell.family}:{cell.qualifier}"): cell.value for cell in meta_cells("users", metadata)}
    assert cells == {
        (b"users", "schema:profile:columns"): b"name string, age int32",
        (b"users", "schema:profile:compression"): b"zstd",
        (b"users", "schema:profile:blocksize"): b"393216",
        (b"users", "schema:profile:in-memory"): b"true",
        (b"users", "schema:profile:purge"): cells[b"users", "schema:profile:purge"],
        (b"users", "schema:events:columns"): b"click:, view:",
        (b"users", "schema:events:compression"): b"lz4",
        (b"users", "schema:events:blocksize"): b"262144",
        (b"users", "schema:events:in-memory"): b"false",
        (b"users", "schema:events:purge"): b"max-age=1500000 and max-history=3",
        (b"users m", "first:"): b"",
        (b"users m", "location:"): b"s",
        (b"users m", "log:"): b"log/s",
        (b"users m", "fragments:profile"): b"fragments/t/1.parquet fragments/t/2.parquet?columns=2&rows=61-",
        (b"users m", "fragments:events"): b"fragments/t/3.parquet?families=click",
        (b"users!", "first:"): b"m",
        (b"users!", "location:"): b"s",
        (b"users!", "log:"): b"log/s",
    }
    assert {cell.timestamp for cell in meta_cells("users", metadata)} == {7}


def test_a_tablet_that_is_unloaded_has_no_location() -> None:
    metadata = table([b"m"])
    first = msgspec.structs.replace(metadata.tablets[0], state=UNLOADED)
    cells = meta_cells("users", metadata.with_tablets([first]))
    assert [cell.row for cell in cells if cell.family == "location"] == [b"users!"]


def test_a_store_without_tables_has_an_empty_meta() -> None:
    assert meta_batch([]).num_rows == 0
