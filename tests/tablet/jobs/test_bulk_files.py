"""Files whose chunks have different columns: each record keeps its meaning."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ebla.model.declaration import Group, Schema
from ebla.model.keys import KeyCodec
from ebla.storage.record.records import ERASED, ROW, SET
from ebla.tablet.jobs.bulk_files import GroupFiles
from tests.support.simulated_files import SimulatedFiles

SCHEMA = Schema(key={"k": "int32"}, groups=[Group("g", columns={"a": "int64", "b": "string"})]).number()
(GROUP,) = SCHEMA.groups
A, B = (str(column.id) for column in GROUP.columns)
CODEC = KeyCodec(SCHEMA.key)


class Written:
    """Chunks written to the files of one group."""

    def __init__(self, file_bytes_max: int = 1 << 30) -> None:
        self.files = SimulatedFiles()
        self.output = GroupFiles(self.files, "t", SCHEMA, GROUP, CODEC, "job", 3, file_bytes_max)
        self._chunks = 0

    def chunk(self, keys: list[int], **columns: pa.Array) -> None:
        named = {ROW: CODEC.encode_arrays([pa.array(keys, pa.int32())]), **columns}
        self.output.write(pa.record_batch(named), self._chunks, unique=True)
        self._chunks += 1

    def contents(self) -> list[list[dict[str, Any]]]:
        made = self.output.finish()
        tables = [pq.read_table(self.files.open_input(one.fragment.file)) for one in made]
        return [table.drop_columns([ROW]).to_pylist() for table in tables]


def test_chunks_of_one_shape_share_a_file() -> None:
    written = Written()
    written.chunk([1, 2], **{A: pa.array([1, 2])})
    written.chunk([3], **{A: pa.array([3])})
    assert written.contents() == [[{"k": 1, "a": 1}, {"k": 2, "a": 2}, {"k": 3, "a": 3}]]
    (made,) = written.output.finish()
    assert (made.group, made.order, made.fragment.rows) == (GROUP.id, (3, 0), 3)
    assert (made.fragment.txn, made.fragment.txn_min, made.fragment.txn_max) == (None, 0, 0)
    assert (made.fragment.has_erasures, made.fragment.has_partial) == (False, False)


def test_columns_that_come_later_begin_a_file_and_stay() -> None:
    written = Written()
    written.chunk([1], **{A: pa.array([1])})
    written.chunk([2], **{A: pa.array([2]), B: pa.array(["x"])})
    written.chunk([3], **{A: pa.array([3])})
    written.chunk([4], **{A: pa.array([4]), B: pa.array(["y"])})
    assert written.contents() == [
        [{"k": 1, "a": 1}],
        [{"k": 2, "a": 2, "b": "x"}],
        [{"k": 3, "_set": A, "a": 3, "b": None}, {"k": 4, "_set": None, "a": 4, "b": "y"}],
    ]


def test_records_that_set_all_of_their_chunk_say_so_in_a_wider_file() -> None:
    written = Written()
    written.chunk([1], **{SET: pa.array([""]), A: pa.array([1]), B: pa.array(["x"])})
    written.chunk([2, 3], **{SET: pa.array([None, ""], pa.string()), B: pa.array(["y", None])})
    assert written.contents() == [
        [
            {"k": 1, "_set": "", "a": 1, "b": "x"},
            {"k": 2, "_set": B, "a": None, "b": "y"},
            {"k": 3, "_set": "", "a": None, "b": None},
        ]
    ]


def test_erasures_need_no_values() -> None:
    written = Written()
    written.chunk([1], **{ERASED: pa.array([True])})
    written.chunk([2], **{A: pa.array([2])})
    written.chunk([3], **{ERASED: pa.array([True])})
    assert written.contents() == [
        [{"k": 1, "_erased": True}],
        [{"k": 2, "_erased": False, "a": 2}, {"k": 3, "_erased": True, "a": None}],
    ]


def test_files_that_are_ended_have_columns_of_their_own() -> None:
    written = Written()
    written.chunk([1], **{A: pa.array([1])})
    written.output.end_file()
    written.chunk([1], **{B: pa.array(["x"])})
    assert written.contents() == [[{"k": 1, "a": 1}], [{"k": 1, "b": "x"}]]
    assert [one.order for one in written.output.finish()] == [(3, 0), (3, 1)]


def test_a_file_that_is_large_enough_is_ended() -> None:
    written = Written(file_bytes_max=1)
    for key in range(3):
        written.chunk([key], **{A: pa.array([key])})
    assert len(written.contents()) >= 2


def test_one_record_too_many_for_an_identity_lowers_unique() -> None:
    written = Written()
    written.chunk([1], **{A: pa.array([1])})
    written.output.write(
        pa.record_batch({ROW: CODEC.encode_arrays([pa.array([2], pa.int32())]), A: [2]}), 1, unique=False
    )
    (made,) = written.output.finish()
    assert not made.fragment.unique
