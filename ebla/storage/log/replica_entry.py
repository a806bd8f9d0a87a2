"""Records of replicas in the log of a server: of tablets that it follows, and of those that it leads for others.

    payload    | u64 txn_min | u64 txn_max | u32 length | records | zeros |

What the records are, their writer knows (`ebla/replication/server_log.py`); the log needs the txns alone, by which it
tells which segments may go. Whoever replays commits passes over them.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from ebla.storage.files.files import BytesLike
from ebla.storage.log.log_format import ALIGNMENT_BYTES

__all__ = ["ReplicaEntry", "decode_replica_entry", "encode_replica_entry"]

_HEAD = struct.Struct("<QQI")


class ReplicaEntry(msgspec.Struct, frozen=True):
    """Records that are written together; `txn_max` is 0 if none of them has a commit."""

    txn_min: int
    txn_max: int
    records: bytes


def encode_replica_entry(entry: ReplicaEntry) -> list[BytesLike]:
    """Return the payload, as buffers to be written one after the other."""
    head = _HEAD.pack(entry.txn_min, entry.txn_max, len(entry.records))
    return [head, entry.records, bytes(-(len(head) + len(entry.records)) % ALIGNMENT_BYTES)]


def decode_replica_entry(payload: Any) -> ReplicaEntry:
    """Return what `payload` (a `pa.Buffer`) holds; `ValueError` if it is cut off."""
    view = memoryview(payload)
    if len(view) < _HEAD.size:
        raise ValueError("records of replicas without a head")
    txn_min, txn_max, length = _HEAD.unpack_from(view)
    if _HEAD.size + length > len(view):
        raise ValueError("records of replicas that are cut off")
    return ReplicaEntry(txn_min, txn_max, bytes(view[_HEAD.size : _HEAD.size + length]))
