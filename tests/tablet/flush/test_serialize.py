"""Serialize: which table group goes first, and what a flush tells METADATA."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebla.metadata.values.changes import apply
from ebla.metadata.values.table_metadata import RangeErasure, initial_metadata
from ebla.model.batch import PutBatch
from ebla.model.declaration import Group, Schema
from ebla.model.ranges import KeyRange
from ebla.settings import Settings
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.tablet.flush.serialize import Candidate, FlushWork, choose, flush_change, write_fragment
from ebla.tablet.read.row_cache import CachedRows
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.write.mutation import erase_range
from ebla.tablet.write.recent_rows import RecentRows
from tests.support.simulated_files import SimulatedFiles

# --- the choice ----------------------------------------------------------------------------------

SETTINGS = Settings(
    flush_bytes=100, memory_bytes_max=1_000, log_bytes_max=5_000, flush_weight_memory=1.0, flush_weight_log=0.25
)


def candidate(name: str, memory: int, log: int = 0) -> Candidate:
    return Candidate(name, 1, memory, log)


class TestChoose:
    def test_nothing_is_flushed_while_nothing_is_large(self) -> None:
        assert choose([candidate("a", 99), candidate("b", 99)], SETTINGS, 0) is None
        assert choose([], SETTINGS, 1 << 40) is None
        assert choose([candidate("a", 0, 9_999)], SETTINGS, 1 << 40) is None

    def test_a_group_that_is_large_enough_is_flushed(self) -> None:
        large = candidate("b", 100)
        assert choose([candidate("a", 99), large], SETTINGS, 0) == large

    def test_many_small_groups_are_flushed_when_together_they_fill_half_the_memory(self) -> None:
        many = [candidate(str(n), 50 + n) for n in range(10)]
        assert choose(many, SETTINGS, 0) == many[-1]

    def test_a_long_log_is_shortened_by_flushing_who_holds_it_back(self) -> None:
        small_but_old = candidate("old", 10, log=5_000)
        large_but_new = candidate("new", 90, log=100)
        assert choose([small_but_old, large_but_new], SETTINGS, 4_999) is None
        assert choose([small_but_old, large_but_new], SETTINGS, 5_000) == small_but_old

    @given(
        st.lists(
            st.builds(Candidate, st.text(max_size=2), st.integers(1, 2), st.integers(0, 400), st.integers(0, 9_000)),
            max_size=8,
        ),
        st.integers(0, 9_000),
    )
    def test_the_choice_has_the_largest_score_and_holds_something(
        self, candidates: list[Candidate], log_bytes: int
    ) -> None:
        chosen = choose(candidates, SETTINGS, log_bytes)
        if chosen is None:
            assert all(c.memory_bytes < 100 for c in candidates)
            return
        assert chosen.memory_bytes
        score = lambda c: c.memory_bytes + 0.25 * c.log_bytes  # noqa: E731
        assert score(chosen) == max(score(c) for c in candidates if c.memory_bytes)


# --- the change ----------------------------------------------------------------------------------

SCHEMA = Schema(
    key={"user": "string"}, groups=[Group("profile", columns={"n": "int64"}), Group("events", families=["f"])]
).number()
PROFILE, EVENTS = (group.id for group in SCHEMA.groups)


class World:
    """One table of three tablets, [, g) [g, p) [p, ), without a store around it."""

    def __init__(self) -> None:
        self.files = SimulatedFiles()
        metadata = initial_metadata("t1", SCHEMA, ["a", "b", "c"], [b"g", b"p"]).with_txnid("x", 1)
        fragments = OpenFragments(self.files, BlockCache(1 << 20), 10)
        self.table = TableState("t", metadata, fragments, CachedRows(RecentRows(1 << 10, 0), 0), Settings())

    def put(self, txn: int, *, is_committed: bool = True, **rows: int) -> Any:
        columns = pa.record_batch({"user": pa.array(list(rows)), "n": pa.array(list(rows.values()), pa.int64())})
        staged = self.table.stage(self.table.admission.put(PutBatch(columns)), txn)
        if is_committed:
            self.commit()
        return staged

    def erase(self, txn: int, first: bytes, last: bytes | None) -> None:
        self.table.stage(erase_range(KeyRange(first, last)), txn)
        self.commit()

    def commit(self) -> None:
        """Have the log hold all that was staged."""
        for tablet in self.table.view.metadata.tablets:
            state = self.table.tablet(tablet.id)
            state.commit(state.index)

    def work(self, group: int) -> FlushWork:
        return FlushWork.of(self.table, group)

    def flush(self, group: int) -> Any:
        work = self.work(group)
        return flush_change(work, write_fragment(work, self.files, lambda table: f"fragments/{table}/fresh.parquet"))


class TestFlushChange:
    def test_every_tablet_that_has_records_gets_the_reference_and_its_own_index(self) -> None:
        world = World()
        world.put(1 << 10, ada=1, zoe=2)
        world.put(2 << 10, bob=3)
        change = world.flush(PROFILE)
        assert {(t.tablet, t.epoch, t.flushed) for t in change.tablets} == {("a", 1, 2), ("c", 1, 1)}
        (new,) = change.fragments
        assert new.tablets == ("a", "c")
        ref = new.fragment
        assert (ref.file, ref.rows, ref.first, ref.last) == ("fragments/t1/fresh.parquet", 3, b"ada", b"zoe")
        assert (ref.txn_min, ref.txn_max, ref.unique, ref.schema_version) == (1 << 10, 2 << 10, True, 1)
        assert ref.bytes == world.files.size(ref.file)
        after = apply(world.table.view.metadata, [change], "next")
        assert [len(tablet.group(PROFILE).fragments) for tablet in after.tablets] == [1, 0, 1]
        assert [tablet.group(PROFILE).flushed for tablet in after.tablets] == [2, 0, 1]

    def test_the_file_holds_what_memory_held_in_all_versions(self) -> None:
        world = World()
        world.put(1 << 10, ada=1)
        world.put(2 << 10, ada=2)
        world.flush(PROFILE)
        fragment = Fragment(world.files, "fragments/t1/fresh.parquet", BlockCache(1 << 20))
        run = fragment.read_range(b"", None, ["_row", "_txn", "2"])
        assert run is not None
        assert run.records.to_pylist() == [
            {"_row": b"ada", "_txn": 2 << 10, "2": 2},
            {"_row": b"ada", "_txn": 1 << 10, "2": 1},
        ]
        assert not fragment.footer.unique

    def test_what_is_not_committed_stays_behind(self) -> None:
        world = World()
        world.put(1 << 10, ada=1)
        world.put(2 << 10, bob=2, is_committed=False)
        change = world.flush(PROFILE)
        assert [(t.tablet, t.flushed) for t in change.tablets] == [("a", 1)]
        assert change.fragments[0].fragment.last == b"ada"

    def test_a_range_erasure_goes_to_the_tablets_it_overlaps_and_needs_no_file(self) -> None:
        world = World()
        world.erase(5 << 10, b"h", b"q")
        for group in (PROFILE, EVENTS):
            change = world.flush(group)
            assert change.fragments == ()
            assert [(t.tablet, t.flushed) for t in change.tablets] == [("b", 1), ("c", 1)]
            assert all(t.erasures == (RangeErasure(b"h", b"q", 5 << 10),) for t in change.tablets)
        assert not world.files.list("fragments/t1")

    def test_records_and_erasures_of_one_tablet_share_its_index(self) -> None:
        world = World()
        world.put(1 << 10, ada=1)
        world.erase(2 << 10, b"", b"b")
        world.put(3 << 10, zoe=1)
        change = world.flush(PROFILE)
        assert [(t.tablet, t.flushed, len(t.erasures)) for t in change.tablets] == [("a", 2, 1), ("c", 1, 0)]
        assert change.fragments[0].tablets == ("a", "c")


class TestStaging:
    def test_every_tablet_counts_its_own_writes(self) -> None:
        world = World()
        commit, touched = world.put(1 << 10, ada=1, zoe=2)
        assert [tablet.id for tablet in touched] == ["a", "c"]
        assert [(part.tablet, part.index, len(part.blocks[0].block)) for part in commit.parts] == [
            ("a", 1, 1),
            ("c", 1, 1),
        ]
        commit, touched = world.put(2 << 10, bob=1, hal=1)
        assert [tablet.id for tablet in touched] == ["b"]  # the others have this log already
        assert [(part.tablet, part.index) for part in commit.parts] == [("a", 2), ("b", 1)]

    def test_a_reader_keeps_the_view_it_has(self) -> None:
        world = World()
        before = world.table.view
        world.put(1 << 10, ada=1)
        assert before.memory == {}
        assert len(world.table.view.memory_of("a", PROFILE).blocks) == 1
