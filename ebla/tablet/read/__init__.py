"""What a reader sees at one moment: views, projections, rows by key, stretches, cached rows.

**The ways a read is answered.** Each begins where the one before it cannot tell; the last of a table is always right.
Behind each stands the workload of `python -m benchmarks` that is slower without it.

One row, by `get`:

    kept           the row cache has it as a dict                       row_cache.py      get: zipf; ycsb: B, C, D
    left           a put of one row keeps it, with what it has set      row_cache.py      ycsb: A, F
    looked up      one fragment alone may have it, and has a lookup     row_reader.py     get: small cache; ycsb: small
                   file: its values are read there, no block decoded    storage/lookup    cache
    records        its records newest first, no merge                   row_records.py    get: uniform, cold; steady
    cells          its few cells, one by one                            row_cells.py      cells: get
    merged         runs of the row, merged as any                       row_reader.py     versions, strands, many cells

Many rows, by `get_many`:

    neighbours     as they stand in one clean file, one slice           row_reader.py     get: get_many, neighbouring
    found          runs of what each source has of them, merged         row_reader.py     get: get_many, random

A range, by `scan`, window by window:

    row by row     short: rows one by one out of lookup files and       short_rows.py     ycsb: E, small cache; cells:
                   memory, resolved as `get` does                                         short scan
    folded         short: from a stretch merged before, and what is     folds.py          ycsb: E (a third more)
                   newer laid over it, where blocks stay decoded
    clean          one run, one record a row, nothing hides any: as     answers.py        scan; cells: scan
                   it lies there, no merge
    stacked        each source wholly older than the next: their        answers.py        scan5
                   records are ordered by one txn each
    merged         all else                                             reader.py         scan5; cells; compaction

Which of some keys exist, for MERGE:

    by keys        the keys of blocks that may have them                existence.py      merge

The number of rows, by `count`:

    told           from METADATA and footers, where one source has      counting.py       none; without it a count is a
                   rows and nothing hides them; the rest is read                          full scan
"""
