"""Direct access: what jobs do with the files, METADATA and log of a store, beside whoever serves it.

    place       the store of a job, a database at hand or a root: METADATA, intents, orders to the owner
    opens       read-only opens that the tasks of a process share; following, table_value: other ways to see a table
    clusters    tables of a cluster, captured from those who serve them; value_store: read as values
    holding     what a job keeps from compaction and garbage collection while it reads: held_pins, capture
    reading     views, fragments and records, for planners and tasks that read them themselves
    bulk_writer, compacting, log_sorting, log_replay, unused_files
                the engine's own rules for writing, merging, replaying and sweeping, for tasks that do the work

A server answers requests one by one. A job of many tasks would only keep it busy: fragments are immutable files which
anybody can read, METADATA says which count, and what a job made becomes part of a table by one order to the owner. So
jobs work here, below the seam, and come back to it to commit.

This room is the only way from `ebla.pipeline` and `ebla.cli` to the engine (``lint-imports`` checks it): what is
imported from here is all that a job may rely on.
"""
