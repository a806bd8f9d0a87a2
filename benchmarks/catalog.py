"""The master's catalog at size: starting with a million tablets, finding one, creating and reporting many.

**A million tablets**, in tables of 100,000 (the most that one create makes), each tablet with one fragment reference
and ids as they are in life (UUIDs). Child processes write them as METADATA, with SQLite as the coordination service;
another one, fresh, starts a master from that. *Start* is from asking for the tables to a master that answers; *memory*
is what the resident memory of that process has grown by then, over the number of tablets; *locate* is one call of
`Master.locate` with a random row, the mean of many. Single replicas are what the goal is measured with; three replicas
are shown beside.

**Many at once.** One table of 100,000 tablets is created (METADATA written and synced), its tablets are assigned to ten
servers (another transaction, and the requests that go out), and one server that leads all of another such table reports
them: first all as created, which is one transaction, then all again, which changes nothing.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, check, say, scratch, timed
from benchmarks.report import Comparison, Figure, Report, microseconds, under
from ebla.clock import SystemClock
from ebla.coordination.sqlite import SqliteCoordination
from ebla.master.durable import MetadataDurable
from ebla.master.master import Master
from ebla.master.messages import FullChunk, Heartbeat, Instance, Registration, ReportedTablet, TabletReport
from ebla.master.settings import MasterSettings
from ebla.master.writes import run as drive
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.metadata.server.naming import TableNaming
from ebla.metadata.server.transaction import MetadataServer
from ebla.metadata.values.table_metadata import FragmentRef, GroupState, Replica, TableMetadata, TabletMetadata
from ebla.model.declaration import Group, Schema
from ebla.storage.files.local_files import LocalFiles

CLUSTER = "benchmark"
SCHEMA = Schema(key={"row": "binary"}, groups=[Group("g", columns={"n": "int32"})]).number()
TABLES = 10
LOCATES = 100_000
KIB = 1024


def new_id() -> str:
    return str(uuid.uuid4())


def run(options: Options) -> Report:
    """Measure."""
    tablets = options.rows_or(full=1_000_000, quick=100_000)
    with scratch(options) as root:
        single = _start(root / "single", tablets, 1)
        triple = _start(root / "triple", tablets // 10, 3)
        many = _in_child(partial(_many, root / "many", tablets // 10))
    return Report(
        "catalog",
        f"{tablets:,} tablets in {TABLES} tables; {tablets // 10:,} in one",
        [
            Comparison(
                "start of a master", Figure(single["start"], "s"), goal=under(30, "s"), note="from METADATA and SQLite"
            ),
            Comparison("locate", microseconds(single["locate"], LOCATES), goal=under(10, "us")),
            Comparison("memory of a tablet", Figure(single["memory"] / KIB, "KiB"), goal=under(1.5, "KiB")),
            Comparison(
                "memory of a tablet, 3 replicas",
                Figure(triple["memory"] / KIB, "KiB"),
                note=f"{tablets // 10:,} tablets",
            ),
            Comparison(f"create {tablets // 10:,} tablets", Figure(many["create"], "s"), goal=under(10, "s")),
            Comparison(f"assign {tablets // 10:,} tablets", Figure(many["assign"], "s")),
            Comparison(f"report {tablets // 10:,} created tablets", Figure(many["created"], "s"), goal=under(2, "s")),
            Comparison(f"report {tablets // 10:,} known tablets", Figure(many["known"], "s"), goal=under(2, "s")),
        ],
    )


def _in_child(work: Any) -> Any:
    """Run in a fresh process: memory is measured, and nobody else's garbage should be filled."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(work, sender))
    process.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        found = None
    process.join()
    check(process.exitcode, 0, "exit of the child")
    return found


def _child(work: Any, sender: Any) -> None:
    sender.send(work())
    sender.close()


def _durable(root: Path) -> MetadataDurable:
    root.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    coordination = SqliteCoordination(root / "coordination.sqlite", clock)
    store = MetadataStore(LocalFiles(root))
    server = MetadataServer(coordination, store, clock, server_id="m1", new_id=new_id)
    return MetadataDurable(server, store, TableNaming(coordination, clock), lambda run: 0)


def _master(durable: MetadataDurable) -> Master:
    return Master(
        CLUSTER, 1, durable.load(), SystemClock(), new_id=new_id, random=random.Random(1), settings=MasterSettings()
    )


# --- a million -----------------------------------------------------------------------------------


def _start(root: Path, tablets: int, replicas: int) -> dict[str, float]:
    say(f"catalog: {tablets:,} tablets with {replicas} replicas are written")
    for number in range(TABLES):
        _in_child(partial(_write_table, root, number, tablets // TABLES, replicas))
    say("catalog: a master starts with them")
    found: dict[str, float] = _in_child(partial(_load, root, tablets))
    return found


def _write_table(root: Path, number: int, tablets: int, replicas: int) -> None:
    durable = _durable(root)
    table_id = new_id()
    durable._server.create_table(f"table-{number}", table_id, _table(table_id, number, tablets, replicas))


def _row(number: int) -> bytes:
    return f"user{number * 977:012d}".encode()


def _table(table_id: str, number: int, count: int, replicas: int) -> TableMetadata:
    dice = random.Random(number)
    servers = [str(uuid.UUID(int=server)) for server in range(100)]
    group = SCHEMA.groups[0].id
    tablets = []
    for at in range(count):
        first = b"" if at == 0 else _row(at)
        chosen = dice.sample(servers, replicas)
        fragment = FragmentRef(
            f"fragments/{table_id}/{new_id()}.parquet",
            100_000 + at,
            8_000_000 + at,
            _row(at) + b"a",
            _row(at) + b"z",
            (1_700_000_000_000_000 + at) << 10,
            (1_700_000_000_900_000 + at) << 10,
            1,
            tail_bytes=3_000 + at,
            tail_crc=dice.getrandbits(32),
        )
        tablets.append(
            TabletMetadata(
                new_id(),
                first,
                None if at == count - 1 else _row(at + 1),
                "running",
                2,
                chosen[0],
                tuple(Replica(server, new_id()) for server in chosen),
                chosen[0],
                (GroupState(group, (fragment,), (), 1_000 + at),),
            )
        )
    return TableMetadata(table_id, "new", 0, SCHEMA, tuple(tablets))


def _resident_bytes() -> int:
    fields = Path("/proc/self/status").read_text()
    return int(fields.split("VmRSS:")[1].split()[0]) * KIB


def _load(root: Path, tablets: int) -> dict[str, float]:
    gc.collect()
    before = _resident_bytes()
    begin = time.perf_counter()
    durable = _durable(root)
    master = _master(durable)
    seconds = time.perf_counter() - begin
    gc.collect()
    memory = (_resident_bytes() - before) / tablets
    check(len(master.catalog.tablets), tablets, "tablets of the master that was started")
    dice = random.Random(5)
    rows = [_row(dice.randrange(tablets // TABLES)) + b"m" for _ in range(LOCATES)]
    names = [f"table-{dice.randrange(TABLES)}" for _ in range(LOCATES)]

    def locate() -> None:
        for name, row in zip(names, rows, strict=True):
            master.locate(name, row)

    best = min(timed(locate)[0] for _ in range(3))
    found = master.locate(names[0], rows[0])
    check(found.tablet.range.contains(rows[0]), True, "the row lies in the tablet that was located")
    return {"start": seconds, "memory": memory, "locate": best}


# --- many at once --------------------------------------------------------------------------------


def _many(root: Path, tablets: int) -> dict[str, float]:
    durable = _durable(root)
    master = _master(durable)
    splits = [_row(number) for number in range(1, tablets)]
    seconds = {}
    seconds["create"], _ = timed(lambda: drive(master.create_table("first", SCHEMA, splits), durable))
    for number in range(10):
        _register(master, durable, f"s{number}")
    seconds["assign"], _ = timed(lambda: (drive(master.round(), durable), master.requests()))
    check(len(master.catalog.pending), tablets, "tablets that are being created")

    # Another table, on one server only.
    lonely = _durable(root / "lonely")
    master = _master(lonely)
    drive(master.create_table("second", SCHEMA, splits), lonely)
    _register(master, lonely, "s1")
    drive(master.round(), lonely)
    reported = tuple(
        ReportedTablet(tablet.id, master.catalog.table("second").id, tablet.replicas[0].assignment_id, "running", 1, 2)
        for tablet in master.catalog.table("second").metadata.tablets
    )
    for name, sequence in (("created", 2), ("known", 3)):
        report = TabletReport(sequence, reported, (), FullChunk(sequence, 0, True))
        heartbeat = Heartbeat(CLUSTER, Instance("s1", 1), None, report)
        seconds[name], reply = timed(partial(_beat, master, lonely, heartbeat))
        check(reply.acknowledged, sequence, "the report that was taken")
    check(len(master.catalog.pending), 0, "tablets that do not run")
    return seconds


def _beat(master: Master, durable: MetadataDurable, heartbeat: Heartbeat) -> Any:
    return drive(master.heartbeat(heartbeat), durable)


def _register(master: Master, durable: MetadataDurable, server: str) -> None:
    report = TabletReport(1, (), (), FullChunk(1, 0, True))
    _beat(master, durable, Heartbeat(CLUSTER, Instance(server, 1), Registration(server, f"{server}:7070"), report))
