"""``make demo``: a short story about a store that is killed, comes back, and has lost nothing.

    child   put batch 1 .. put batch k | kill -9
                  \\ack 1        \\ack k     (over a pipe, after each put returned)
    parent  reopen; every row of batches 1..k must be there, bit for bit; batch k+1 in full or not at all
            put the rest; flush; read the Parquet files without Ebla; correct rows; read; read as of before
            load a second table with Spark; join the two in SQL; correct it; the same query now, and as of before

A row is a function of its number, and its key (the number times an odd constant, as hexadecimal text) can be turned
back into the number. So what a scan returns is checked row by row against what must have been written, without keeping
a copy of the data. A check that fails ends the demo with an error: nothing here is printed without having been found.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

import ebla

ROWS_DEFAULT = 3_000_000
BATCH_ROWS_MAX = 10_000
GETS = 3_000
DEVICES = 50_000
TABLE = "events"
SCHEMA_COLUMNS = {"device": "int32", "amount": "int64", "city": "string", "note": "string"}
CITIES = pa.array(["Ebla", "Mari", "Ugarit", "Aleppo", "Hama", "Emar", "Qatna", "Tuttul", "Nagar", "Urshu"])

_ODD = 0x9E37_79B9_7F4A_7C15  # odd, so multiplying by it permutes the 64-bit numbers: shuffled, unique keys
_NOTE_BYTES = 72
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
_TEXT = np.random.default_rng(2400).choice(np.frombuffer(b"abcdefghij lmnop rstuv ", np.uint8), 1 << 16)
_WINDOWS = np.lib.stride_tricks.sliding_window_view(_TEXT, _NOTE_BYTES)


class DemoFailed(Exception):
    """Something that must be true was not."""


# --- rows ----------------------------------------------------------------------------------------


def keys_of(numbers: np.ndarray[Any, Any]) -> pa.Array:
    """Return the keys, 16 hexadecimal digits each, of the rows with these numbers."""
    shuffled = numbers.astype(np.uint64) * np.uint64(_ODD)
    digits = _HEX[shuffled.astype(">u8").view(np.uint8)].view(np.uint8)
    return _fixed_width_texts(digits, 16)


def numbers_of(keys: pa.Array) -> np.ndarray[Any, Any]:
    """Return the numbers of the rows with these keys."""
    shuffled = pc.binary_join_element_wise("0x", keys, "").cast(pa.uint64()).to_numpy(zero_copy_only=False)
    return np.asarray(shuffled * np.uint64(pow(_ODD, -1, 1 << 64)))


def amounts_of(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the `amount` of the rows with these numbers."""
    return (_mix(numbers) >> np.uint64(24)).astype(np.int64) % 1_000_000


def rows_of(numbers: np.ndarray[Any, Any]) -> pa.Table:
    """Return the rows with these numbers: a 16-byte key and about 100 bytes of values in 4 columns."""
    mixed = _mix(numbers)
    notes = _WINDOWS[(mixed % np.uint64(len(_WINDOWS))).astype(np.int64)]
    return pa.table(
        {
            "event": keys_of(numbers),
            "device": (mixed % np.uint64(DEVICES)).astype(np.int32),
            "amount": amounts_of(numbers),
            "city": CITIES.take(pa.array((mixed >> np.uint64(8)) % np.uint64(len(CITIES)))),
            "note": _fixed_width_texts(np.ascontiguousarray(notes).reshape(-1), _NOTE_BYTES),
        }
    )


def _mix(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    mixed = numbers.astype(np.uint64) * np.uint64(0xBF58_476D_1CE4_E5B9)
    return mixed ^ (mixed >> np.uint64(29))


def _fixed_width_texts(flat: np.ndarray[Any, Any], width: int) -> pa.Array:
    ends = np.arange(0, len(flat) + 1, width, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(flat))


def put_rows(table: ebla.Table, first: int, last: int, batch_rows: int) -> Iterator[tuple[int, float]]:
    """Put the rows with numbers [first, last) in batches; yield (rows, seconds in `put`) once each is durable."""
    for begin in range(first, last, batch_rows):
        rows = rows_of(np.arange(begin, min(begin + batch_rows, last), dtype=np.uint64))
        started = time.perf_counter()
        table.put(rows)
        yield rows.num_rows, time.perf_counter() - started


def ingest_until_killed(directory: str, rows: int, batch_rows: int, acknowledged: Connection) -> None:
    """Put rows and tell of every batch that `put` has acknowledged. Runs in a process of its own."""
    with ebla.open(directory) as db:
        for batch in put_rows(db.table(TABLE), 0, rows, batch_rows):
            acknowledged.send(batch)


# --- the story -----------------------------------------------------------------------------------


@dataclass
class Story:
    """What is told, and the speeds measured on the way."""

    console: Console
    directory: str
    rows: int
    batch_rows: int
    speeds: list[tuple[str, int, float]] = field(default_factory=list)

    def chapter(self, title: str) -> None:
        """Begin a chapter."""
        self.console.print()
        self.console.rule(f"[bold]{title}", align="left")

    def say(self, text: str) -> None:
        """Tell something."""
        self.console.print(f"  {text}", highlight=False, soft_wrap=True)

    def found(self, text: str) -> None:
        """Tell something that has just been checked."""
        self.console.print(f"  [green]✓[/green] {text}", highlight=False, soft_wrap=True)

    @contextmanager
    def measured(self, what: str, rows: int) -> Iterator[None]:
        """Measure how long something takes."""
        started = time.perf_counter()
        yield
        self.speeds.append((what, rows, time.perf_counter() - started))

    @contextmanager
    def progress(self, what: str, done: int = 0) -> Iterator[Any]:
        """Show a bar over all rows; yields a function that moves it on."""
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as bar:
            task = bar.add_task(what, total=self.rows, completed=done)
            yield lambda rows: bar.advance(task, rows)


def require(holds: bool, what: str) -> None:
    """Stop the demo unless `holds`."""
    if not holds:
        raise DemoFailed(what)


def ingest_and_kill(story: Story) -> int:
    """Ingest in a child process, kill it in the middle, and return how many rows it had acknowledged."""
    story.chapter("1. Ingest, and kill the process in the middle")
    with ebla.open(story.directory) as db:
        db.create_table(TABLE, ebla.Schema(key={"event": "string"}, columns=SCHEMA_COLUMNS))
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    child = spawn.Process(
        target=ingest_until_killed, args=(story.directory, story.rows, story.batch_rows, sender), daemon=True
    )
    child.start()
    sender.close()  # or the pipe would never end
    acknowledged, seconds, killed = 0, 0.0, False
    with story.progress("ingesting in a child process") as advance:
        while True:
            try:
                batch, took = receiver.recv()
            except (EOFError, OSError):
                break
            acknowledged, seconds = acknowledged + batch, seconds + took
            advance(batch)
            if not killed and acknowledged >= story.rows // 2 and child.pid is not None:
                os.kill(child.pid, signal.SIGKILL)
                killed = True
    child.join()
    require(child.exitcode == -signal.SIGKILL, f"the child should have died of SIGKILL, not with {child.exitcode}")
    story.speeds.append(("ingest, until killed", acknowledged, seconds))
    story.say(f"[red]kill -9 {child.pid}[/red]: it had acknowledged {acknowledged:,} rows, perhaps more was under way")
    return acknowledged


def verify(story: Story, table: ebla.Table) -> np.ndarray[Any, Any]:
    """Scan the table, compare every row with what was written, and return which row numbers are there."""
    there = np.zeros(story.rows, np.bool_)
    for batch in table.scan().to_batches():
        found = pa.Table.from_batches([batch])
        numbers = numbers_of(batch.column("event"))
        require(bool((numbers < story.rows).all()), "a row that was never written")
        require(not there[numbers].any(), "a row came twice")
        there[numbers] = True
        wanted = rows_of(numbers)
        require(found.select(wanted.column_names).equals(wanted), "a row is not what was written")
    return there


def reopen(story: Story, acknowledged: int) -> int:
    """Open the store again, check what is in it, put the rest; return the txn after which all rows are there."""
    story.chapter("2. Open it again: is everything there?")
    started = time.perf_counter()
    with ebla.open(story.directory) as db:
        story.say(f"opened in {time.perf_counter() - started:.2f} s, the log replayed")
        table = db.table(TABLE)
        there = verify(story, table)
        count = int(there.sum())
        require(bool(there[:acknowledged].all()), "an acknowledged row is lost")
        story.found(f"all {acknowledged:,} acknowledged rows are there, compared column by column")
        require(bool(there[:count].all()), "a batch is torn: rows are missing in the middle")
        whole = count in (acknowledged, min(acknowledged + story.batch_rows, story.rows))
        require(whole, f"a batch is torn: {count - acknowledged:,} rows more than acknowledged")
        more = "there in full" if count > acknowledged else "not there at all"
        story.found(f"the batch after those is {more}")
        numbers = np.flatnonzero(there).astype(np.uint64)
        checksum = sum(pc.sum(b.column("amount")).as_py() or 0 for b in table.scan(columns=["amount"]).to_batches())
        require(checksum == int(amounts_of(numbers).sum()), "the checksum differs")
        story.found(f"count {count:,}, sum of amounts {checksum:,}: as written")
        with story.progress("ingesting the rest", done=count) as advance:
            seconds = 0.0
            for batch, took in put_rows(table, count, story.rows, story.batch_rows):
                seconds += took
                advance(batch)
        if story.rows > count:
            story.speeds.append(("ingest, after reopening", story.rows - count, seconds))
        table.flush()
        with db.snapshot() as snapshot:
            return snapshot.txn


def read_without_ebla(story: Story) -> None:
    """Read the fragments as what they are, Parquet files."""
    story.chapter("3. The data is open: read the files without Ebla")
    with ebla.open(story.directory, read_only=True) as db:
        files = [db.path / file for file in db.table(TABLE).files()]
    files.sort(key=lambda path: path.stat().st_size)
    require(bool(files), "there are no fragments")
    size = sum(file.stat().st_size for file in files)
    story.say(f"{len(files)} Parquet files, {size / 1e6:,.0f} MB, {size / story.rows:.0f} bytes a row, for example")
    story.say(f"[dim]{files[-1].relative_to(story.directory)}[/dim]: {', '.join(pq.read_schema(files[-1]).names)}")
    wanted = int(amounts_of(np.arange(story.rows, dtype=np.uint64)).sum())
    total = count = 0
    with story.measured("pyarrow.parquet alone, one column", story.rows):
        for file in files:
            amounts = pq.read_table(file, columns=["amount"])["amount"]
            total, count = total + pc.sum(amounts).as_py(), count + len(amounts)
    require((count, total) == (story.rows, wanted), "pyarrow.parquet finds something else")
    story.found(f"pyarrow.parquet: {count:,} rows, sum of amounts {total:,}, the same as through Ebla")
    try:
        import duckdb
    except ImportError:
        story.say("(DuckDB would read them too; it is not installed here)")
        return
    query = "select count(*), sum(amount)::bigint from read_parquet(?)"
    with duckdb.connect() as connection:  # its own: one row is fetched, and the default one would wait for the end
        answer = connection.execute(query, [[str(file) for file in files]]).fetchone()
    require(answer == (story.rows, wanted), "DuckDB finds something else")
    story.found("DuckDB: [dim]select count(*), sum(amount) from read_parquet(...)[/dim]: the same")


def correct_and_read(story: Story, before: int) -> None:
    """Correct and erase rows, read in every way, and read as of before the corrections."""
    story.chapter("4. Correct, erase, read, and look back")
    every = np.arange(story.rows, dtype=np.uint64)
    corrected, erased = every[1::100], every[50::1_000]
    with ebla.open(story.directory) as db:
        table = db.table(TABLE)
        correction = pa.table({"event": keys_of(corrected), "amount": np.zeros(len(corrected), np.int64)})
        with story.measured("correct one column", len(corrected)):
            table.put(correction)
        with story.measured("erase rows by key", len(erased)):
            table.erase_many(keys_of(erased).to_pylist())
        story.say(f"set the amount of {len(corrected):,} rows to 0 and erased {len(erased):,} rows")

        one = keys_of(corrected[:1])[0].as_py()
        now, then = table.get(one), table.get(one, as_of=before)
        seen = [None if row is None else row["amount"] for row in (now, then)]
        require(seen == [0, int(amounts_of(corrected[:1])[0])], "get does not see the correction, or not the past")
        require(seen[0] != seen[1], "the correction changes nothing")
        story.found(f"get({one!r}): amount {seen[0]} now, {seen[1]} as of before the correction")
        gone = keys_of(erased[:1])[0].as_py()
        require(table.get(gone) is None and table.get(gone, as_of=before) is not None, "the erased row is wrong")
        story.found(f"get({gone!r}): no such row now; as of before it is there")

        with story.measured("scan, all columns", story.rows - len(erased)):
            count = sum(batch.num_rows for batch in table.scan().to_batches())
        require(count == story.rows - len(erased), "the scan has lost or invented rows")
        untouched = np.ones(story.rows, np.bool_)
        untouched[corrected] = untouched[erased] = False
        with story.measured("scan, one city, two columns", story.rows):
            cities = table.scan(columns=["city", "amount"], where=pc.field("city") == "Ebla").to_arrow()
        with story.measured("scan, two columns, group by city", story.rows):
            sums = table.scan(columns=["city", "amount"]).to_arrow().group_by("city").aggregate([("amount", "sum")])
        require(pc.sum(sums["amount_sum"]).as_py() == int(amounts_of(every[untouched]).sum()), "the sum is wrong")
        ebla_sum = sums.filter(pc.field("city") == "Ebla")["amount_sum"][0].as_py()
        require(pc.sum(cities["amount"]).as_py() == ebla_sum, "filter and group disagree")
        story.found(f"scan where city = 'Ebla': {cities.num_rows:,} rows, amounts {ebla_sum:,}, as the group by says")
        past = table.scan(columns=["amount"], as_of=before).to_batches()
        total = sum(pc.sum(batch.column("amount")).as_py() or 0 for batch in past)
        require(total == int(amounts_of(every).sum()), "the past has changed")
        story.found(f"scan as of before: sum of amounts {total:,}, as if nothing had been corrected")

        kept = every[untouched]
        chosen = kept[np.random.default_rng(7).integers(0, len(kept), GETS)]
        keys = keys_of(chosen).to_pylist()
        for what in ("get, random rows, first time", "get, the same rows again"):
            with story.measured(what, len(keys)):
                rows = [table.get(key) for key in keys]
            require([row and row["amount"] for row in rows] == amounts_of(chosen).tolist(), "a get is wrong")
        with story.measured("get_many, all of these at once", len(keys)):
            many = table.get_many(keys)
        require(many["amount"].to_pylist() == amounts_of(chosen).tolist(), "get_many is wrong")
        story.found(f"{GETS:,} random gets, each with the right amount")


def on_spark(story: Story) -> None:
    """Load a table with Spark, join it with the other in SQL, correct it, and ask again, also as of before."""
    if importlib.util.find_spec("pyspark") is None:
        story.chapter("5. On Spark")
        story.say("(Spark is not installed here: pip install 'ebla[spark]' brings it, and a Java)")
        return
    import ebla.pipeline as pipeline
    from ebla.pipeline.spark.session import active_session

    story.chapter("5. On Spark: load, join in SQL, correct, ask again, look back")
    is_running = active_session() is not None
    if not is_running:
        story.say("starting Spark ...")
    spark = pipeline.session(app_name="ebla-demo")
    try:
        with ebla.open(story.directory) as db:
            _load_and_ask(story, db, spark)
    finally:
        if not is_running:
            spark.stop()


def _load_and_ask(story: Story, db: ebla.Database, spark: Any) -> None:
    import ebla.pipeline as pipeline

    devices = spark.range(DEVICES).selectExpr(
        "cast(id as int) as device", "concat('model-', id % 40) as model", "id % 7 = 0 as retired"
    )
    with story.measured("load by Spark, a new table", DEVICES):
        loaded = pipeline.load(db, "devices", devices, key=["device"])
    story.say(f"loaded {loaded.rows:,} rows into the table devices, {loaded.files} files, one commit")

    def amounts(as_of: int | None = None) -> tuple[int, int]:
        db.spark(TABLE, spark=spark).createOrReplaceTempView("events")
        db.spark("devices", as_of=as_of, spark=spark).createOrReplaceTempView("devices")
        query = "select count(*), sum(amount) from events join devices using (device) where not retired"
        found = spark.sql(query).first()
        return int(found[0]), int(found[1])

    every = np.arange(story.rows, dtype=np.uint64)
    expected = amounts_of(every)
    expected[1::100] = 0
    kept = np.ones(story.rows, np.bool_)
    kept[50::1_000] = False
    device = (_mix(every) % np.uint64(DEVICES)).astype(np.int64)

    def answer(retired: np.ndarray[Any, Any]) -> tuple[int, int]:
        counted = kept & ~retired
        return int(counted.sum()), int(expected[counted].sum())

    with story.measured("Spark SQL, join of both tables", story.rows):
        first = amounts()
    require(first == answer(device % 7 == 0), "Spark finds something else")
    story.found(f"SQL join: {first[0]:,} events of devices in use, amounts {first[1]:,}, corrections included")
    back = np.arange(0, DEVICES, 14)
    db.table("devices").put(pa.table({"device": pa.array(back, pa.int32()), "retired": np.zeros(len(back), np.bool_)}))
    second = amounts()
    require(second == answer((device % 7 == 0) & (device % 14 != 0)), "Spark does not see the correction")
    story.found(f"{len(back):,} devices put back into use, the same query: {second[0]:,} events, amounts {second[1]:,}")
    require(amounts(as_of=loaded.txn) == first, "the past has changed")
    story.found("the same query as of the load: the first answer again")


def print_speeds(story: Story, seconds: float) -> None:
    """Print what was measured."""
    story.chapter("Speeds, of this machine and this run")
    table = RichTable()
    table.add_column("what")
    for heading in ("rows", "seconds", "rows / s", "µs / row"):
        table.add_column(heading, justify="right")
    for what, rows, took in story.speeds:
        table.add_row(what, f"{rows:,}", f"{took:.2f}", f"{rows / took:,.0f}", f"{took / max(rows, 1) * 1e6:,.2f}")
    story.console.print(table)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform != "darwin" else 1 << 30)
    story.say(
        f"[dim]ingest: one writer, batches of {story.batch_rows:,} rows, each synced to disk before the next; "
        "scans merge all files and corrections[/dim]"
    )
    story.say(
        f"[dim]{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, pyarrow "
        f"{pa.__version__}[/dim]"
    )
    story.say(
        f"[dim]the demo took {seconds:.0f} s and at most {memory:.2f} GiB of memory, its own checks included[/dim]"
    )


def tell(story: Story) -> None:
    """Tell the whole story."""
    started = time.perf_counter()
    story.say(f"[bold]Ebla[/bold] {story.rows:,} rows into {story.directory}")
    acknowledged = ingest_and_kill(story)
    before = reopen(story, acknowledged)
    read_without_ebla(story)
    correct_and_read(story, before)
    on_spark(story)
    print_speeds(story, time.perf_counter() - started)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if everything that it tells was found to be true."""
    parser = argparse.ArgumentParser(prog="python -m ebla.demo", description="Ebla in a minute.")
    parser.add_argument("--rows", type=int, default=ROWS_DEFAULT, help=f"how many (default {ROWS_DEFAULT:,})")
    parser.add_argument("--directory", help="where to make the store's directory (default: the system's temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the store there at the end")
    options = parser.parse_args(arguments)
    if options.rows < 2_000:
        parser.error("--rows is at least 2000")
    console = Console()
    directory = tempfile.mkdtemp(prefix="ebla-demo-", dir=options.directory)
    story = Story(console, directory, options.rows, min(BATCH_ROWS_MAX, max(1, options.rows // 20)))
    try:
        tell(story)
    except (DemoFailed, ebla.EblaError) as error:
        Console(stderr=True).print(f"[red]the demo failed:[/red] {error}; the store is left in {directory}")
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        return 130
    if options.keep:
        console.print(f"\n  The store is in {directory}. Try: ebla --store {directory} scan {TABLE} --limit 5")
    else:
        shutil.rmtree(directory)
        console.print("\n  [dim]The store has been removed again; --keep keeps it.[/dim]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
