"""The bytes of a METADATA transaction: one file each, never changed, checked in every byte.

    offset  bytes
    0       8      "EBLAMETA"
    8       2      format version, 7; little endian like all numbers here
    10      1      kind: 1 a change, 2 a snapshot
    11      1      0
    12      8      length of the body
    20      4      crc32c of bytes 0 to 20 and of the body
    24      ...    the body, msgpack:
                     change      table id, base txnid, txnid, sequence, checksum of the outcome, changes, requests
                     snapshot    base txnid or nil, checksum, the whole metadata, requests

Both kinds say which transaction they follow (the base), so that the history of a table can be walked back, and which
requests they carried out, so that one that is repeated after a lost reply is found there instead of done again.

**Versions.** New fields of METADATA come last, with a default: an older file just ends earlier. The header and its crc
are the same in all versions, so that bytes are known to be whole before anybody asks what they mean. The checksum of
the outcome is another matter: it is made of the values as this version writes them, and says nothing about a file of an
older one: that of a change is left out (`None`). So whoever adds a field to a table, a tablet or what they consist
of raises `FORMAT_VERSION`, and adds a store of the new version to tests/metadata/stores. Changes may get fields without
that: they are no part of the outcome.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

import google_crc32c
import msgspec

from ebla.errors import Corruption, FormatTooNew
from ebla.metadata.values.changes import Change
from ebla.metadata.values.sharing import shared
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.model.schema import decode_hook, encode_hook

__all__ = [
    "SNAPSHOTS_KEPT",
    "ChangeRecord",
    "Record",
    "SnapshotRecord",
    "check_bytes",
    "decode",
    "encode",
    "is_among",
    "is_snapshot",
    "leads_to",
    "make_record",
]

MAGIC = b"EBLAMETA"
FORMAT_VERSION = 7
# So many snapshots are kept: the one that the current transaction is loaded from, and the one before it for those who
# have read an older current id and are about to load it, or look for their own transaction among the ancestors.
SNAPSHOTS_KEPT = 2

_FIELDS = struct.Struct("<8sHBBQ")
_CRC = struct.Struct("<I")
_HEADER_BYTES = _FIELDS.size + _CRC.size
_KIND_CHANGE = 1
_KIND_SNAPSHOT = 2


class ChangeRecord(msgspec.Struct, frozen=True, array_like=True):
    """A transaction as the changes that it made to its base."""

    table_id: str
    base: str
    txnid: str
    sequence: int
    checksum: int | None  # None: not known, as an older version wrote it
    changes: tuple[Change, ...]
    requests: tuple[str, ...] = ()


class SnapshotRecord(msgspec.Struct, frozen=True, array_like=True):
    """A transaction as its outcome; the first of a table has no base."""

    base: str | None
    checksum: int | None
    metadata: TableMetadata
    requests: tuple[str, ...] = ()

    @property
    def table_id(self) -> str:
        """The table that the transaction is of."""
        return self.metadata.table_id

    @property
    def txnid(self) -> str:
        """The id of the transaction."""
        return self.metadata.txnid

    @property
    def sequence(self) -> int:
        """The number of transactions that led here."""
        return self.metadata.sequence


Record: TypeAlias = ChangeRecord | SnapshotRecord


def is_snapshot(sequence: int, snapshot_every: int) -> bool:
    """Whether the transaction of that number is saved as a snapshot."""
    return (sequence - 1) % snapshot_every == 0


def make_record(
    base: str | None,
    metadata: TableMetadata,
    changes: Iterable[Change],
    requests: Iterable[str] = (),
    *,
    snapshot: bool,
) -> Record:
    """Return the record of the transaction that leads from `base` to `metadata`; the first is a snapshot."""
    checksum = metadata.checksum
    if base is None or snapshot:
        return SnapshotRecord(base, checksum, metadata, tuple(requests))
    return ChangeRecord(
        metadata.table_id, base, metadata.txnid, metadata.sequence, checksum, tuple(changes), tuple(requests)
    )


def is_among(ancestors: Iterable[Record], metadata: TableMetadata) -> bool | None:
    """Tell whether the transaction that led to `metadata` is one of these, newest first; None if they end too early."""
    for record in ancestors:
        if record.sequence <= metadata.sequence:
            return record.txnid == metadata.txnid
    return None


def leads_to(record: Record, metadata: TableMetadata) -> bool:
    """Tell whether a transaction says of itself that it leads to this metadata."""
    is_same = record.checksum is None or record.checksum == metadata.checksum
    return is_same and record.sequence == metadata.sequence


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_change_decoder = msgspec.msgpack.Decoder(ChangeRecord, dec_hook=decode_hook)
_tablet_decoder = msgspec.msgpack.Decoder(TabletMetadata)

# A snapshot whose tablets are not decoded yet.
_TableBytes = msgspec.defstruct(
    "_TableBytes",
    [
        (field.encode_name, list[msgspec.Raw] if field.name == "tablets" else field.type)
        if field.required
        else (field.encode_name, field.type, field.default)
        for field in msgspec.structs.fields(TableMetadata)
    ],
    array_like=True,
)


class _SnapshotBytes(msgspec.Struct, array_like=True):
    base: str | None
    checksum: int | None
    metadata: _TableBytes  # type: ignore[valid-type]
    requests: tuple[str, ...] = ()


_snapshot_decoder = msgspec.msgpack.Decoder(_SnapshotBytes, dec_hook=decode_hook)


def encode(record: Record) -> bytes:
    """Return the content of the file of a transaction."""
    kind = _KIND_CHANGE if isinstance(record, ChangeRecord) else _KIND_SNAPSHOT
    body = _encoder.encode(record)
    fields = _FIELDS.pack(MAGIC, FORMAT_VERSION, kind, 0, len(body))
    return b"".join((fields, _CRC.pack(_crc(fields, body)), body))


def check_bytes(content: bytes, file: str) -> tuple[int, int, bytes]:
    """Return version, kind and body of a file; `Corruption` that names `file` if a single bit differs."""
    if len(content) < _HEADER_BYTES:
        raise Corruption(file, f"{len(content)} bytes are too few for a METADATA file")
    fields, body = content[: _FIELDS.size], content[_HEADER_BYTES:]
    magic, version, kind, _, length = _FIELDS.unpack(fields)
    if magic != MAGIC:
        raise Corruption(file, "it is not a METADATA file", 0)
    if length != len(body):
        raise Corruption(file, f"the body has {len(body)} bytes and should have {length}", _HEADER_BYTES)
    if _CRC.unpack_from(content, _FIELDS.size) != (_crc(fields, body),):
        raise Corruption(file, "the checksum is wrong")
    return version, kind, body


def decode(content: bytes, file: str) -> Record:
    """Return what `encode` was given; `Corruption` that names `file` if a single bit differs."""
    version, kind, body = check_bytes(content, file)
    if version > FORMAT_VERSION:
        raise FormatTooNew(f"{file}: format {version} is newer than this version of Ebla, which knows {FORMAT_VERSION}")
    try:
        match kind:
            case 1:
                change = _change_decoder.decode(body)
                return change if version == FORMAT_VERSION else msgspec.structs.replace(change, checksum=None)
            case 2:
                snapshot = _decode_snapshot(body)
                if version != FORMAT_VERSION:
                    return msgspec.structs.replace(snapshot, checksum=snapshot.metadata.checksum)
                if snapshot.checksum is not None:
                    snapshot.metadata.trust(snapshot.checksum)
                return snapshot
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corruption(file, f"the body cannot be read: {error}", _HEADER_BYTES) from error
    raise Corruption(file, f"there is no kind {kind} of METADATA file", 10)


def _decode_snapshot(body: bytes) -> SnapshotRecord:
    """Decode a snapshot, its tablets one by one."""
    found = _snapshot_decoder.decode(body)
    fields = msgspec.structs.asdict(found.metadata)
    fields["tablets"] = tuple(shared(map(_tablet_decoder.decode, fields["tablets"])))
    return SnapshotRecord(found.base, found.checksum, TableMetadata(**fields), found.requests)


def _crc(fields: bytes, body: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(fields), body))
