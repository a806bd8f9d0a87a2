"""Why a measure falls short of its goal, by (workload, measure, peer). Shown only while it does.

A measure without a peer has ``""`` in its place. What is not listed here is shown as not examined yet.
"""

from __future__ import annotations

_SINGLE = (
    "nearly all of a put is Python where the disk is quick: 0.1 to 0.2 ms, by how fast the processor is, spread thinly "
    "over thirty files, beside a sync of 0.06 ms"
)
_THREADS = (
    "where the disk is quick the puts of all threads wait for the interpreter's lock and not for the disk: sharing a "
    "sync gains little, and handing over the lock costs as much"
)
_COUNT = (
    "Parquet answers a count from its footers, while here a condition on the number of every row of the files that "
    "were corrected is looked at, and those files and the others are two reads to plan"
)
_OVERLAY = (
    "the files that were corrected and the others are two reads, each with its own fixed cost, and a condition on the "
    "number of every row of the former is looked at"
)
_BORDER = "a tenth of a second of planning and of jobs on the driver, beside a query that takes hardly longer"

_SHORT_SCAN = (
    "nearly half of a scan of fifty rows is making dicts of Arrow columns, and a fifth the merge with rows that were "
    "inserted since; rocksdict's iterator makes one call per row"
)

_HOP = (
    "the thread that reads the stream hands every answer to the thread that waits for it, one change of threads more "
    "than a bare exchange has, and both ends decode and look up in Python"
)

_PASSED_ON = (
    "a put passes five threads of two processes, client, reader, worker, writer, reader, each with its interpreter's "
    "lock, on two cores that all processes share; the store in this process passes none"
)
_PUSH = (
    "a push and its answer pass six threads of two servers and wait for a second sync, on two cores that six processes "
    "share; what each step costs was not told apart yet"
)

REASONS: dict[tuple[str, str, str], str] = {
    ("rpc", "batched put, durable", "in the process"): _PASSED_ON,
    ("cluster", "batched put, durable", "in the process"): _PASSED_ON,
    ("cluster", "batched put, durable, two clients", "in the process"): _PASSED_ON,
    ("cluster", "idle, of one core", ""): (
        "six processes with heartbeats, leases and rounds several times a second each: about one hundredth of a slow "
        "core for each"
    ),
    ("replication", "what a push adds to a put", "bare exchange"): _PUSH,
    ("rpc", "get", "bare exchange"): _HOP,
    ("rpc", "get, 16 threads", "bare exchanges"): _HOP,
    ("sparkreplay", "replay of a log", "one process"): (
        "one process keeps a core busy nearly all the time, and leaves to the other one what the kernel writes; tasks "
        "that do the same on both cores are twice as fast at best. What writing past the page cache gains is much "
        "where memory is fresh, and little where it is warm"
    ),
    ("ingest", "one writer", "rocksdict"): (
        "about half of the time is the sync of the log, the rest sorting, copying and checking of the batch"
    ),
    ("ingest", "four writers", "rocksdict"): (
        "puts that come at the same time are admitted and synced as one, but threads hand the interpreter's lock to "
        "one another around it, and the flush in the background takes part of the second core"
    ),
    ("single", "1 thread", "rocksdict"): _SINGLE,
    ("single", "16 threads", "rocksdict"): _THREADS,
    ("single", "64 threads", "rocksdict"): _THREADS,
    ("replay", "open after a close, 10,000,000 rows", "Ebla, 100,000 rows"): (
        "nothing of the log is read any more; METADATA is, one small file for each change since its last snapshot, of "
        "which the smaller store has fewer: about 0.03 ms each, and never more than 32"
    ),
    ("metadata", "SQLite: one after the other", "its raw calls"): (
        "what is left beside the same calls is about 0.1 ms of Python, which runs cold after each sync; old files are "
        "removed by a thread beside it, which takes part of the same disk"
    ),
    ("scan", "first scan", "rocksdict"): (
        "the first scan also opens the file and starts the threads; the second one is the speed of decoding Parquet"
    ),
    ("get", "get_many, neighbouring keys", "rocksdict multi-get"): (
        "about 0.2 ms for 1,000 keys, a third of it for taking the keys out of 1,000 Python objects all over memory, "
        "the rest fixed costs of some twenty calls; the search itself is a small part"
    ),
    **{("ycsb", f"E, {rows} rows", "rocksdict"): _SHORT_SCAN for rows in ("20,000", "200,000", "1,000,000")},
    **{
        ("spark", f"{state}, {query}, {size}", "read.parquet"): reason
        for size in ("1M", "5M")
        for state, query, reason in (
            ("clean", "count", _BORDER),
            ("clean", "sum", _BORDER),
            ("clustered", "count", _COUNT),
            ("clustered", "sum", _OVERLAY),
            ("clustered", "filter", _OVERLAY),
            ("uniform", "count", _COUNT),
            ("uniform", "sum", _OVERLAY),
        )
    },
}
