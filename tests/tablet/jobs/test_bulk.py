"""Layers and METADATA changes of bulk commits: pure functions."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import RequestError
from ebla.metadata.values.changes import AddFragments, RangeErase, RecordJob, RequireSchema, apply
from ebla.metadata.values.table_metadata import FragmentRef, initial_metadata
from ebla.model.declaration import Group, Schema
from ebla.service.job_orders import BulkCommit, BulkFragment
from ebla.tablet.jobs.bulk import LAYERS_MAX, bulk_changes, count_layers, layers_of

SCHEMA = Schema(key={"k": "string"}, groups=[Group("g", columns={"a": "int64"}), Group("h", families=["*"])]).number()
G, H = (group.id for group in SCHEMA.groups)
TABLE = initial_metadata("t", SCHEMA, ["a", "b", "c"], [b"g", b"p"])


def made(first: str, last: str, order: tuple[int, int] = (0, 0), group: int = G, name: str = "") -> BulkFragment:
    name = name or f"{first}{last}{order}{group}"
    return BulkFragment(group, FragmentRef(name, 1, 10, first.encode(), last.encode(), 0, 0, 1, unique=True), order)


def test_files_that_do_not_overlap_share_a_layer() -> None:
    assert layers_of([made("a", "c"), made("d", "f", (1, 0)), made("g", "g", (2, 0))]) == [0, 0, 0]


def test_of_files_that_overlap_the_greater_order_is_higher() -> None:
    later, first, between, alone = (
        made("h", "m", (1, 0)),
        made("a", "f"),
        made("d", "k", (0, 1)),
        made("p", "t", (1, 1)),
    )
    assert layers_of([later, first, between, alone]) == [2, 0, 1, 0]


def test_files_that_share_one_row_overlap() -> None:
    assert layers_of([made("a", "c", (0, 0)), made("c", "d", (0, 1))]) == [0, 1]


def test_groups_are_layered_apart() -> None:
    assert layers_of([made("a", "c", (0, 0)), made("a", "c", (0, 1), H)]) == [0, 0]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.integers(0, 3), st.sampled_from([G, H])),
        max_size=12,
    )
)
def test_layers_keep_the_order_of_all_that_overlap(drawn: list[tuple[int, int, int, int, int]]) -> None:
    files = [
        made(str(min(a, b)), str(max(a, b)), (p, n), group, name=f"{place:03}")
        for place, (a, b, p, n, group) in enumerate(drawn)
    ]
    layers = layers_of(files)
    for one, other in itertools.permutations(range(len(files)), 2):
        x, y = files[one], files[other]
        overlap = x.group == y.group and x.fragment.first <= y.fragment.last and y.fragment.first <= x.fragment.last
        if overlap and (x.order, x.fragment.file) < (y.order, y.fragment.file):
            assert layers[one] < layers[other]
    shuffled = list(range(len(files)))
    random.Random(1).shuffle(shuffled)
    assert [layers_of([files[place] for place in shuffled])[shuffled.index(at)] for at in range(len(files))] == layers


def test_more_layers_than_a_microsecond_has_txns_are_refused() -> None:
    files = tuple(made("a", "b", (0, number)) for number in range(LAYERS_MAX + 1))
    assert count_layers(BulkCommit("job", "t", 1, files[1:])) == LAYERS_MAX
    with pytest.raises(RequestError, match=r"ebla\.pipeline\.load.*coalesce"):
        count_layers(BulkCommit("job", "t", 1, files))


def test_every_file_goes_to_all_tablets_that_it_overlaps() -> None:
    files = (made("a", "f"), made("f", "h", (0, 1)), made("g", "z", (0, 2), H), made("p", "p", (0, 3)))
    changes = bulk_changes(BulkCommit("job", "t", 1, files), TABLE, 1_000)
    assert [type(change) for change in changes] == [RecordJob, RequireSchema, AddFragments, AddFragments]
    after = apply(TABLE, changes, "x")
    held = [{ref.file[:2] for state in tablet.groups for ref in state.fragments} for tablet in after.tablets]
    assert held == [{"af", "fh"}, {"fh", "gz"}, {"gz", "pp"}]


def test_references_get_the_txn_of_their_layer_and_the_job_that_of_the_last() -> None:
    files = (made("a", "f"), made("c", "d", (0, 1)))
    after = apply(TABLE, bulk_changes(BulkCommit("job", "t", 1, files), TABLE, 1_000), "x")
    assert [(ref.txn, ref.txn_min, ref.txn_max) for ref in after.tablets[0].group(G).fragments] == [
        (1_000, 1_000, 1_000),
        (1_001, 1_001, 1_001),
    ]
    assert after.job_txn("job") == after.newest_job_txn == 1_001


def test_an_overwrite_erases_below_its_first_layer() -> None:
    commit = BulkCommit("job", "t", 1, (made("a", "f"), made("c", "d", (0, 1))), overwrite=True)
    changes = bulk_changes(commit, TABLE, 1_000)
    assert isinstance(changes[2], RangeErase)
    after = apply(TABLE, changes, "x")
    assert {e.txn for tablet in after.tablets for state in tablet.groups for e in state.erasures} == {1_000}


def test_a_commit_survives_its_encoding() -> None:
    commit = BulkCommit("job", "t", 1, (made("a", "f", (3, 4)),), overwrite=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(commit), type=BulkCommit) == commit
