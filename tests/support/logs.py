"""Small logs to write, read, cut and damage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from ebla.storage.log.log_entry import LogBlock, LogEntry, LogPart, Reply
from ebla.storage.log.log_extent import NOTHING, LogExtent
from ebla.storage.log.log_format import ENTRY_HEADER_BYTES, SegmentInfo, segment_path
from ebla.storage.log.log_reader import LogRecovery, SegmentReading, read_segment, recover, truncate_torn_tail
from ebla.storage.log.log_removal import finish_removal
from ebla.storage.log.log_writer import LogWriter
from tests.support.simulated_files import SimulatedFiles

SERVER = "6f1c2a34-0b7e-4c1d-9a55-2f8e3d4c5b6a"
DIRECTORY = f"log/{SERVER}"
MANY = 1 << 30

SCHEMA = pa.schema([("_row", pa.binary()), ("2", pa.string())])
SCHEMA_BYTES = SCHEMA.serialize().to_pybytes()


def make_entry(txn: int, rows: int = 1, value: str = "v") -> LogEntry:
    """Return a commit of `rows` rows at `txn`."""
    records = pa.record_batch(
        [pa.array([b"%08d" % row for row in range(rows)], pa.binary()), pa.array([f"{value}{txn}"] * rows)],
        schema=SCHEMA,
    )
    block = LogBlock(4, txn, txn, txn, SCHEMA_BYTES, records)
    return LogEntry(txn, (LogPart("t", "tablet", 1, 1, txn, txn, txn, (block,), (), (Reply("c", txn, txn),)),))


def open_writer(files: Any, segment_bytes: int = MANY) -> LogWriter:
    """Recover what is there, as an opener does, and go on after it."""
    recovery = recover(files, DIRECTORY)
    for _ in recovery:
        pass
    truncate_torn_tail(files, recovery)
    finish_removal(files, DIRECTORY)
    return LogWriter(files, DIRECTORY, SERVER, recovery.next_sequence, segment_bytes, recovery.segments)


def write_log(files: Any, txns: range, segment_bytes: int = MANY, close: bool = True) -> list[SegmentInfo]:
    """Write and sync an entry for each txn; return the segments."""
    writer = open_writer(files, segment_bytes)
    for txn in txns:
        writer.append(make_entry(txn))
        writer.sync()
    if close:
        writer.close()
    return writer.segments()


def finished_segment(txns: range) -> bytes:
    """Return a segment that has an entry for each txn, and the mark of its end."""
    files = SimulatedFiles()
    writer = open_writer(files)
    for txn in txns:
        writer.append(make_entry(txn))
    writer._segment_bytes = 0
    writer.append(make_entry(txns.stop))
    return files.read(segment_path(DIRECTORY, 1))


def recovered(files: Any, extent: LogExtent = NOTHING) -> list[int]:
    """Return the txns that a recovery finds."""
    return [found.entry.txn_max for found in recover(files, DIRECTORY, extent)]


def exhaust(files: Any) -> LogRecovery:
    recovery = recover(files, DIRECTORY)
    for _ in recovery:
        pass
    return recovery


def written(files: Any, sequence: int = 1) -> bytes:
    """Return what was written of a segment, without what is only reserved."""
    path = segment_path(DIRECTORY, sequence)
    reading = SegmentReading(path, files.read(path), is_last=True)
    for _ in reading.entries():
        pass
    return files.read(path)[: reading.info().bytes]


def without_reserved(segment: Path) -> int:
    """Cut off what is only reserved of a segment on disk; return its size."""
    reading = SegmentReading(segment.name, segment.read_bytes(), is_last=True)
    for _ in reading.entries():
        pass
    os.truncate(segment, reading.info().bytes)
    return reading.info().bytes


def flipped(data: bytes, position: int, bit: int = 0) -> bytes:
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def offsets_of(files: Any, sequence: int = 1) -> list[int]:
    """Return where the entries of a segment begin, and where the last one ends."""
    path = segment_path(DIRECTORY, sequence)
    last = [offset for offset, _ in read_segment(files, path)]
    info = next(segment for segment in exhaust(files).segments if segment.path == path)
    return [*last, info.bytes - (ENTRY_HEADER_BYTES if info.closed else 0)]


def with_segment(data: bytes, sequence: int = 1, others: SimulatedFiles | None = None) -> SimulatedFiles:
    """Return a disk with `data` as a segment, beside the segments of `others`."""
    files = SimulatedFiles()
    if others is not None:
        for info in others.list(DIRECTORY):
            files.put(info.path, others.read(info.path))
    files.put(segment_path(DIRECTORY, sequence), data)
    return files
