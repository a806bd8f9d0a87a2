"""Speeds of Ebla, as ratios against peers measured in the same run, on the same data and file system.

    python -m benchmarks [workload ...] [--rows N] [--scale F] [--quick] [--write] [--directory PATH]

    __main__   runs workloads, each in a process of its own, prints and stores the table
       |
    ingest  single  scan  scan5  get  cells  replay  memory  block      one file per workload
    ycsb  compaction  space  instant  spark  tpch  merge
       |                  |
    store (Ebla)       peers (rocksdict, lmdb, sqlite, duckdb)   the same few verbs on both sides
       |                  |
    data (rows in the natural form of each side)   harness (clock, best of a few)   report (goals, verdicts, tables)

Rules that every workload keeps:

- inputs are prepared outside the timed region, in the form natural to each side: Arrow batches or dicts for Ebla,
  lists of `(key, value)` bytes for key-value stores, tuples for SQLite;
- Ebla and its peer take turns, and the best of a few rounds counts on both sides: on a noisy machine the best is
  what the code can do, and the noise hits both alike;
- Python's cyclic garbage collector is off inside the timed region, which helps the peers more than Ebla: they make
  millions of small objects;
- every durable write is really synced on both sides; results are checked (row counts, sums) outside the clock;
- a ratio is always "how many times as fast as the peer": above 1 Ebla is ahead, whatever the unit.
"""
