"""Orders of jobs are left for the owner of a store, who may run another version: what is written stays as it is."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from ebla.metadata.values.changes import TabletAt
from ebla.service.job_orders import (
    AddColumns,
    Answer,
    BeginCompaction,
    BulkCommit,
    BulkResult,
    CompactCommit,
    CompactionBegun,
    CompactionTerms,
    CompactResult,
    GroupTerms,
    JobOrder,
    MakeTable,
    Merge,
    Order,
    PrepareCompaction,
    PrepareSweep,
    Replacement,
    RestoreCommit,
    Strategy,
    Sweep,
    SweepResult,
    SweepTerms,
    TableAnswer,
    UnmakeTable,
)

MERGED = Replacement(TabletAt("x", 1), 2, Merge((), (), (), 7, True, False, False), (), 9)
# What the versions before this one write and read.
ORDERS = [
    (
        BulkCommit("j", "t", 3, ()),
        {
            "type": "bulk",
            "job": "j",
            "table_id": "t",
            "schema_version": 3,
            "fragments": [],
            "overwrite": False,
            "app": None,
            "batch": 0,
            "unchanged_since": None,
        },
    ),
    (PrepareCompaction("j", "t"), {"type": "prepare_compaction", "job": "j", "table_id": "t"}),
    (BeginCompaction("j", "t", ("f",)), {"type": "begin_compaction", "job": "j", "table_id": "t", "files": ["f"]}),
    (
        CompactCommit("j", "t", 3, (MERGED,)),
        {
            "type": "compact",
            "job": "j",
            "table_id": "t",
            "schema_version": 3,
            "replacements": [
                {
                    "tablet": ["x", 1],
                    "group": 2,
                    "merge": {
                        "fragments": [],
                        "erasures": [],
                        "dropped": [],
                        "horizon": 7,
                        "is_rooted": True,
                        "is_dense": False,
                        "joins": False,
                        "present": 0,
                        "roots_present": False,
                        "history_txn": 0,
                    },
                    "added": [],
                    "records_read": 9,
                }
            ],
        },
    ),
    (PrepareSweep("j"), {"type": "prepare_sweep", "job": "j"}),
    (
        Sweep("j", ("a",), {"b": 1}, 4),
        {"type": "sweep", "job": "j", "doomed": ["a"], "candidates": {"b": 1}, "version": 4},
    ),
    (
        RestoreCommit("j", "t", "n", b"m"),
        {"type": "restore", "job": "j", "table_id": "t", "name": "n", "metadata": b"m", "replaces": None},
    ),
    (
        MakeTable("j", "n", "t", b"s", ("x", "y"), (b"m",)),
        {
            "type": "make_table",
            "job": "j",
            "name": "n",
            "table_id": "t",
            "schema": b"s",
            "tablet_ids": ["x", "y"],
            "splits": [b"m"],
        },
    ),
    (
        AddColumns("j", "t", (("a", "int64"),)),
        {"type": "add_columns", "job": "j", "table_id": "t", "columns": [["a", "int64"]]},
    ),
    (UnmakeTable("j", "t"), {"type": "unmake_table", "job": "j", "table_id": "t"}),
]
ANSWERS = [
    (BulkResult(1, repeated=True), {"type": "bulk_done", "txn": 1, "repeated": True}),
    (
        CompactionTerms((GroupTerms(1, 2, 3),), Strategy()),
        {
            "type": "compaction_terms",
            "groups": [{"group": 1, "horizon": 2, "unflushed": 3}],
            "strategy": {
                "runs_min": 5,
                "runs_max": 10,
                "size_ratio": 2.0,
                "erased_share": 0.25,
                "surplus_share": 0.25,
                "surplus_min": 4096,
                "small_files_min": 16,
                "file_bytes": 134217728,
            },
        },
    ),
    (CompactionBegun(1.5), {"type": "compaction_begun", "seconds": 1.5}),
    (CompactResult(((0, "missing"),)), {"type": "compacted", "refused": [[0, "missing"]]}),
    (SweepTerms(("a",), 1, 2), {"type": "sweep_terms", "young": ["a"], "now_microseconds": 1, "age_microseconds": 2}),
    (SweepResult((1,)), {"type": "swept", "kept": [1]}),
    (TableAnswer("t", 3), {"type": "table", "table_id": "t", "schema_version": 3}),
]


@pytest.mark.parametrize(("order", "written"), ORDERS)
def test_an_order_is_written_and_read_as_ever(order: Order, written: object) -> None:
    sent = msgspec.msgpack.encode(order)
    assert msgspec.msgpack.decode(sent) == written
    assert msgspec.msgpack.decode(sent, type=Order) == order
    assert isinstance(order, JobOrder)


def test_an_order_of_before_conditions_has_none() -> None:
    commit = BulkCommit("job", "t", 3, ())
    before = {name: value for name, value in msgspec.to_builtins(commit).items() if name != "unchanged_since"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=Order) == commit


@pytest.mark.parametrize(("answer", "written"), ANSWERS)
def test_an_answer_is_written_and_read_as_ever(answer: Answer, written: object) -> None:
    sent = msgspec.msgpack.encode(answer)
    assert msgspec.msgpack.decode(sent) == written
    assert msgspec.msgpack.decode(sent, type=Answer) == answer


def test_all_kinds_are_looked_at() -> None:
    assert {type(order) for order, _ in ORDERS} == set(get_args(Order))
    assert {type(answer) for answer, _ in ANSWERS} == set(get_args(Answer))
