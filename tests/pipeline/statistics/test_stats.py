"""Stats and presplit: what is counted is there, cuts are even and lie where rows are, and nonsense is refused."""

from __future__ import annotations

import random
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

import ebla
from ebla.errors import CannotSplit, ReadOnly, RequestError, StoreLocked, StoreNotFound, UnknownTable
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.ranges import KeyRange
from ebla.pipeline import presplit, stats
from ebla.pipeline.statistics.histogram import Bucket, Mark, Marks, divide, hot_ranges, pieces_by_bytes, pieces_by_count
from ebla.pipeline.statistics.stats_task import Shared
from ebla.settings import Settings
from tests.pipeline.tables import EVERYTHING, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = Settings(background_compaction=False, tablet_bytes_max=0)
SCHEMA = ebla.Schema(
    key={"k": "int64"}, groups=[ebla.Group("g", columns={"n": "int64", "text": "string"}, block_bytes=4096)]
)


def filled(db: ebla.Database, rows: int = 4_000) -> ebla.Table:
    """Twice as many bytes in the second half of the keys as in the first; some of it in memory only."""
    table = db.create_table("t", SCHEMA)
    table.put([{"k": k, "n": k, "text": f"{k:050}" * (1 if k < rows // 2 else 3)} for k in range(rows)])
    table.flush()
    table.put([{"k": k, "n": -k, "text": "x"} for k in range(0, rows, 100)])
    return table


# --- marks, pure ---------------------------------------------------------------------------------


def marks_of(rows: dict[bytes, int]) -> Marks:
    return Marks([Mark(row, 1, size) for row, size in rows.items()])


def test_cuts_are_rows_that_are_there_and_leave_something_on_both_sides() -> None:
    dice = random.Random(3)
    for _ in range(300):
        there = {bytes(dice.choices(b"abc\\0", k=dice.randint(1, 4))): dice.choice((0, 1, 5, 1_000)) for _ in range(30)}
        marks = marks_of(there)
        low, high = sorted(dice.choices(b"abcd", k=2))
        rows = KeyRange(bytes((low,)), dice.choice((None, bytes((high,)))))
        inside = [row for row in sorted(there) if rows.contains(row)]
        pieces = dice.randint(1, 8)
        cuts = marks.cuts(rows, pieces)
        assert cuts == sorted(set(cuts))
        assert len(cuts) < max(pieces, 1)
        assert set(cuts) <= set(inside[1:]), "never the first row that is there: nothing would be left of it"
        if inside and max(there[row] for row in inside) == min(there[row] for row in inside) > 0:
            assert len(cuts) == min(pieces, len(inside)) - 1


def test_even_rows_are_divided_evenly_and_heavy_ones_by_their_weight() -> None:
    even = marks_of({b"%03d" % n: 10 for n in range(100)})
    assert even.cuts(KeyRange(), 4) == [b"025", b"050", b"075"]
    heavy = marks_of({b"%03d" % n: 1_000 if n >= 90 else 1 for n in range(100)})
    assert heavy.cuts(KeyRange(), 3) == [b"093", b"097"]
    assert marks_of({b"one": 1_000}).cuts(KeyRange(), 9) == []
    assert marks_of({}).cuts(KeyRange(), 9) == []
    buckets = divide(even, 4)
    assert [(bucket.records, bucket.bytes) for bucket in buckets] == [(25, 250)] * 4
    assert (buckets[0].rows.first, buckets[-1].rows.last) == (b"", None)


def test_pieces_are_given_to_the_largest() -> None:
    assert pieces_by_bytes([0, 10, 100, 101], 50) == [1, 1, 2, 3]
    assert pieces_by_count([0, 10, 100], 6) == [1, 1, 4]
    assert pieces_by_count([30, 30, 30], 3) == [1, 1, 1]
    assert pieces_by_count([30, 30, 30], 2) == [1, 1, 1], "tablets are never joined"
    assert pieces_by_count([0], 9) == [1], "nothing is cut that is empty"
    assert sum(pieces_by_count([7, 1_000, 30, 9], 40)) == 40


def test_what_got_more_than_its_share_of_late_writes_is_hot() -> None:
    def bucket(first: bytes, last: bytes | None, recent: int) -> Bucket:
        return Bucket(KeyRange(first, last), 100, 100, recent)

    buckets = [bucket(b"", b"b", 0), bucket(b"b", b"c", 30), bucket(b"c", b"d", 50), bucket(b"d", b"e", 5)]
    buckets += [bucket(b"e", b"f", 0), bucket(b"f", b"g", 0), bucket(b"g", b"h", 0), bucket(b"h", None, 15)]
    assert [(hot.rows, hot.recent) for hot in hot_ranges(buckets)] == [(KeyRange(b"b", b"d"), 80)]
    assert hot_ranges([bucket(b"", None, 0)]) == []
    assert hot_ranges([]) == []


def test_rows_of_a_file_count_where_tablets_refer_to_it() -> None:
    ref = FragmentRef("f", 1, 1, b"a", b"z", 1, 1, 1)
    shared = Shared(1, ref, ((b"", b"c"), (b"f", b"h"), (b"m", None)))
    counted = [row for row in (b"", b"a", b"b", b"c", b"e", b"f", b"g", b"h", b"l", b"m", b"zz") if shared.has(row)]
    assert counted == [b"", b"a", b"b", b"f", b"g", b"m", b"zz"]
    assert not Shared(1, ref, ((b"b", None),)).has(b"a")


# --- tables --------------------------------------------------------------------------------------


def test_stats_say_how_a_table_is_spread(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=QUIET) as db:
        table = filled(db)
        table.split(1_000)
        table.put([{"k": k, "n": 0} for k in range(3_000, 3_040)])
        found = stats(db, "t", tablets=4, buckets=10, spark=spark)
        assert (found.records, found.unflushed, found.recent) == (4_080, 40, 4_080)
        assert [(one.first, one.last) for one in found.tablets] == [(None, 1_000), (1_000, None)]
        assert sum(one.records for one in found.tablets) == 4_080
        assert abs(found.tablets[0].records - 1_010) < 100
        assert [one.commits for one in found.tablets] == [0, 1], "since they were made, by the split"
        assert found.tablets[1].group_bytes == {"g": found.tablets[1].bytes}
        assert sum(bucket.bytes for bucket in found.buckets) == pytest.approx(found.bytes, abs=20)
        assert len(found.buckets) == 10
        shares = [bucket.bytes / found.bytes for bucket in found.buckets]
        assert max(shares) < 0.15
        assert len(found.splits) == 2
        assert all(1_000 < key < 4_000 for key in found.splits)
        read = stats(root, "t", buckets=1, spark=spark)
        assert (read.records, read.unflushed, read.splits) == (4_080, 40, ())
        assert (read.buckets[0].first, read.buckets[0].last) == (None, None)


def test_only_late_writes_are_recent(root: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with ebla.open(root, settings=QUIET) as db:
        table = filled(db)
        table.compact()
        loaded = table.scan().txn
        monkeypatch.setattr("ebla.pipeline.statistics.key_survey.txn_at", lambda microseconds: loaded)
        table.put([{"k": k, "n": 1} for k in range(100, 300)])
        for _ in range(2):
            found = stats(db, "t", spark=spark)
            assert found.recent == 200
            (hot,) = found.hot
            assert hot.recent > 150
            assert (hot.first or 0) <= 150 < 250 <= hot.last < 1_000
            table.flush()


def test_every_kind_of_table_and_key_has_stats(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=QUIET) as db:
        table = db.create_table("t", EVERYTHING, splits=[("u020",)])
        empty = stats(db, "t", spark=spark)
        assert (empty.records, empty.buckets, empty.hot, empty.splits) == (0, (), (), ())
        fill(table)
        found = stats(db, "t", tablets=5, spark=spark)
        assert set(found.tablets[0].group_bytes) == {"profile", "events", "rest"}
        assert found.tablets[0].group_bytes["events"] > 0
        assert all(isinstance(key[1], date) for key in found.splits if len(key) == 2)
        done = presplit(db, "t", tablets=5, spark=spark)
        assert (done.splits, done.tablets_before, done.tablets) == (found.splits, 2, 5)
        before = table.scan().to_arrow().to_pylist()
        assert len(table.tablets()) == 5
        assert table.scan().to_arrow().to_pylist() == before


def test_a_table_is_cut_where_its_records_are(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=QUIET) as db:
        table = filled(db)
        table.flush()
        tried = presplit(db, "t", tablets=6, dry_run=True, spark=spark)
        assert (len(table.tablets()), tried.tablets, tried.dry_run) == (1, 6, True)
    done = presplit(root, "t", tablets=6, spark=spark)
    assert done.splits == tried.splits
    with ebla.open(root, settings=QUIET) as db:
        sizes = [one.bytes for one in stats(db, "t", spark=spark).tablets]
        assert len(sizes) == 6
        assert max(sizes) < 1.3 * sum(sizes) / 6
        assert presplit(db, "t", tablets=6, spark=spark).splits == ()
        size = max(sizes) // 2
        presplit(db, "t", tablet_bytes=size, spark=spark)
        assert max(one.bytes for one in stats(db, "t", spark=spark).tablets) < 1.2 * size
        assert [row["k"] for row in db.table("t").scan(columns=[])] == list(range(4_000))


def test_an_empty_table_is_cut_by_what_is_to_be_loaded(root: str, spark: SparkSession) -> None:
    frame = spark.range(1_000).selectExpr("id * id as k", "id as n")
    with ebla.open(root, settings=QUIET) as db:
        db.create_table("t", SCHEMA)
        assert presplit(db, "t", tablets=4, spark=spark).splits == ()
        done = presplit(db, "t", tablets=4, frame=frame)
        assert len(done.splits) == 3
        assert [round((key / 1_000_000) ** 0.5, 1) for key in done.splits] in (
            [0.2, 0.5, 0.8],
            [0.3, 0.5, 0.8],
            [0.2, 0.5, 0.7],
        )
        with pytest.raises(RequestError, match="k"):
            presplit(db, "t", tablets=4, frame=spark.range(10))


BAD: tuple[dict[str, Any], ...] = (
    {"tablets": 0},
    {"tablets": -3},
    {"tablets": 1 << 40},
    {"tablets": 2.5},
    {"tablets": True},
    {"tablet_bytes": 0},
    {"tablet_bytes": "many"},
    {"tablets": 2, "tablet_bytes": 100},
)


def test_nonsense_is_refused(root: str, spark: SparkSession) -> None:
    with ebla.open(root, settings=QUIET) as db:
        filled(db, 100)
        fixed = db.create_table("fixed", SCHEMA, fixed=True)
        fixed.put([{"k": k} for k in range(100)])
        for wrong in BAD:
            for call in (stats, presplit):
                with pytest.raises(RequestError):
                    call(db, "t", spark=spark, **wrong)
        for wrong in ({"buckets": 0}, {"recent_seconds": 0}, {"recent_seconds": float("nan")}):
            with pytest.raises(RequestError):
                stats(db, "t", spark=spark, **wrong)
        with pytest.raises(RequestError, match="into how many"):
            presplit(db, "t", spark=spark)
        for call in (stats, presplit):
            with pytest.raises(UnknownTable):
                call(db, "nothing", tablets=2, spark=spark)
        with pytest.raises(CannotSplit):
            presplit(db, "fixed", tablets=2, spark=spark)
        with pytest.raises(StoreLocked):
            presplit(root, "t", tablets=2, spark=spark)
        assert presplit(root, "t", tablets=2, dry_run=True, spark=spark).tablets == 2
        with ebla.open(root, read_only=True) as reader, pytest.raises(ReadOnly):
            presplit(reader, "t", tablets=2, spark=spark)
        assert [len(db.table(name).tablets()) for name in ("t", "fixed")] == [1, 1]
    with pytest.raises(StoreNotFound):
        stats(f"{root}-other", "t", spark=spark)
