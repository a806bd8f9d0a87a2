"""An open table keeps what it knows by tablet: memory, where rows may have changed, what is cached of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ebla
from ebla.errors import Conflict
from ebla.metadata.values.table_metadata import initial_metadata
from ebla.model.batch import PutBatch
from ebla.rows.rows import to_put_batch
from ebla.tablet.tables.table_state import divide
from tests.support.inside import engine_of, state_of


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ebla.Table]:
    with ebla.open(tmp_path, settings=ebla.Settings(background_compaction=False)) as db:
        yield db.create_table("t", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}), ["h", "p"])


def tablet_of(table: ebla.Table, key: str) -> str:
    return state_of(table).view.metadata.tablet_for(key.encode()).id


def test_a_block_in_memory_is_of_one_tablet_and_all_bytes_are_counted(table: ebla.Table) -> None:
    table.put([{"k": k, "n": 1} for k in "abiz"])
    table.erase_range("i", "q")
    view = state_of(table).view
    held = {tablet: memory for tablet, own in view.memory.items() for memory in own.values()}
    assert {t: [len(b) for b in m.blocks] for t, m in held.items()} == dict(
        zip((tablet_of(table, k) for k in "aiz"), ([2], [1], [1]), strict=True)
    )
    assert [len(held[tablet_of(table, k)].erasures) for k in "aiz"] == [0, 1, 1]
    total = sum(memory.bytes for memory in held.values())
    assert state_of(table).memory_bytes == engine_of(table).open_tables.memory_bytes == total
    table.flush()
    assert state_of(table).view.memory == {}
    assert state_of(table).memory_bytes == engine_of(table).open_tables.memory_bytes == 0


def test_some_tablets_are_flushed_and_the_others_keep_what_they_have(table: ebla.Table) -> None:
    table.put([{"k": k, "n": 1} for k in "aiz"])
    engine_of(table).flusher.flush_table(state_of(table), [tablet_of(table, "i")])
    assert set(state_of(table).view.memory) == {tablet_of(table, "a"), tablet_of(table, "z")}
    fragments = {t.id: len(t.groups[0].fragments) for t in state_of(table).view.metadata.tablets}
    assert fragments == {tablet_of(table, "a"): 0, tablet_of(table, "i"): 1, tablet_of(table, "z"): 0}
    assert [row["k"] for row in table.scan()] == [*"aiz"]


def test_the_erasure_of_a_range_makes_only_the_rows_of_its_tablets_suspect(table: ebla.Table) -> None:
    since = table.put([{"k": k, "n": 1} for k in "aiz"])
    table.erase_range("i", "j")
    state = state_of(table)
    rows = state.admission.put(batch_of(table, "aiz")).rows
    assert state.stretches_changed_since(rows, since) == [(1, 2)]
    table.put({"k": "a", "n": 2}, if_unchanged_since=since)
    with pytest.raises(Conflict):
        table.put({"k": "i", "n": 2}, if_unchanged_since=since)


def test_a_tablet_that_is_gained_does_not_answer_from_what_was_known_before(table: ebla.Table) -> None:
    since = table.put([{"k": k, "n": 1} for k in "ai"])
    engine, state = engine_of(table), state_of(table)
    for key in "aiai":
        table.get(key)
    assert set(state.row_cache.rows) == {b"a", b"i"}
    table.put({"k": "z", "n": 1})
    with engine.open_tables.lock:
        state.gain([tablet_of(table, "i")], engine.sequencer.allocated)
    assert set(state.row_cache.rows) == {b"a", b"z"}
    rows = state.admission.put(batch_of(table, "ai")).rows
    assert state.stretches_changed_since(rows, since) == [(1, 2)]
    table.put({"k": "i", "n": 2}, if_unchanged_since=since)  # it was looked up, and had not changed


def test_a_tablet_that_is_lost_leaves_no_row_in_the_cache(table: ebla.Table) -> None:
    table.put([{"k": k, "n": 1} for k in "ai"])
    engine, state = engine_of(table), state_of(table)
    for key in "aiai":
        table.get(key)
    lost = tablet_of(table, "i")
    with pytest.raises(AssertionError, match="all of it is in fragments"):
        state.lose([lost], 0)
    engine.flusher.flush_table(state, [lost])
    read_at, found = engine.sequencer.committed, dict(state.row_cache.rows[b"i"])
    with engine.open_tables.lock:
        state.lose([lost], engine.sequencer.allocated)
    assert set(state.row_cache.rows) == {b"a"}
    state.row_cache.put(b"i", found, 100, engine.recent.slot_of(b"i", state.salt), read_at)
    assert set(state.row_cache.rows) == {b"a"}, "a reader that is late does not bring it back"


def batch_of(table: ebla.Table, keys: str) -> PutBatch:
    return to_put_batch([{"k": key, "n": 9} for key in keys], state_of(table).view.schema)


@given(
    st.lists(st.binary(min_size=1, max_size=3), unique=True, max_size=12).map(sorted),
    st.lists(st.binary(max_size=4), max_size=40).map(sorted),
)
def test_sorted_rows_are_divided_among_the_tablets_that_have_them(bounds: list[bytes], rows: list[bytes]) -> None:
    names = [str(number) for number in range(len(bounds) + 1)]
    schema = ebla.Schema(key={"k": "binary"}, columns={"n": "int64"}).number()
    metadata = initial_metadata("t", schema, names, bounds)
    found = [
        (tablet.id, row)
        for tablet, begin, end in divide(pa.array(rows, pa.binary()), metadata)
        for row in rows[begin:end]
    ]
    assert found == [(metadata.tablet_for(row).id, row) for row in rows]
