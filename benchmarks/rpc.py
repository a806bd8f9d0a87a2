"""A client of another process against the store in its own, and against Flight with nothing behind it.

A child process opens a store and serves it; it also answers a bare Flight exchange, which sends back what it got, and a
bare Flight get, which sends a table that lies in its memory. The client in this process is timed on:

**get**: one row by its key, from one thread against the bare exchange of 200 bytes, and from 16 threads on one
connection against 16 threads with an exchange each. **get_many** of 1,000 random keys, **batched put** of 2,000 rows a
call, durable, and **scan** to one Arrow table against the store in this process; the scan also against the bare get of
the same table.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

import ebla
from benchmarks.harness import Options, check, deal, in_threads, interleave, scratch, timed
from benchmarks.report import (
    Comparison,
    Report,
    at_least,
    at_least_ratio,
    microseconds,
    milliseconds,
    rate,
    within_time,
)
from ebla.client.database import service_of
from ebla.rpc.server import RpcServer
from ebla.rpc.serving.service_handlers import ServiceHandlers
from ebla.rpc.wire.messages import SERVICE_METHODS

SCHEMA = ebla.Schema(key={"k": "int64"}, columns={"a": "int64", "b": "float64", "s": "string"})
BATCH_ROWS = 2_000
GETS = 2_000
THREADS = 16
MANY = 1_000
_MESSAGE = pa.py_buffer(b"x" * 200)


class Bare(flight.FlightServerBase):  # type: ignore[misc]
    """Flight, and nothing of Ebla."""

    table: pa.Table | None = None

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        try:
            while True:
                writer.write_metadata(reader.read_chunk().app_metadata)
        except (StopIteration, pa.ArrowException):
            return

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        if self.table is None:
            self.table = _rows(0, int(ticket.ticket))
        return flight.RecordBatchStream(self.table)


def serve(directory: str) -> None:
    """Serve a store in this process until its input ends."""
    db = ebla.open(directory)
    server = RpcServer(SERVICE_METHODS, ServiceHandlers(service_of(db)).by_type())
    bare = Bare("grpc://127.0.0.1:0")
    print(server.address, bare.port, flush=True)
    sys.stdin.read()
    server.close(grace_seconds=0.5)
    db.close()


@contextmanager
def _served(directory: Path) -> Iterator[tuple[str, str]]:
    code = f"from benchmarks.rpc import serve; serve({str(directory)!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address, port = process.stdout.readline().split()
        yield address, f"grpc://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _rows(first: int, count: int) -> pa.Table:
    keys = np.arange(first, first + count)
    texts = np.char.add("value ", keys.astype(str))
    return pa.table({"k": keys, "a": keys * 3, "b": keys * 0.5, "s": pa.array(texts)})


def run(options: Options) -> Report:
    """Measure."""
    count = options.rows_or(full=400_000, quick=100_000)
    repeats = options.repeats()
    rows = _rows(0, count)
    with (
        scratch(options) as root,
        _served(root / "served") as (address, bare_address),
        ebla.open(root / "own") as own,
        ebla.connect(address) as db,
    ):
        bare = flight.connect(bare_address)
        puts = _puts(own, db, rows, repeats)
        gets = interleave(repeats, {"ebla": lambda: _gets(db.table("t0")), "bare": lambda: _exchanges(bare)})
        together = interleave(
            repeats, {"ebla": lambda: _gets_together(db.table("t0")), "bare": lambda: _together(bare_address)}
        )
        keys = np.random.default_rng(1).permutation(count)[:MANY].tolist()
        many = interleave(
            repeats,
            {name: lambda on=on: timed(lambda: on.table("t0").get_many(keys))[0] for name, on in _both(own, db)},  # type: ignore[misc]
        )
        scans = interleave(
            repeats,
            {
                **{name: lambda on=on: _scan(on, count) for name, on in _both(own, db)},  # type: ignore[misc]
                "bare": lambda: timed(lambda: bare.do_get(flight.Ticket(str(count).encode())).read_all())[0],
            },
        )
        bare.close()
    return Report(
        "rpc",
        f"{count:,} rows; a client and a server process on one host",
        [
            Comparison(
                "get",
                microseconds(gets["ebla"], GETS),
                "bare exchange",
                microseconds(gets["bare"], GETS),
                within_time(2),
            ),
            Comparison(
                f"get, {THREADS} threads",
                rate(GETS, together["ebla"], "gets/s"),
                "bare exchanges",
                rate(GETS, together["bare"], "gets/s"),
                at_least_ratio(0.5),
            ),
            Comparison(
                f"get, {THREADS} threads, at all",
                rate(GETS, together["ebla"], "gets/s"),
                goal=at_least(5_000, "gets/s"),
            ),
            Comparison(
                f"get_many of {MANY:,}",
                milliseconds(many["ebla"]),
                "in the process",
                milliseconds(many["own"]),
                at_least_ratio(0.5),
            ),
            Comparison(
                "batched put, durable",
                rate(count, puts["ebla"]),
                "in the process",
                rate(count, puts["own"]),
                at_least_ratio(0.5),
            ),
            Comparison(
                "scan to Arrow", rate(count, scans["ebla"]), "bare get", rate(count, scans["bare"]), at_least_ratio(0.7)
            ),
            Comparison(
                "scan to Arrow",
                rate(count, scans["ebla"]),
                "in the process",
                rate(count, scans["own"]),
                at_least_ratio(0.25),
            ),
        ],
    )


def _both(own: ebla.Database, db: ebla.Database) -> tuple[tuple[str, ebla.Database], ...]:
    return (("ebla", db), ("own", own))


def _puts(own: ebla.Database, db: ebla.Database, rows: pa.Table, repeats: int) -> dict[str, float]:
    batches = rows.to_batches(max_chunksize=BATCH_ROWS)
    turns = {"ebla": 0, "own": 0}

    def put(name: str, on: ebla.Database) -> float:
        table = on.create_table(f"t{turns[name]}", SCHEMA)
        turns[name] += 1

        def work() -> None:
            for batch in batches:
                table.put(batch)

        return timed(work)[0]

    return interleave(repeats, {name: lambda name=name, on=on: put(name, on) for name, on in _both(own, db)})  # type: ignore[misc]


def _gets(table: ebla.Table) -> float:
    def work() -> None:
        for key in range(GETS):
            table.get(key)

    check(table.get(7)["a"], 21, "a row over the wire")
    return timed(work)[0]


def _gets_together(table: ebla.Table) -> float:
    return in_threads(lambda keys: [table.get(key) for key in keys], deal(range(GETS), THREADS))


def _exchanges(client: flight.FlightClient) -> float:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"bare"))

    def work() -> None:
        for _ in range(GETS):
            writer.write_metadata(_MESSAGE)
            reader.read_chunk()

    seconds = timed(work)[0]
    writer.done_writing()
    return seconds


def _together(address: str) -> float:
    clients = [flight.connect(address) for _ in range(THREADS)]
    streams = [client.do_exchange(flight.FlightDescriptor.for_command(b"bare")) for client in clients]
    free = list(streams)

    def work(share: Any) -> None:
        writer, reader = free.pop()
        for _ in share:
            writer.write_metadata(_MESSAGE)
            reader.read_chunk()

    seconds = in_threads(work, deal(range(GETS), THREADS))
    for writer, _ in streams:
        writer.done_writing()
    for client in clients:
        client.close()
    return seconds


def _scan(on: ebla.Database, count: int) -> float:
    seconds, found = timed(lambda: on.table("t0").scan().to_arrow())
    check(found.num_rows, count, "rows of a scan")
    return seconds
