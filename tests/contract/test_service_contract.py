"""What every service keeps, whoever serves: the store in this process, or others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ebla
from ebla.metadata.values.restoring import unpack_metadata
from ebla.model.ranges import KeyRange
from ebla.model.schema_change import Alteration
from ebla.service.job_orders import BulkCommit, BulkResult, PrepareCompaction, PrepareSweep
from ebla.service.job_reads import CaptureTablets, HoldForJob
from ebla.service.listener import FragmentsChanged, TabletListener
from ebla.service.requests import (
    NEWEST,
    THIS_VERY_MOMENT,
    AlterTable,
    BeginJob,
    CloneTable,
    CollectGarbage,
    Compact,
    CreateTable,
    DescribeStore,
    DescribeTable,
    DescribeTablets,
    DropTable,
    EndJob,
    Erase,
    EraseRange,
    Flush,
    HoldByName,
    HoldNewest,
    Join,
    LetGo,
    ListFiles,
    ListHeld,
    LoadTable,
    Modify,
    Moment,
    Put,
    PutCells,
    ReadRow,
    ReadRows,
    ReleaseName,
    RenameTable,
    Repair,
    ScanRows,
    Split,
    StoreRequest,
    Sync,
    TableRequest,
    UnloadTable,
    Verify,
)
from ebla.service.service import SYSTEM_TABLES, Service, TableService
from tests.contract.service_worlds import WORLDS, World, make_world

SCHEMA = ebla.Schema(
    key={"k": "int64"},
    groups=[
        ebla.Group("typed", columns={"n": "int64", "s": "string"}),
        ebla.Group("free", families=["f"], max_versions=3),
    ],
)


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = make_world(request.param, request)
    yield world
    world.close()


@pytest.fixture
def service(world: World) -> Service:
    return world.service()


@pytest.fixture
def table(service: Service) -> TableService:
    service.carry_out(CreateTable("t", SCHEMA.number()))
    return service.table("t")


def row(table: TableService, key: int) -> bytes:
    return table.codec.encode(key)


def rows(table: TableService, keys: list[int]) -> pa.Array:
    return table.codec.encode_many(keys)


def put(table: TableService, *keys: int, **values: Any) -> int:
    return table.write(Put([{"k": key, **(values or {"n": key})} for key in keys]))


def scanned(table: TableService, request: ScanRows = ScanRows(), column: str = "k") -> list[Any]:  # noqa: B008 - frozen
    stream = table.scan(request)
    return [value for part in stream.tables(whole=True) for value in part.column(column).to_pylist()]


# --- writing -------------------------------------------------------------------------------------


def test_what_was_put_is_there_and_txns_grow(table: TableService) -> None:
    first = put(table, 1, n=10)
    second = put(table, 1, s="x")
    assert first < second
    found = table.get(1)
    assert found is not None
    assert (found["n"], found["s"]) == (10, "x"), "a column that is not named stays"
    assert found.txn >= second
    assert table.get(2) is None


@pytest.mark.parametrize("wait", ["durable", "logged", "none"])
def test_a_put_is_seen_by_whoever_waited_for_it(service: Service, table: TableService, wait: Any) -> None:
    txn = table.write(Put({"k": 1, "n": 1}, wait=wait))
    service.carry_out(Sync(txn))
    assert table.get(1) is not None


@pytest.mark.parametrize(
    "given",
    [
        {"k": 1, "n": 2, "f:a": b"x"},
        [{"k": 1, "n": 2, "f:a": b"x"}],
        pa.table({"k": pa.array([1]), "n": pa.array([2]), "f:a": pa.array([b"x"])}),
        pa.record_batch({"k": pa.array([1]), "n": pa.array([2]), "f:a": pa.array([b"x"])}),
    ],
    ids=["dict", "dicts", "table", "batch"],
)
def test_rows_come_in_many_forms(table: TableService, given: object) -> None:
    table.write(Put(given))
    found = table.get(1)
    assert found is not None
    assert (found["n"], found["f:a"]) == (2, b"x")


def test_untrusted_bytes_are_rows_or_refused(table: TableService) -> None:
    batch = pa.record_batch({"k": pa.array([1]), "n": pa.array([2])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    whole = sink.getvalue().to_pybytes()
    table.write(Put(whole))
    for wrong in (b"", b"nonsense", whole[: len(whole) // 2], whole[:40] + bytes(40) + whole[80:]):
        with pytest.raises(ebla.RequestError):
            table.write(Put(wrong))
    assert scanned(table) == [1]


def test_a_put_that_is_wrong_in_one_row_writes_none(table: TableService) -> None:
    with pytest.raises(ebla.RequestError):
        table.write(Put([{"k": 1, "n": 1}, {"k": 2, "n": "not a number"}]))
    with pytest.raises(ebla.UnknownColumn):
        table.write(Put({"k": 1, "unknown": 1}))
    assert scanned(table) == []


def test_a_replaced_row_has_nothing_else(table: TableService) -> None:
    put(table, 1, n=1, s="x")
    table.write(Put({"k": 1, "n": 2}, replace=True))
    found = table.get(1)
    assert found is not None
    assert (found["n"], found["s"]) == (2, None)


def test_rows_that_are_there_are_not_put_if_absent(table: TableService) -> None:
    table.write(Put([{"k": 1, "n": 1}], if_absent=True))
    with pytest.raises(ebla.Conflict):
        table.write(Put([{"k": 2, "n": 2}, {"k": 1, "n": 2}], if_absent=True))
    assert scanned(table, column="n") == [1]


def test_of_many_who_put_if_absent_one_does(table: TableService) -> None:
    outcomes: list[bool] = []

    def attempt(number: int) -> None:
        try:
            table.write(Put({"k": 7, "n": number}, if_absent=True))
            outcomes.append(True)
        except ebla.Conflict:
            outcomes.append(False)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 7 + [True]


def test_a_row_that_changed_since_is_not_put(table: TableService) -> None:
    before = put(table, 1)
    table.write(Put({"k": 1, "n": 2}, unchanged_since=before))
    with pytest.raises(ebla.Conflict):
        table.write(Put({"k": 1, "n": 3}, unchanged_since=before))
    assert scanned(table, column="n") == [2]


def test_rows_thought_up_under_another_schema_are_refused(service: Service, table: TableService) -> None:
    read = table.read_row(ReadRow(row(table, 1)))
    service.carry_out(AlterTable("t", Alteration(add_columns={"typed": {"more": "int64"}})))
    with pytest.raises(ebla.SchemaChanged):
        table.write(Put({"k": 1, "n": 1}, schema_version=read.schema_version))
    table.write(Put({"k": 1, "n": 1}, schema_version=table.schema.version))
    assert scanned(table, column="more") == [None]


def test_cells_have_versions(table: TableService) -> None:
    for number in range(4):
        table.write(PutCells([{"k": 1, "family": "f", "qualifier": "q", "value": b"%d" % number}]))
    (cells,) = scanned(table, ScanRows(columns=["f:q"], versions=2), "f:q")
    assert [version["value"] for version in cells] == [b"3", b"2"]


def test_rows_columns_and_ranges_are_erased(table: TableService) -> None:
    for key in range(6):
        table.write(Put({"k": key, "n": key, "s": "x", "f:a": b"1"}))
    table.write(Erase(rows(table, [0])))
    table.write(Erase(rows(table, [1]), ("s", "f:a")))
    table.write(EraseRange(KeyRange(row(table, 4), row(table, 6))))
    assert scanned(table) == [1, 2, 3]
    found = table.get(1)
    assert found is not None
    assert (found["n"], found["s"], found.get("f:a")) == (1, None, None)
    with pytest.raises(ebla.UnknownColumn):
        table.write(Erase(rows(table, [1]), ("unknown",)))
    assert table.write(Erase(rows(table, []))) >= 0, "nothing to erase is no error"


def test_increments_of_many_are_all_counted(table: TableService) -> None:
    def add() -> None:
        for _ in range(20):
            table.modify(Modify(row(table, 1), "n", "increment", 1))
            table.modify(Modify(row(table, 1), "f:count", "increment", 2))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.modify(Modify(row(table, 1), "n", "increment", 0)) == 80
    assert table.modify(Modify(row(table, 1), "f:count", "increment", 0)) == 160
    assert table.modify(Modify(row(table, 1), "s", "append", "ab")) == "ab"
    assert table.modify(Modify(row(table, 1), "s", "append", "c")) == "abc"
    with pytest.raises(ebla.RequestError):
        table.modify(Modify(row(table, 1), "s", "increment", 1))


# --- reading -------------------------------------------------------------------------------------


def test_a_row_is_read_at_a_txn_and_at_a_snapshot(service: Service, table: TableService) -> None:
    first = put(table, 1, n=1)
    held = service.carry_out(HoldByName("monday"))
    put(table, 1, n=2)
    for at, expected in ((NEWEST, 2), (Moment(first), 1), (Moment(held), 1), (Moment(snapshot="monday"), 1)):
        read = table.read_row(ReadRow(row(table, 1), ["n"], at))
        assert read.row is not None
        assert read.row["n"] == expected
    assert table.read_row(ReadRow(row(table, 1), None, THIS_VERY_MOMENT)).txn >= held
    assert table.read_row(ReadRow(row(table, 9))).row is None
    with pytest.raises(ebla.EblaError, match="tuesday"):
        table.read_row(ReadRow(row(table, 1), None, Moment(snapshot="tuesday")))


def test_a_table_is_unknown_at_txns_before_it_was_made(table: TableService) -> None:
    put(table, 1, n=1)
    before = Moment(5)
    with pytest.raises(ebla.UnknownTable, match="there was no table"):
        table.read_row(ReadRow(row(table, 1), None, before))
    with pytest.raises(ebla.UnknownTable, match="there was no table"):
        table.read_rows(ReadRows(rows(table, [1]), None, before))
    with pytest.raises(ebla.UnknownTable, match="there was no table"):
        table.scan(ScanRows(at=before)).count()


def test_many_rows_come_in_the_order_asked(table: TableService) -> None:
    put(table, 1, 2, 3)
    found = table.read_rows(ReadRows(rows(table, [3, 9, 1, 3]), ["n"]))
    assert found.column("n").to_pylist() == [3, None, 1, 3]
    assert found.column("_found").to_pylist() == [True, False, True, True]
    assert table.read_rows(ReadRows(rows(table, []))).num_rows == 0


def test_a_scan_reads_a_range_in_order(table: TableService) -> None:
    put(table, *range(10))
    part = KeyRange(row(table, 2), row(table, 7))
    assert scanned(table, ScanRows(part)) == [2, 3, 4, 5, 6]
    assert scanned(table, ScanRows(part, limit=2)) == [2, 3]
    assert scanned(table, ScanRows(part, reverse=True, limit=2)) == [6, 5]
    assert scanned(table, ScanRows(part, where=pc.field("n") > 4)) == [5, 6]
    assert scanned(table, ScanRows(part, after=row(table, 4))) == [5, 6]
    assert scanned(table, ScanRows(part, after=row(table, 4), reverse=True)) == [3, 2]


def test_a_scan_sees_one_moment_however_often_it_is_used(table: TableService) -> None:
    put(table, 1, 2)
    stream = table.scan(ScanRows())
    put(table, 3)
    table.write(Erase(rows(table, [1])))
    for _ in range(2):
        assert [value for part in stream.tables(whole=False) for value in part.column("k").to_pylist()] == [1, 2]
    assert scanned(table) == [2, 3]


def test_a_scan_says_how_its_answer_looks_before_it_reads(table: TableService) -> None:
    stream = table.scan(ScanRows(columns=["s", "n"]))
    assert stream.projection.arrow_schema.names == ["k", "s", "n"]
    with pytest.raises(ebla.UnknownColumn):
        table.scan(ScanRows(columns=["unknown"]))


# --- tables --------------------------------------------------------------------------------------


def test_tables_are_made_named_and_dropped(service: Service, table: TableService) -> None:
    put(table, 1)
    with pytest.raises(ebla.TableExists):
        service.carry_out(CreateTable("t", SCHEMA.number()))
    service.carry_out(RenameTable("t", "u"))
    assert (list(service.tables()), table.name) == (["u"], "u")
    service.carry_out(CloneTable("u", "t"))
    put(service.table("t"), 2)
    assert (scanned(service.table("u")), scanned(service.table("t"))) == ([1], [1, 2])
    service.carry_out(DropTable("u"))
    assert list(service.tables()) == ["t"]
    with pytest.raises(ebla.UnknownTable):
        service.table("u")
    with pytest.raises(ebla.UnknownTable):
        service.carry_out(DropTable("u"))


def test_a_table_is_altered_while_somebody_has_it(service: Service, table: TableService) -> None:
    put(table, 1)
    service.carry_out(AlterTable("t", Alteration(rename={"n": "number"}, drop_columns=["s"])))
    assert scanned(table, column="number") == [1]
    with pytest.raises(ebla.SchemaError):
        service.carry_out(AlterTable("t", Alteration(drop_columns=["k"])))


def test_tablets_are_split_joined_and_described(table: TableService) -> None:
    put(table, *range(10))
    left, right = table.carry_out(Split(row(table, 5)))
    described = table.carry_out(DescribeTablets())
    assert [tablet["id"] for tablet in described] == [left, right]
    assert scanned(table) == list(range(10))
    with pytest.raises(ebla.CannotJoin):
        table.carry_out(Join((right, left)))
    joined = table.carry_out(Join(None, row(table, 1), row(table, 9)))
    assert [tablet["id"] for tablet in table.carry_out(DescribeTablets())] == [joined]
    assert table.carry_out(DescribeTable())["tablets"] == 1


def test_a_table_is_cut_where_it_is_made(service: Service, table: TableService) -> None:
    service.carry_out(CreateTable("cut", SCHEMA.number(), (row(table, 10), row(table, 20)), is_fixed=True))
    cut = service.table("cut")
    put(cut, 5, 15, 25)
    assert scanned(cut) == [5, 15, 25]
    assert len(cut.carry_out(DescribeTablets())) == 3


def test_what_is_flushed_and_compacted_reads_as_before(table: TableService) -> None:
    for key in range(3):
        put(table, key)
        table.carry_out(Flush())
    assert len(table.carry_out(ListFiles())) == 3
    told: list[tuple[int, int]] = []
    table.carry_out(Compact(), lambda done, total: told.append((done, total)))
    assert len(table.carry_out(ListFiles())) == 1
    assert told[-1] == (1, 1)
    assert scanned(table) == [0, 1, 2]


def test_a_table_is_taken_offline_and_back(service: Service, table: TableService) -> None:
    put(table, 1)
    service.carry_out(UnloadTable("t"))
    with pytest.raises(ebla.TableUnloaded):
        table.get(1)
    with pytest.raises(ebla.TableUnloaded):
        put(table, 2)
    service.carry_out(LoadTable("t"))
    assert scanned(table) == [1]


def test_system_tables_are_read_and_not_written(service: Service, table: TableService) -> None:
    for name in SYSTEM_TABLES:
        system = service.table(name)
        assert any(part.num_rows for part in system.scan(ScanRows()).tables(whole=True))
        with pytest.raises(ebla.ReadOnly):
            system.write(Put({"name": "x"}))
        with pytest.raises(ebla.ReadOnly):
            system.carry_out(Flush())
        assert system.carry_out(DescribeTable())["table"] == name


# --- the store -----------------------------------------------------------------------------------


def test_snapshots_are_held_by_name_until_they_are_released(
    world: World, service: Service, table: TableService
) -> None:
    put(table, 1)
    txn = service.carry_out(HoldByName("kept"))
    put(table, 2)
    assert service.carry_out(HoldByName("kept")) == txn, "a name means one moment"
    assert service.carry_out(ListHeld()) == {"kept": txn}
    assert scanned(table, ScanRows(at=Moment(snapshot="kept"))) == [1]
    service.carry_out(ReleaseName("kept"))
    assert service.carry_out(ListHeld()) == {}


def test_what_a_job_reads_is_held_until_it_lets_go_of_it(service: Service, table: TableService) -> None:
    txn = table.write(Put({"k": 1, "n": 1}))
    held = service.carry_out(HoldForJob("begin", "job-1", txn, 60.0, "a job", ("fragments/a.parquet",)))
    assert held.until_microseconds > 0
    assert service.carry_out(HoldForJob("begin", "job-1", txn, 60.0)) == held, "its answer may have been lost"
    assert service.carry_out(HoldForJob("extend", "job-1", seconds=600.0)).until_microseconds > held.until_microseconds
    assert service.carry_out(HoldForJob("renew", "loads-1", txn, 60.0)).horizon_txn <= txn
    assert service.carry_out(ListHeld()) == {"job-1": txn, "loads-1": txn}
    service.carry_out(HoldForJob("release", "job-1"))
    assert service.carry_out(ListHeld()) == {"loads-1": txn}
    assert service.carry_out(HoldForJob("extend", "job-1", seconds=600.0)).until_microseconds == 0


def test_a_captured_tablet_is_its_files_and_what_is_in_memory_up_to_the_txn(table: TableService) -> None:
    table.write(Put({"k": 1, "n": 1}))
    table.carry_out(Flush())
    txn = table.write(Put({"k": 2, "n": 2}))
    table.write(Put({"k": 3, "n": 3}))
    captured = table.carry_out(CaptureTablets(txn))
    assert (captured.txn, len(captured.tablets), captured.left) == (txn, 1, ())
    (memory,) = captured.memory
    assert memory.data is not None
    records = pa.ipc.open_stream(memory.data).read_all()
    assert records.column("_row").to_pylist() == [row(table, 2)]
    assert list(unpack_metadata(captured.metadata, "").files()) == table.carry_out(ListFiles())
    assert table.carry_out(CaptureTablets(txn, with_memory=False)).memory == ()
    assert table.carry_out(CaptureTablets(txn, ("nowhere",))).tablets == ()


def test_the_newest_commit_is_held_until_it_is_let_go(service: Service, table: TableService) -> None:
    put(table, 1)
    txn = service.carry_out(HoldNewest())
    put(table, 1, n=5)
    assert scanned(table, ScanRows(at=Moment(txn)), "n") == [1]
    service.carry_out(LetGo(txn))


def test_a_listener_hears_of_one_tablet_or_of_all(service: Service, table: TableService) -> None:
    heard: list[FragmentsChanged] = []

    class Listener(TabletListener):
        def on_fragments_changed(self, event: FragmentsChanged) -> None:
            heard.append(event)

    listener = Listener()
    service.add_listener(listener, None)
    put(table, 1)
    table.carry_out(Flush())
    assert [len(event.added) for event in heard] == [1]
    service.remove_listener(listener, None)
    put(table, 2)
    table.carry_out(Flush())
    assert len(heard) == 1
    with pytest.raises(ebla.RequestError):
        service.remove_listener(listener, None)


def test_a_store_is_described_verified_and_swept(service: Service, table: TableService) -> None:
    put(table, 1)
    assert set(service.carry_out(DescribeStore())["tables"]) == {"t"}
    assert service.carry_out(Verify()).is_clean
    assert not service.carry_out(Repair()).repaired
    assert service.carry_out(CollectGarbage()).removed == ()


def test_orders_of_jobs_are_requests_like_others(world: World, service: Service, table: TableService) -> None:
    put(table, 1)
    table_id = service.carry_out(BeginJob("j", "t", 60.0))
    terms = service.carry_out(PrepareCompaction("j", table_id))
    assert [group.group for group in terms.groups] == [group.id for group in table.schema.groups]
    done = service.carry_out(BulkCommit("j", table_id, table.schema.version, (), overwrite=True))
    assert scanned(table) == []
    assert service.carry_out(BulkCommit("j", table_id, table.schema.version, ())) == BulkResult(done.txn, repeated=True)
    assert service.carry_out(EndJob("j")) == []
    for order in (PrepareSweep("j"), BulkCommit("k", table_id, table.schema.version, ())):
        with pytest.raises(ebla.ReadOnly):
            world.reader().carry_out(order)


def test_whoever_only_reads_changes_nothing(world: World, service: Service, table: TableService) -> None:
    txn = put(table, 1)
    service.carry_out(Sync(txn))
    reader = world.reader()
    assert not reader.is_writable
    beside = reader.table("t")
    assert scanned(beside) == [1]
    with pytest.raises(ebla.ReadOnly):
        put(beside, 2)
    with pytest.raises(ebla.ReadOnly):
        beside.modify(Modify(row(beside, 1), "n", "increment", 1))
    for request in (DropTable("t"), CreateTable("u", SCHEMA.number()), HoldByName("x"), CollectGarbage(), Repair()):
        with pytest.raises(ebla.ReadOnly):
            reader.carry_out(request)


def test_an_unknown_request_is_refused_by_name(service: Service, table: TableService) -> None:
    class Dance(TableRequest[None]):
        pass

    class Sing(StoreRequest[None]):
        pass

    with pytest.raises(ebla.RequestError, match="Dance"):
        table.carry_out(Dance())
    with pytest.raises(ebla.RequestError, match="Sing"):
        service.carry_out(Sing())


def test_what_was_acknowledged_is_there_after_whoever_served_was_killed(world: World, service: Service) -> None:
    service.carry_out(CreateTable("t", SCHEMA.number()))
    table = service.table("t")
    put(table, 1)
    table.carry_out(Flush())
    put(table, 2)
    world.restart()
    assert scanned(world.service().table("t")) == [1, 2]


def test_a_closed_service_says_so(service: Service, table: TableService) -> None:
    put(table, 1)
    service.close()
    service.close()
    with pytest.raises(ebla.Closed):
        service.check_open()
    with pytest.raises(ebla.Closed):
        table.get(1)
    with pytest.raises(ebla.Closed):
        put(table, 2)
    with pytest.raises(ebla.Closed):
        service.tables()
