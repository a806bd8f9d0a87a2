"""What a commit writes to the log is read back as it was, and what cannot be written is refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.errors import Corruption
from ebla.storage.log.log_entry import (
    LogBlock,
    LogEntry,
    LogErasure,
    LogPart,
    Reply,
    decode_entry,
    encode_entry,
    split_payload,
)
from ebla.storage.log.log_format import (
    SEGMENT_HEADER_BYTES,
    EntryKind,
    encode_segment_header,
    frame_entry,
    segment_path,
)
from tests.support.logs import (
    DIRECTORY,
    SCHEMA_BYTES,
    SERVER,
    make_entry,
    recovered,
)
from tests.support.simulated_files import SimulatedFiles

TYPES = [
    (pa.binary(), st.binary(max_size=20)),
    (pa.string(), st.text(max_size=20)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.list_(pa.int32()), st.lists(st.integers(-5, 5), max_size=3)),
    (pa.decimal128(20, 2), st.decimals(-1000, 1000, places=2)),
    (pa.struct([("x", pa.int8())]), st.fixed_dictionaries({"x": st.integers(-5, 5)})),
]
NUMBERS = st.integers(0, 2**62)
NAMES = st.text(max_size=10)


@st.composite
def blocks(draw: st.DrawFn) -> LogBlock:
    rows = draw(st.integers(0, 20))
    columns = draw(st.lists(st.sampled_from(TYPES), max_size=5))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind) for kind, values in columns
    ]
    names = [str(number) for number in range(len(arrays))]
    arrays.insert(0, pa.array(draw(st.lists(st.binary(max_size=9), min_size=rows, max_size=rows)), pa.binary()))
    names.insert(0, "_row")
    if draw(st.booleans()):
        arrays.append(pa.array(draw(st.lists(NUMBERS, min_size=rows, max_size=rows)), pa.int64()))
        names.append("_txn")
    records = pa.record_batch(arrays, names=names)
    begin = draw(st.integers(0, rows))
    records = records.slice(begin, draw(st.integers(0, rows - begin)))
    schema = records.schema.serialize().to_pybytes()
    txn, txn_min = draw(NUMBERS), draw(NUMBERS)
    return LogBlock(draw(NUMBERS), draw(NUMBERS), txn, txn_min, schema, records)


ERASURES = st.builds(LogErasure, st.binary(), st.none() | st.binary(), NUMBERS, NUMBERS)
REPLIES = st.lists(st.builds(Reply, NAMES, NUMBERS, NUMBERS), max_size=3).map(tuple)
PARTS = st.builds(
    LogPart,
    NAMES,
    NAMES,
    *[NUMBERS] * 5,
    st.lists(blocks(), max_size=3).map(tuple),
    st.lists(ERASURES, max_size=3).map(tuple),
    REPLIES,
)
ENTRIES = st.builds(LogEntry, NUMBERS, st.lists(PARTS, max_size=3).map(tuple), REPLIES)


def blocks_of(entry: LogEntry) -> list[LogBlock]:
    return [block for part in entry.parts for block in part.blocks]


def entry_of(block: LogBlock, *erasures: LogErasure) -> LogEntry:
    return LogEntry(60, (LogPart("t", "tablet", 1, 1, 1, 1, 60, (block,), erasures),))


class TestEntry:
    @given(ENTRIES)
    @settings(deadline=None, max_examples=60)
    def test_an_entry_is_decoded_to_what_was_encoded(self, entry: LogEntry) -> None:
        payload = b"".join(encode_entry(entry))
        assert len(payload) % 8 == 0
        decoded = decode_entry(pa.py_buffer(payload))
        assert decoded == entry
        for block, other in zip(blocks_of(decoded), blocks_of(entry), strict=True):
            block.records.validate(full=True)
            assert block.has_txn_column == other.has_txn_column
            assert block.rows == other.rows

    @given(st.binary(max_size=200))
    def test_bytes_that_are_no_entry_are_refused(self, data: bytes) -> None:
        files = SimulatedFiles()
        header, head = encode_segment_header(SERVER, 1, None)
        framed = frame_entry(EntryKind.COMMIT, [data], header, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES)
        files.put(segment_path(DIRECTORY, 1), b"".join([head, *framed]))
        with pytest.raises(Corruption, match=r"offset 64.*cannot be understood"):
            recovered(files)

    def test_records_are_not_copied_by_reading(self) -> None:
        payload = pa.py_buffer(b"".join(encode_entry(make_entry(1, rows=100))))
        (block,) = blocks_of(decode_entry(payload))
        for column in block.records.columns:
            for buffer in column.buffers():
                if buffer is not None:
                    assert payload.address <= buffer.address < payload.address + payload.size
                    assert buffer.address % 8 == 0

    def test_a_schema_that_is_not_the_records_is_refused(self) -> None:
        records = pa.record_batch({"_row": pa.array([b"a"]), "9": pa.array([1])})
        with pytest.raises(ValueError, match="schema"):
            encode_entry(entry_of(LogBlock(1, 1, 1, 1, SCHEMA_BYTES, records)))

    @pytest.mark.parametrize(
        "kind", [pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.string()))]
    )
    def test_dictionaries_are_refused(self, kind: pa.DataType) -> None:
        records = pa.record_batch([pa.array([None], kind)], names=["2"])
        schema = records.schema.serialize().to_pybytes()
        with pytest.raises(ValueError, match="dictionary"):
            encode_entry(entry_of(LogBlock(1, 1, 1, 1, schema, records)))

    def test_the_smallest_txn_of_an_entry(self) -> None:
        (block,) = blocks_of(make_entry(50))
        assert entry_of(block).txn_min == 50
        assert entry_of(block, LogErasure(b"", None, 40, 1)).txn_min == 40
        assert LogEntry(60).txn_min == 60

    def test_the_part_of_a_tablet_needs_nothing_of_the_others(self) -> None:
        entries = [make_entry(txn, rows=3) for txn in (5, 6)]
        both = LogEntry(6, tuple(msgspec.structs.replace(e.parts[0], tablet=f"tablet {e.txn_max}") for e in entries))
        found = decode_entry(pa.py_buffer(b"".join(encode_entry(both))))
        alone = LogEntry(6, tuple(part for part in found.parts if part.tablet == "tablet 5"))
        again = decode_entry(pa.py_buffer(b"".join(encode_entry(alone))))
        assert again.parts == both.parts[:1]

    def test_blocks_of_many_tablets_share_their_arrow_schema(self) -> None:
        (part,) = make_entry(1).parts
        sizes = [sum(len(b) for b in encode_entry(LogEntry(1, (part,) * count))) for count in (1, 2, 3)]
        assert sizes[2] - sizes[1] <= sizes[1] - sizes[0] < sizes[0] - len(SCHEMA_BYTES)

    def test_blocks_of_one_batch_share_its_body(self) -> None:
        records = pa.record_batch({"_row": pa.array([bytes([n]) for n in range(90)], pa.binary()), "2": range(90)})
        shared, apart = (divided(records, [10, 40, 90], is_shared=is_shared) for is_shared in (True, False))
        assert len(encode_entry(shared)) == 2 < len(encode_entry(apart)) == 4
        assert decode_entry(pa.py_buffer(b"".join(encode_entry(shared)))) == apart

    def test_a_batch_of_which_some_rows_are_elsewhere_is_not_written_as_a_whole(self) -> None:
        records = pa.record_batch({"_row": pa.array([bytes([n]) for n in range(90)], pa.binary()), "2": range(90)})
        shared, apart = (divided(records, [10, 40, 90], is_shared=is_shared) for is_shared in (True, False))
        for kept in (slice(1), slice(1, None), slice(0, None, 2)):
            payload = b"".join(encode_entry(LogEntry(60, shared.parts[kept])))
            assert payload == b"".join(encode_entry(LogEntry(60, apart.parts[kept])))
            assert decode_entry(pa.py_buffer(payload)).parts == apart.parts[kept]

    @pytest.mark.parametrize(("begin", "rows"), [(-1, 1), (0, -1), (0, 91), (90, 1), (2**40, 1)])
    def test_rows_that_a_body_does_not_have_are_refused(self, begin: int, rows: int) -> None:
        records = pa.record_batch({"_row": pa.array([b"x"] * 90, pa.binary()), "2": range(90)})
        preamble, body = encode_entry(divided(records, [90], is_shared=True))
        fields = msgspec.msgpack.decode(split_payload(pa.py_buffer(preamble))[0])
        fields[2][0][7][0][5], fields[2][0][7][0][9] = rows, begin
        packed = msgspec.msgpack.encode(fields)
        changed = len(packed).to_bytes(4, "little") + packed
        with pytest.raises(ValueError, match=f"{rows} records from {begin} on, of 90"):
            decode_entry(pa.py_buffer(changed + bytes(-len(changed) % 8) + bytes(body)))


def divided(records: pa.RecordBatch, ends: Sequence[int], *, is_shared: bool) -> LogEntry:
    """Return an entry of a put whose rows are divided among tablets."""
    parts = []
    for number, (begin, end) in enumerate(pairwise([0, *ends])):
        own = records.slice(begin, end - begin)
        shared = (None, records, begin) if is_shared else ()
        block = LogBlock(4, 1, 60, 60, records.schema.serialize().to_pybytes(), own, *shared)
        parts.append(LogPart("t", f"tablet {number}", 1, 1, 1, 1, 60, (block,)))
    return LogEntry(60, tuple(parts))
