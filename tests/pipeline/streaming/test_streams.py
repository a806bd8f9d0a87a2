"""Streams on Spark: table to table through stops, repeated batches and changes of both sides, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ebla
from ebla.errors import EblaError, RequestError, SchemaChanged
from ebla.pipeline import stream_into
from ebla.pipeline.spark.failures import unwrapped
from ebla.settings import Settings
from tests.pipeline.streaming.stream_world import Copy, same
from tests.support.inside import state_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SHORT = Settings(history_seconds=0, background_compaction=False)
SCHEMA = ebla.Schema(
    key={"k": "string"},
    groups=[ebla.Group("a", columns={"n": "int64", "s": "string"}), ebla.Group("c", families=["click"])],
)


class Sides:
    """Two stores, both open in this process, with a table each."""

    def __init__(self, root: Path) -> None:
        self.paths = (str(root / "from"), str(root / "to"))
        self.open()
        for db in self.stores:
            db.create_table("t", SCHEMA)

    def open(self) -> None:
        self.stores = [ebla.open(path, settings=SHORT) for path in self.paths]

    def close(self) -> None:
        for db in self.stores:
            db.close()

    @property
    def source(self) -> ebla.Table:
        return self.stores[0].table("t")

    @property
    def target(self) -> ebla.Table:
        return self.stores[1].table("t")


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    made = Sides(tmp_path)
    yield made
    made.close()


def rows(numbers: Iterator[int] | range, **values: Any) -> list[dict[str, Any]]:
    return [{"k": f"{n:03}", "n": n, "s": str(n), "click:x": b"1", **values} for n in numbers]


def test_a_table_streams_into_another_once_and_whole(sides: Sides, tmp_path: Path, spark: SparkSession) -> None:
    copy = Copy(spark, *sides.paths, tmp_path / "checkpoint")
    sides.source.put(rows(range(100)))
    assert copy.run() == 3  # of 40, 40 and 20 rows
    assert same(sides.source, sides.target)

    # Everything moves on both sides, and the store of the target is owned by nobody for a while.
    sides.source.put(rows(range(50, 120), s="new"))
    sides.source.erase("007")
    sides.source.erase_range("010", "015")
    sides.source.put({"k": "001", "click:y": b"2"})
    sides.source.split("060")
    sides.source.compact()
    sides.target.compact()
    sides.close()
    copy.run()
    sides.open()
    assert same(sides.source, sides.target)

    # The driver dies when a batch is written, and before it is written down: it comes once more, and changes nothing.
    (app,) = (known.app for known in state_of(sides.target).view.metadata.streams)
    batch = copy.forget()
    before = sides.target.scan().txn
    sides.target.put({"k": "mine", "n": 1})
    sides.source.join("", "060")
    copy.run()
    record = state_of(sides.target).view.metadata.stream_batch(app)
    assert (record.batch, record.txn) == (batch, before)
    assert sides.target.get("mine") is not None
    sides.target.erase("mine")
    assert same(sides.source, sides.target)

    assert len(sides.stores[0].snapshots()) == 1


@pytest.mark.soak
def test_a_function_for_each_batch_does_the_same(sides: Sides, tmp_path: Path, spark: SparkSession) -> None:
    copy = Copy(spark, *sides.paths, tmp_path / "checkpoint", max_rows="1000")
    sides.source.put(rows(range(50)))
    assert copy.run(by_function=True) == 1
    sides.source.erase("004")
    copy.run(by_function=True)
    assert same(sides.source, sides.target)
    before = state_of(sides.target).view.metadata.streams
    assert copy.forget() == 1
    copy.run(by_function=True)
    assert state_of(sides.target).view.metadata.streams == before
    with pytest.raises(RequestError, match="no batch of a stream"):
        stream_into(sides.paths[1], "t")(spark.range(1).selectExpr("'x' as k"), 0)
    # Numbered by its user.
    put = stream_into(sides.stores[1], "t", app="mine", operation="put")
    for batch, n in ((0, 5), (0, 6), (1, 7)):
        put(spark.createDataFrame([("000", n)], "k string, n long"), batch)
        assert sides.target.get("000")["n"] == (5 if batch == 0 else 7)
    assert sides.target.get("000")["s"] == "0"


def failure_of(query: StreamingQuery) -> EblaError:
    """The Ebla error with which a query ends."""
    with pytest.raises(Exception, match="ebla") as raised:
        query.awaitTermination()
    found = unwrapped(raised.value)
    assert found is not None
    return found


def test_a_table_that_is_altered_under_its_stream_is_told(sides: Sides, tmp_path: Path, spark: SparkSession) -> None:
    copy = Copy(spark, *sides.paths, tmp_path / "checkpoint")
    sides.source.put(rows(range(3)))
    query = copy.start(processingTime="0 seconds")
    query.processAllAvailable()
    assert same(sides.source, sides.target)
    for db in sides.stores:
        db.alter_table("t", add_columns={"a": {"more": "int32"}})
    sides.source.put(rows(range(3), more=5))
    error = failure_of(query)
    assert isinstance(error, SchemaChanged)
    assert "goes on where it was" in str(error)
    copy.run()
    assert same(sides.source, sides.target)
    assert sides.target.get("002")["more"] == 5


def test_streams_that_cannot_be_are_refused(sides: Sides, tmp_path: Path, spark: SparkSession) -> None:
    source, target = sides.paths

    def load() -> Any:
        return spark.readStream.format("ebla").option("root", source)

    with pytest.raises(Exception, match="no option 'sinse'"):
        load().option("since", "now").option("sinse", "now").load("t")
    with pytest.raises(Exception, match="since is for streams"):
        spark.read.format("ebla").option("root", source).option("since", "now").load("t").count()
    writer = load().load("t").writeStream.format("ebla").option("checkpointLocation", str(tmp_path / "checkpoint"))
    error = failure_of(writer.option("root", target).trigger(availableNow=True).start("t"))
    assert isinstance(error, RequestError)
    assert "where does the stream begin" in str(error)


def test_change_rows_are_applied_in_batch_as_well(sides: Sides, spark: SparkSession) -> None:
    target = sides.target
    target.put(rows(range(3)))
    frame = spark.createDataFrame(
        [("000", 1, "insert"), ("001", 5, "erase"), ("000", None, "erase"), ("000", 7, "update"), ("9", 9, "insert")],
        "k string, n long, _change string",
    ).coalesce(1)
    save = frame.write.format("ebla").option("root", sides.paths[1]).mode("append")
    save.save("t")
    assert {row["k"]: (row["n"], row["s"]) for row in target.scan()} == {
        "000": (7, None),
        "002": (2, "2"),
        "9": (9, None),
    }
