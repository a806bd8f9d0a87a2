"""What was written under a former version of the schema and arrives late is taken in, where it belongs by now."""

from __future__ import annotations

import pytest

from ebla.metadata.values.changes import (
    AddFragments,
    AlterSchema,
    Flush,
    FlushedTablet,
    NewFragment,
    RequirementFailed,
    TabletAt,
    update,
)
from ebla.metadata.values.late import ForgetSchemas
from ebla.metadata.values.table_metadata import FragmentRef, RangeErasure, TableMetadata, initial_metadata
from ebla.model.declaration import Group, Schema
from ebla.model.schema_change import Alteration, altered

START = Schema(
    key={"k": "string"},
    groups=[Group("x", columns={"a": "int32", "b": "string"}), Group("y", columns={"c": "int64"})],
).number()
X, Y = (group.id for group in START.groups)
A, B, C = (column.id for group in START.groups for column in group.columns)


def flush(
    group: int, flushed: int, version: int, file: str | None = None, erasure: RangeErasure | None = None
) -> Flush:
    file = file or f"{group}-{flushed}"
    ref = FragmentRef(file, 1, 1, b"a", b"z", 1, 9, version)
    erasures = () if erasure is None else (erasure,)
    return Flush(group, (NewFragment(ref, ("t",)),), (FlushedTablet("t", 1, flushed, erasures),))


def table() -> TableMetadata:
    return update(initial_metadata("id", START, ["t"]), [flush(X, 5, 1), flush(Y, 3, 1)])


def after(metadata: TableMetadata, is_late: bool = True, **request: object) -> TableMetadata:
    schema = altered(metadata.schema, Alteration(**request))
    tablets = (FlushedTablet("t", 1, 0),)
    return update(metadata, [AlterSchema(metadata.schema.version, schema, tablets, is_late)])


def shown(metadata: TableMetadata) -> dict[int, tuple[int, list[tuple[str, tuple[int, ...] | None]]]]:
    (tablet,) = metadata.tablets
    return {one.group: (one.flushed, [(ref.file, ref.columns) for ref in one.fragments]) for one in tablet.groups}


def moved() -> TableMetadata:
    """Return the table with b moved to the other group, while its leader has rows in memory."""
    return after(table(), move={"b": "y"})


def test_a_group_is_flushed_only_as_far_as_all_that_it_is_made_of() -> None:
    """y was flushed to 3: what the log has of c from 4 on is in no file, though x was flushed to 5."""
    assert shown(moved())[Y][0] == 3
    assert shown(moved())[X][0] == 5


def test_a_late_flush_goes_to_the_groups_that_its_columns_are_in_now() -> None:
    metadata = update(moved(), [flush(X, 8, 1)])
    found = shown(metadata)
    assert (f"{X}-8", (A,)) in found[X][1]
    assert (f"{X}-8", (B,)) in found[Y][1]
    assert (found[X][0], found[Y][0]) == (8, 3), "of c, rows from 4 on are still to come"
    metadata = update(metadata, [flush(Y, 8, 1)])
    assert (shown(metadata)[X][0], shown(metadata)[Y][0]) == (8, 8)


def test_rows_go_over_two_changes_of_the_schema_at_once() -> None:
    metadata = after(moved(), move={"a": "y"})
    metadata = update(metadata, [flush(X, 7, 1), flush(Y, 7, 1)])
    found = shown(metadata)
    assert {(f"{X}-7", (A,)), (f"{X}-7", (B,))} <= set(found[Y][1])
    assert found[Y][0] == 7


def test_a_flush_under_todays_version_follows_those_under_the_former_one() -> None:
    metadata = update(moved(), [flush(X, 8, 1), flush(Y, 8, 1), flush(X, 9, 2, "new")])
    assert shown(metadata)[X][0] == 9
    with pytest.raises(RequirementFailed) as refused:
        update(metadata, [flush(Y, 2, 1, "old")])
    assert refused.value.code == "already_flushed"


def test_a_range_erasure_that_comes_late_holds_in_all_groups_it_reaches() -> None:
    erasure = RangeErasure(b"a", b"c", 7)
    metadata = update(moved(), [flush(X, 8, 1, erasure=erasure)])
    (tablet,) = metadata.tablets
    assert tablet.group(X).erasures == tablet.group(Y).erasures == (erasure,)


def test_files_of_a_job_that_were_made_under_the_former_version_are_taken_in() -> None:
    ref = FragmentRef("bulk", 1, 1, b"a", b"z", 4, 4, 1, txn=4)
    metadata = update(moved(), [AddFragments(X, (NewFragment(ref, ("t",)),), (TabletAt("t", 1),))])
    assert ("bulk", (B,)) in shown(metadata)[Y][1]
    assert shown(metadata)[X][0] == 5


def test_former_versions_are_kept_until_they_are_forgotten() -> None:
    metadata = moved()
    assert [schema.version for schema in metadata.former] == [1]
    with pytest.raises(RequirementFailed):
        update(metadata, [ForgetSchemas(3)])
    metadata = update(metadata, [ForgetSchemas(2)])
    assert metadata.former == ()
    assert metadata.tablets[0].behind == ()
    with pytest.raises(RequirementFailed) as refused:
        update(metadata, [flush(X, 8, 1)])
    assert refused.value.code == "schema_version"


def test_where_all_was_flushed_first_nothing_is_kept() -> None:
    metadata = after(table(), is_late=False, move={"b": "y"})
    assert metadata.former == ()
    assert metadata.tablets[0].behind == ()


def test_a_late_flush_that_says_what_it_was_made_upon_lands_once() -> None:
    based = Flush(
        X,
        (NewFragment(FragmentRef("late", 1, 1, b"a", b"z", 1, 9, 1), ("t",)),),
        (FlushedTablet("t", 1, 7, base=5),),
    )
    once = update(moved(), [based])
    with pytest.raises(RequirementFailed, match="flushed to 7, not 5"):
        update(once, [based])
