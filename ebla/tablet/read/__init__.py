"""What a reader sees at one moment: views, projections, rows by key, stretches, cached rows.

**The ways a read is answered.** Each begins where the one before it cannot tell; the last of a table is always right.
Behind each stands the workload of `python -m benchmarks` that is slower without it.

One row, by `get`:

    kept           the row cache has it as a dict                       row_cache.py      get: zipf; ycsb: B, C, D
    left           a put of one row keeps it, with what it has set      row_cache.py      ycsb: A, F
    records        its records newest first, no merge                   row_records.py    get: uniform, cold; steady
    cells          its few cells, one by one                            row_cells.py      cells: get
    merged         runs of the row, merged as any                       row_reader.py     versions, strands, many cells

Many rows, by `get_many`:

    neighbours     as they stand in one clean file, one slice           row_reader.py     get: get_many, neighbouring
    found          runs of what each source has of them, merged         row_reader.py     get: get_many, random

A range, by `scan`, window by window:

    folded         short: from a stretch merged before, and what is     folds.py          ycsb: E
                   newer laid over it
    clean          one run, one record a row, nothing hides any: as     answers.py        scan; cells: scan
                   it lies there, no merge
    stacked        each source wholly older than the next: their        answers.py        scan5
                   records are ordered by one txn each
    merged         all else                                             reader.py         scan5; cells; compaction

The number of rows, by `count`:

    told           from METADATA and footers, where one source has      counting.py       none; without it a count is a
                   rows and nothing hides them; the rest is read                          full scan
"""
