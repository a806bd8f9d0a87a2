"""The METADATA value: lookups, invariants, checksum."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import StoreError
from ebla.metadata.values.table_metadata import (
    GroupState,
    InvalidMetadata,
    RangeErasure,
    Replica,
    TableMetadata,
    TabletMetadata,
    initial_metadata,
)
from ebla.model.ranges import KeyRange
from ebla.model.schema import decode_hook, encode_hook
from tests.metadata.metadata_world import EVENTS, PROFILE, SCHEMA, TABLE, fragment, table

replace = msgspec.structs.replace
ROWS = st.binary(max_size=3)


def cut(splits: set[bytes]) -> TableMetadata:
    ordered = sorted(splits)
    return initial_metadata(TABLE, SCHEMA, [f"t{number}" for number in range(len(ordered) + 1)], ordered)


def with_first(metadata: TableMetadata, **changes: object) -> TableMetadata:
    return replace(metadata, tablets=(replace(metadata.tablets[0], **changes), *metadata.tablets[1:]))


def with_group(**changes: object) -> TableMetadata:
    return with_first(table(), groups=(replace(GroupState(PROFILE), **changes),))


@given(st.sets(ROWS.filter(bool), max_size=40), ROWS)
def test_a_row_belongs_to_the_one_tablet_whose_range_has_it(splits: set[bytes], row: bytes) -> None:
    metadata = cut(splits)
    assert [metadata.tablet_for(row)] == [tablet for tablet in metadata.tablets if tablet.range.contains(row)]


@given(st.sets(ROWS.filter(bool), max_size=40), ROWS, st.none() | ROWS)
def test_overlapping_finds_every_tablet_with_rows_in_the_range(
    splits: set[bytes], first: bytes, last: bytes | None
) -> None:
    metadata = cut(splits)
    wanted = KeyRange(first, last)
    assert metadata.overlapping(wanted) == tuple(t for t in metadata.tablets if t.range.overlaps(wanted))


def test_a_tablet_is_found_by_its_id() -> None:
    metadata = table()
    assert [metadata.by_id(tablet.id) for tablet in metadata.tablets] == [*metadata.tablets]
    assert metadata.by_id("nobody") is None


def test_a_group_without_a_state_is_empty() -> None:
    tablet = TabletMetadata("a", b"", None, "running", 1)
    assert tablet.group(PROFILE) == GroupState(PROFILE)
    changed = tablet.with_group(GroupState(EVENTS, flushed=2)).with_group(GroupState(PROFILE, flushed=1))
    changed = changed.with_group(GroupState(EVENTS, flushed=3))
    assert changed.groups == (GroupState(PROFILE, flushed=1), GroupState(EVENTS, flushed=3))


def test_a_value_survives_its_encoding() -> None:
    metadata = with_group(fragments=(fragment("f"),), erasures=(RangeErasure(b"", None, 3),), flushed=7)
    content = msgspec.msgpack.encode(metadata, enc_hook=encode_hook)
    decoded = msgspec.msgpack.decode(content, type=TableMetadata, dec_hook=decode_hook)
    assert decoded == metadata
    assert decoded.checksum == metadata.checksum


def test_the_checksum_kept_by_changes_is_that_of_the_value_made_anew() -> None:
    metadata = table()
    for number in range(1, 5):
        tablet = metadata.tablets[number % 3]
        state = replace(tablet.group(PROFILE), flushed=number)
        metadata = metadata.with_tablets([tablet.with_group(state)]).with_txnid(f"x{number}", number)
        anew = TableMetadata(TABLE, metadata.txnid, metadata.sequence, SCHEMA, metadata.tablets, metadata.jobs)
        assert anew == metadata
        assert anew.checksum == metadata.checksum


def test_the_checksum_covers_every_part() -> None:
    metadata = table()
    others = [
        metadata.with_txnid("other", 0),
        metadata.with_txnid(metadata.txnid, 1),
        metadata.with_jobs((("job", 1),)),
        metadata.with_jobs((("job", 2),)),
        replace(metadata, table_id="other"),
        replace(metadata, schema=replace(SCHEMA, version=2)),
        with_first(metadata, epoch=2),
        with_first(metadata, leader="s"),
        with_first(metadata, log="s"),
        with_first(metadata, state="splitting"),
        with_group(),
        with_group(flushed=1),
        with_group(floor_txn=1),
        with_group(fragments=(fragment("f"),)),
        with_group(fragments=(fragment("g"),)),
    ]
    assert len({value.checksum for value in [metadata, *others]}) == len(others) + 1


BROKEN = {
    "no tablet": replace(table(), tablets=()),
    "same id": replace(table(), tablets=tuple(replace(tablet, id="a") for tablet in table().tablets)),
    "rows before": with_first(table(), first=b"a"),
    "rows from": replace(table(), tablets=table().tablets[:-1]),
    "hole": replace(table(), tablets=(table().tablets[0], table().tablets[2])),
    "overlap": with_first(table(), last=b"h"),
    "overlap ": with_first(table(), last=None),
    "is empty": with_first(table([b"g"]), last=b""),
    "needs an id, and": replace(table(), table_id=""),
    "needs an id, a state": with_first(table(), id=""),
    "needs an id, a state,": with_first(table(), epoch=-1),
    "two replicas": with_first(table(), replicas=(Replica("s", "1"), Replica("s", "2"))),
    "two states": with_first(table(), groups=(GroupState(PROFILE), GroupState(PROFILE))),
    "not in the schema": with_first(table(), groups=(GroupState(99),)),
    "below zero": with_group(flushed=-1),
    "below zero ": with_group(floor_txn=-1),
    "range erasure": with_group(erasures=(RangeErasure(b"b", b"a", 1),)),
    "range erasure ": with_group(erasures=(RangeErasure(b"a", None, 0),)),
    "referenced twice": with_group(fragments=(fragment("f"), fragment("f"))),
    "no row of the tablet": with_group(fragments=(fragment("f", b"g", b"h"),)),
    "first row is after": with_group(fragments=(fragment("f", b"b", b"a"),)),
    "smallest txn": with_group(fragments=(replace(fragment("f"), txn_min=9),)),
    "constant txn": with_group(fragments=(replace(fragment("f"), txn=9),)),
    "needs a file": with_group(fragments=(replace(fragment("f"), rows=-1),)),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_what_breaks_an_invariant_is_found_and_named(problem: str) -> None:
    with pytest.raises(InvalidMetadata) as raised:
        BROKEN[problem].check()
    expected = {"hole": "hole|overlap", "is empty": "empty|overlap|hole"}.get(problem, problem.strip())
    assert any(part in str(raised.value) for part in expected.split("|"))
    assert isinstance(raised.value, StoreError)


def test_a_sound_value_passes_the_check() -> None:
    table().check()
    table([]).check()
    with_group(
        fragments=(fragment("f", b"", b"a"), replace(fragment("f"), families=("click",)), fragment("g", b"f", b"z")),
        erasures=(RangeErasure(b"", None, 1),),
        flushed=4,
    ).check()


def test_with_tablets_refuses_a_broken_tablet_and_another_range() -> None:
    metadata = table()
    with pytest.raises(InvalidMetadata):
        metadata.with_tablets([replace(metadata.tablets[0], last=b"f")])
    with pytest.raises(InvalidMetadata):
        metadata.with_tablets([replace(metadata.tablets[0], groups=(GroupState(99),))])


@pytest.mark.parametrize(("ids", "splits"), [(["a"], [b"x"]), (["a", "b"], [b""]), (["a", "b", "c"], [b"x", b"x"])])
def test_splits_that_make_no_table_are_refused(ids: list[str], splits: list[bytes]) -> None:
    with pytest.raises(InvalidMetadata):
        initial_metadata(TABLE, SCHEMA, ids, splits)


def test_the_files_of_a_table_are_those_of_all_its_references() -> None:
    metadata = with_group(fragments=(fragment("f"), fragment("g")))
    assert [*metadata.files()] == [f"fragments/{TABLE}/f.parquet", f"fragments/{TABLE}/g.parquet"]
