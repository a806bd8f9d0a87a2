"""Which tests `make quick` runs: those that need neither Spark nor ZooKeeper, and do not take long.

What a test needs is told by the text of its file, as where tests are shared out. What takes long is listed here: tests
that crash, kill, compare or simulate by the thousand. `make test` runs all of them.
"""

from __future__ import annotations

from functools import cache

from tests.support.sharing_out import scope_of, server_of

# Folders, modules and tests below tests/, each of which takes seconds.
LONG = (
    "crash/",
    "recovery/",
    "reference/",
    "bad_input/test_damaged_files.py",
    "client/jobs/test_bulk_processes.py",
    "client/test_count.py",
    "client/test_metadata_copies.py",
    "client/test_read_paths.py",
    "coordination/test_sqlite_damage.py",
    "master/test_simulation.py",
    "metadata/consensus/test_simulation.py",
    "model/test_where.py::test_a_filter_keeps_the_rows_for_which_the_model_says_true",
    "pipeline/place/test_capture_random.py",
    "pipeline/streaming/test_stream_reader.py",
    "storage/merge/test_compact.py::test_every_snapshot",
    "storage/merge/test_merge.py::test_cells_are_merged_as_the_rules_say",
    "storage/merge/test_merge.py::test_the_order_of_the_runs_does_not_matter",
    "storage/record/test_records.py::test_find_many_returns",
    "storage/record/test_row_block.py::test_rows_are_combined_as_blocks_are",
    "tablet/flush/test_flush_windows.py",
    "tablet/life/test_recutter.py::test_writers_and_readers_go_on",
    "tablet/read/test_folds.py",
    "tablet/read/test_hot_rows.py",
)


def is_quick(nodeid: str) -> bool:
    """Tell whether a test is a quick one, by its address."""
    is_long = nodeid.removeprefix("tests/").startswith(LONG)
    return not is_long and is_quick_file(nodeid.partition("::")[0]) and scope_of(nodeid) != "zookeeper"


@cache
def is_quick_file(file: str) -> bool:
    """Tell whether a file, by its path below the root of the project, may have quick tests."""
    return not file.removeprefix("tests/").startswith(LONG) and server_of(file) is None
