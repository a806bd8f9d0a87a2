"""Why a measure falls short of its goal, by (workload, measure, peer). Shown only while it does.

A measure without a peer has ``""`` in its place. What is not listed here is shown as not examined yet.
"""

from __future__ import annotations

_SINGLE = (
    "a put of one row costs 0.5 to 0.8 ms of Python and Arrow calls on small arrays beside the sync of 0.2 ms, and "
    "that work holds the interpreter's lock, so that threads share the sync but not the work"
)

REASONS: dict[tuple[str, str, str], str] = {
    ("ingest", "one writer", "rocksdict"): (
        "about half of the time is the sync of the log, the rest sorting, copying and checking of the batch"
    ),
    ("ingest", "four writers", "rocksdict"): (
        "one sync serves several commits, but the work before it, about 0.8 ms for 1,000 rows, mostly holds the "
        "interpreter's lock, and the flush in the background takes part of the second core"
    ),
    ("single", "1 thread", "rocksdict"): _SINGLE,
    ("single", "16 threads", "rocksdict"): _SINGLE,
    ("single", "64 threads", "rocksdict"): _SINGLE,
    ("scan", "first scan", "rocksdict"): (
        "the first scan also opens the file and starts the threads; the second one is the speed of decoding Parquet"
    ),
    ("scan5", "first scan", "rocksdict"): (
        "half of the time is decoding Parquet, and each window decodes the blocks at its edges once more; the rest is "
        "concatenating and taking into the new order"
    ),
    ("get", "get_many, random keys", "rocksdict multi-get"): (
        "nearly every key is in another block, and slicing a row out of a block and joining the slices costs Arrow "
        "about 2 us a row, beside the search"
    ),
    ("get", "get_many, neighbouring keys", "rocksdict multi-get"): (
        "fixed costs of about thirty Arrow and numpy calls for 1,000 keys; the search itself is a small part"
    ),
}
