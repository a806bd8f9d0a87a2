"""Metadata that was read shares what its tablets have in common, and is what was written all the same."""

from __future__ import annotations

import msgspec

from ebla.metadata.values.table_metadata import Replica, TableMetadata, initial_metadata
from ebla.metadata.values.transaction_file import SnapshotRecord, decode, encode
from tests.metadata.metadata_world import PROFILE, SCHEMA, fragment


def placed() -> TableMetadata:
    metadata = initial_metadata("t1", SCHEMA, ["a", "b", "c"], [b"row-g", b"row-p"], leader="server-1", log="server-1")
    tablets = [
        msgspec.structs.replace(tablet, replicas=(Replica("server-1", f"1{tablet.id}"), Replica("server-2", tablet.id)))
        for tablet in metadata.tablets
    ]
    state = tablets[1].group(PROFILE)
    state = msgspec.structs.replace(state, fragments=(fragment("f1", b"row-g", b"row-x", txn=1 << 40),))
    tablets[1] = tablets[1].with_group(state)
    return msgspec.structs.replace(metadata, tablets=tuple(tablets))


def test_what_is_read_is_equal_to_what_was_written_and_has_one_copy_of_each_value() -> None:
    written = placed()
    record = decode(encode(SnapshotRecord(None, written.checksum, written)), "file")
    assert isinstance(record, SnapshotRecord)
    read = record.metadata
    assert read == written
    assert read.checksum == written.checksum
    first, second, third = read.tablets
    assert first.state is third.state
    assert first.leader is third.leader is third.log is third.replicas[0].server
    assert first.replicas[1].server is third.replicas[1].server
    assert first.last is second.first
    assert second.last is third.first
    assert first.groups is third.groups
    (reference,) = second.group(PROFILE).fragments
    assert reference.first is second.first
    assert reference.txn_min is reference.txn_max


def test_hole_between_tablets_is_not_closed_by_sharing() -> None:
    """Damage must be found by the check, not repaired by accident."""
    written = placed()
    tablets = [*written.tablets]
    tablets[0] = msgspec.structs.replace(tablets[0], last=b"row-f")
    broken = msgspec.structs.replace(written, tablets=tuple(tablets))
    record = decode(encode(SnapshotRecord(None, broken.checksum, broken)), "file")
    assert isinstance(record, SnapshotRecord)
    assert record.metadata.tablets[0].last == b"row-f"
