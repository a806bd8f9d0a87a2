"""What a change of the schema does to references: each value counts in one group, and nothing gone comes back."""

from __future__ import annotations

import msgspec
import pytest

from ebla.metadata.values.altering import repartitioned
from ebla.metadata.values.changes import AlterSchema, FlushedTablet, RequirementFailed, apply
from ebla.metadata.values.table_metadata import (
    FragmentRef,
    GroupState,
    RangeErasure,
    TableMetadata,
    TabletMetadata,
    initial_metadata,
)
from ebla.model.declaration import Group, Schema
from ebla.model.schema import TableSchema
from ebla.model.schema_change import Alteration, altered

START = Schema(
    key={"k": "string"},
    groups=[
        Group("x", columns={"a": "int32", "b": "string"}),
        Group("y", columns={"c": "int64", "d": "int64"}),
        Group("p", families=["f", "h"]),
        Group("q", families=["g", "*"]),
    ],
).number()
A, B, C, D = (column.id for group in START.groups for column in group.columns)


def ref(file: str, **restriction: object) -> FragmentRef:
    return msgspec.structs.replace(FragmentRef(file, 1, 1, b"a", b"z", 1, 9, 1), **restriction)


def metadata() -> TableMetadata:
    """Return a table with one file in each group, named like it."""
    table = initial_metadata("t", START, ["tablet"])
    states = [GroupState(group.id, (ref(group.name),), floor_txn=3) for group in START.groups]
    states[1] = msgspec.structs.replace(states[1], erasures=(RangeErasure(b"m", None, 5),), floor_txn=7)
    groups = tuple(states)
    return table.with_tablets([msgspec.structs.replace(table.tablets[0], groups=groups)])


def after(*requests: dict[str, object]) -> tuple[TableSchema, TabletMetadata]:
    schema, tablet = START, metadata().tablets[0]
    for request in requests:
        new = altered(schema, Alteration(**request))
        tablet = repartitioned(tablet, schema, new, 42)
        schema = new
    return schema, tablet


def shown(schema: TableSchema, tablet: TabletMetadata) -> dict[str, list[object]]:
    """Return what each group refers to: the file, and what of it counts if not all does."""
    found: dict[str, list[object]] = {}
    for group in schema.groups:
        own = found[group.name] = []
        for one in tablet.group(group.id).fragments:
            counts = [
                part for part in (one.columns, one.families, one.families_out, one.renamed) if part not in (None, ())
            ]
            if one.columns == ():
                counts = ["rows"]
            own.append((one.file, *counts) if counts else one.file)
    return found


UNCHANGED = {"x": ["x"], "y": ["y"], "p": ["p"], "q": ["q"]}


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([{"drop_columns": ["a"]}], {}),
        ([{"add_columns": {"x": {"e": "int8"}}}], {}),
        ([{"rename": {"a": "n"}, "change_types": {"c": "decimal128(38, 0)"}}], {}),
        ([{"move": {"c": "x"}}], {"x": [("x", (A, B)), ("y", (C,))], "y": [("y", (D,))]}),
        (
            [{"move": {"c": "x"}}, {"move": {"c": "y"}}],
            {"x": [("x", (A, B)), ("y", "rows")], "y": [("y", (C,)), ("x", "rows"), ("y", (D,))]},
        ),
        ([{"move": {"c": "x", "d": "x"}, "drop_groups": ["y"]}], {"x": [("x", (A, B)), ("y", (C, D))], "y": None}),
        ([{"drop_families": ["f"]}], {"p": [("p", ("h",))], "q": [("q", ("f",))]}),
        ([{"move": {"f": "q"}}], {"p": [("p", ("h",))], "q": [("p", ("f",)), "q"]}),
        ([{"rename": {"f": "h", "h": "f"}}], {"p": [("p", (("f", "h"), ("h", "f")))]}),
        ([{"add_families": {"p": ["loose"]}}], {"p": ["p", ("q", ("loose",))], "q": [("q", ("loose",))]}),
        ([{"drop_families": ["loose"]}], {"q": [("q", ("loose",))]}),
        ([{"drop_families": ["*"]}], {"q": [("q", ("g",))]}),
        (
            [{"rename": {"f": "new"}, "drop_families": ["new"]}, {"drop_families": ["new"]}],
            {"p": [("p", ("h",))], "q": [("q", ("new",))]},
        ),
        ([{"move": {"*": "p"}}], {"p": ["p", ("q", ("f", "g", "h"))], "q": [("q", ("g",))]}),
    ],
    ids=["drop", "add", "rename", "move", "back", "merge", "drop_family", "move_family", "swap", "name", "forget",
         "no_wildcard", "rename_then_drop", "move_wildcard"],
)  # fmt: skip
def test_references_count_for_the_groups_of_the_new_schema(
    requests: list[dict[str, object]], expected: dict[str, list[object] | None]
) -> None:
    schema, tablet = after(*requests)
    wanted = {name: refs for name, refs in (UNCHANGED | expected).items() if refs is not None}
    found = shown(schema, tablet)
    assert {name: sorted(map(str, refs)) for name, refs in found.items()} == {
        name: sorted(map(str, refs)) for name, refs in wanted.items()
    }


def test_range_erasures_floors_and_flushed_indexes_come_along() -> None:
    schema, tablet = after({"groups": [Group("z", columns={})], "move": {"c": "z"}})
    new = tablet.group(schema.groups[-1].id)
    assert (new.erasures, new.floor_txn, new.flushed) == ((RangeErasure(b"m", None, 5),), 7, 42)
    assert {state.flushed for state in tablet.groups} == {42}


@pytest.mark.parametrize(
    ("base", "tablets", "code"),
    [
        (2, [FlushedTablet("tablet", 1, 1)], "schema_version"),
        (1, [], "wrong_tablets"),
        (1, [FlushedTablet("tablet", 1, 1), FlushedTablet("other", 1, 1)], "wrong_tablets"),
        (1, [FlushedTablet("tablet", 0, 1)], "stale_epoch"),
    ],
    ids=["version", "missing", "unknown", "epoch"],
)
def test_a_change_that_was_worked_out_on_something_else_is_refused(
    base: int, tablets: list[FlushedTablet], code: str
) -> None:
    new = altered(START, Alteration(drop_columns=["a"]))
    with pytest.raises(RequirementFailed) as refused:
        apply(metadata(), [AlterSchema(base, new, tuple(tablets))], "next")
    assert refused.value.code == code


def test_the_outcome_has_the_checksum_of_its_contents() -> None:
    new = altered(START, Alteration(move={"c": "x", "f": "q"}, drop_columns=["a"]))
    done = apply(metadata(), [AlterSchema(1, new, (FlushedTablet("tablet", 1, 1),))], "next")
    again = msgspec.structs.replace(done)
    assert done.checksum == again.checksum
    done.check()
