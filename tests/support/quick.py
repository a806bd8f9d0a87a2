"""Which tests `make quick` runs: those that need neither Spark nor ZooKeeper, and do not take long.

What a test needs is told by the text of its file, as where tests are shared out. What takes long is listed here: tests
that crash, kill, compare or simulate by the thousand. `make test` runs all of them.
"""

from __future__ import annotations

from functools import cache

from tests.support.sharing_out import scope_of, server_of

# Folders below tests/, and modules and tests in any folder, that take seconds each.
LONG_FOLDERS = ("crash", "recovery", "reference")
LONG = (
    "test_bulk_processes.py",
    "test_bulk_writer.py::test_a_bulk_job_does_what_the_same_puts_do",
    "test_capture_random.py",
    "test_compact.py::test_every_snapshot",
    "test_count.py",
    "test_damaged_files.py",
    "test_flush_windows.py",
    "test_folds.py",
    "test_hot_rows.py",
    "test_merge.py::test_cells_are_merged_as_the_rules_say",
    "test_merge.py::test_the_order_of_the_runs_does_not_matter",
    "test_metadata_copies.py",
    "test_read_paths.py",
    "test_records.py::test_a_slice_holds_the_rows_of_its_range",
    "test_records.py::test_find_many_returns",
    "test_recutter.py::test_writers_and_readers_go_on",
    "test_remote_faults.py",
    "test_requests.py::test_a_damaged_stream_is_refused_or_means_what_it_says",
    "test_row_block.py::test_rows_are_combined_as_blocks_are",
    "test_simulation.py",
    "test_sqlite_damage.py",
    "test_stream_reader.py",
    "test_where.py::test_a_filter_keeps_the_rows_for_which_the_model_says_true",
)


def is_quick(nodeid: str) -> bool:
    """Tell whether a test is a quick one, by its address."""
    file, _, name = nodeid.partition("::")
    is_long = f"{file.rpartition('/')[2]}::{name}".startswith(LONG)
    return not is_long and is_quick_file(file) and scope_of(nodeid) != "zookeeper"


@cache
def is_quick_file(file: str) -> bool:
    """Tell whether a file, by its path below the root of the project, may have quick tests."""
    _, folder, *_ = file.split("/")
    return folder not in LONG_FOLDERS and file.rpartition("/")[2] not in LONG and server_of(file) is None
