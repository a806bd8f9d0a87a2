"""METADATA transactions on disk: ``metadata/<table id>/<txnid>.meta``.

    snapshot c01d <--base-- change 77aa <--base-- change 03f1 <--base-- snapshot e9b0 <--base-- change 5c5c (current)
                                                                        `---------------- load reads these ----------'

A transaction id is random and never used again, so a file is made under its own name, written, synced, and its
directory synced. Only then may the coordination service be told that the id is current: a torn file is never referred
to. Every file has the checksum of the metadata that it leads to, and `load` compares.

`prune` removes what nobody can need: transactions older than the last two snapshots, and aborted ones. It goes by the
sequence number. A transaction that is not an ancestor of the current one, and does not come after it, was built on a
base that is current no more; its compare-and-set cannot succeed any more.

A table that is being made has a file ``creating`` beside its first transaction, until the catalog has it. So METADATA
that a killed creation left is told from that of a table that the catalog has lost.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from ebla.errors import Corruption, EblaError, MissingFile, StoreError, TooManyFiles
from ebla.metadata.values.changes import Change, RequirementFailed, apply
from ebla.metadata.values.table_metadata import InvalidMetadata, TableMetadata
from ebla.metadata.values.transaction_file import (
    SNAPSHOTS_KEPT,
    ChangeRecord,
    Record,
    SnapshotRecord,
    check_bytes,
    decode,
    encode,
    is_among,
    is_snapshot,
    leads_to,
    make_record,
)
from ebla.storage.files.files import Files, parent_of

__all__ = ["CREATING", "DIRECTORY", "MetadataNotSaved", "MetadataStore"]

DIRECTORY = "metadata"
CREATING = "creating"
_SUFFIX = ".meta"
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

_log = logging.getLogger(__name__)


class _Header(NamedTuple):
    """What of a transaction says whether it may be pruned."""

    base: str | None
    sequence: int
    is_snapshot: bool


class MetadataNotSaved(StoreError):
    """A METADATA transaction could not be written, as on a full disk. Nothing was changed."""


class MetadataStore:
    """The METADATA files of one server. Safe to use from several threads."""

    def __init__(self, files: Files, snapshot_every: int = 32) -> None:
        """Keep the files in ``metadata/`` of `files`, with a snapshot in every `snapshot_every` transactions."""
        if snapshot_every < 1:
            raise ValueError("snapshot_every is at least 1")
        self._files = files
        self.snapshot_every = snapshot_every
        # Of files that were written or read here, by path; they never change. So pruning reads few of them again.
        self._headers: dict[str, _Header] = {}
        self.written = 0  # transactions; for metrics, and about right if several threads write at the same moment

    def is_snapshot(self, metadata: TableMetadata) -> bool:
        """Whether a transaction with this outcome is saved as a snapshot."""
        return is_snapshot(metadata.sequence, self.snapshot_every)

    def announce(self, table_id: str, *, has_files: bool) -> None:
        """Mark a table as one that is being made, before its first transaction is saved.

        The mark is durable with the first transaction; before it if that names files, which are more to lose.
        """
        path = f"{DIRECTORY}/{table_id}/{CREATING}"
        try:
            self._files.make_directory(parent_of(path))
            with contextlib.suppress(FileExistsError):  # of an attempt before
                self._files.create(path).close()
            if has_files:
                self._files.sync_directory(parent_of(path))
        except TooManyFiles:
            raise
        except OSError as error:
            raise _not_saved(path, error) from error

    def announced(self, table_id: str) -> None:
        """Take the mark away again: the catalog has the table, or never will. Failing to do so does no harm."""
        with contextlib.suppress(OSError):
            self._files.delete(f"{DIRECTORY}/{table_id}/{CREATING}")

    def save(
        self, base: TableMetadata | None, metadata: TableMetadata, changes: Sequence[Change], *, whole: bool = False
    ) -> None:
        """Make the transaction that leads from `base` to `metadata` by `changes` durable. It is not current yet.

        `whole` if more than the changes leads there: it is saved as a snapshot.
        """
        base_txnid = None if base is None else base.txnid
        record = make_record(base_txnid, metadata, changes, snapshot=whole or self.is_snapshot(metadata))
        path = _path(metadata.table_id, metadata.txnid)
        self._headers[path] = _header_of(record)  # first: who prunes meanwhile must not read half a file
        try:
            self.write(metadata.table_id, metadata.txnid, encode(record))
        except BaseException:
            self._headers.pop(path, None)
            raise

    def write(self, table_id: str, txnid: str, content: bytes) -> None:
        """Make the file of a transaction durable; `MetadataNotSaved` or `TooManyFiles`, and no file, if that fails."""
        path = _path(table_id, txnid)
        try:
            self._files.make_directory(parent_of(path))
            file = self._files.create(path)
        except FileExistsError as error:  # it is somebody else's and stays
            raise MetadataNotSaved(f"{path} is there already: transaction ids must never come twice") from error
        except TooManyFiles:
            raise
        except OSError as error:
            raise _not_saved(path, error) from error
        try:
            with file:
                file.write(content)
                file.sync()
            self._files.sync_directory(parent_of(path))
            self.written += 1
        except OSError as error:
            self.discard(table_id, txnid)
            if isinstance(error, TooManyFiles):
                raise
            raise _not_saved(path, error) from error

    def intact(self, table_id: str) -> tuple[list[Record], list[str]]:
        """Read all files of a table: return the transactions in them, and the ids of those that are damaged."""
        records, damaged = [], []
        for info in self._files.list(f"{DIRECTORY}/{table_id}"):
            if info.path.endswith(_SUFFIX):
                txnid = info.path.rpartition("/")[2].removesuffix(_SUFFIX)
                try:
                    records.append(self.record(table_id, txnid))
                except (Corruption, MissingFile) as error:
                    _log.warning("%s", error)
                    damaged.append(txnid)
        return records, damaged

    def discard(self, table_id: str, txnid: str) -> None:
        """Remove the file of a transaction that certainly was not committed. Failing to do so does no harm."""
        path = _path(table_id, txnid)
        self._headers.pop(path, None)
        with contextlib.suppress(OSError):
            self._files.delete(path)

    def set_aside(self, table_id: str, txnid: str) -> None:
        """Give a damaged file another name, under which nobody looks for it: it may be all that is left of it."""
        path = _path(table_id, txnid)
        self._headers.pop(path, None)
        with contextlib.suppress(OSError):
            self._files.replace(path, f"{path}.damaged")

    def remove_table(self, table_id: str) -> int:
        """Remove all transactions of a table that is gone for good, and return how many there were. Errors keep."""
        removed = 0
        for info in self._files.list(f"{DIRECTORY}/{table_id}"):
            if info.path.endswith(_SUFFIX):
                try:
                    self._files.delete(info.path)
                except OSError as error:
                    _log.warning("keeping %s: %s", info.path, error)
                    continue
                self._headers.pop(info.path, None)
                removed += 1
        return removed

    def load(self, table_id: str, txnid: str, known: TableMetadata | None = None) -> TableMetadata:
        """Return the metadata after the transaction `txnid`, from its snapshot or from `known`, if that is nearer.

        `MissingFile` or `Corruption`, naming the file, if it cannot be had; `SchemaError` if its schema cannot be.
        """
        if known is not None and txnid == known.txnid:
            return known
        changes: list[ChangeRecord] = []
        metadata = None
        for record in self.history(table_id, txnid):
            if isinstance(record, SnapshotRecord):
                metadata = self._outcome(record, record.metadata)
                break
            changes.append(record)
            if known is not None and record.base == known.txnid:
                metadata = known
                break
        assert metadata is not None  # a history ends with a snapshot or an error
        if len(changes) > 1:
            at_once = _all_at_once(metadata, changes)
            if at_once is not None:
                return at_once
        for record in reversed(changes):
            try:
                metadata = self._outcome(record, apply(metadata, record.changes, record.txnid))
            except (RequirementFailed, InvalidMetadata) as error:
                reason = f"its changes do not fit its base: {error}"
                raise Corruption(_path(table_id, record.txnid), reason) from error
        return metadata

    def load_anyway(self, table_id: str, txnid: str) -> tuple[TableMetadata, str]:
        """Return what a transaction says even if it breaks the invariants, and what is wrong with it as a whole.

        For those who verify and repair. `MissingFile` or `Corruption` if its files themselves cannot be read.
        """
        changes: list[ChangeRecord] = []
        for record in self.history(table_id, txnid):
            if isinstance(record, SnapshotRecord):
                metadata = msgspec.structs.replace(record.metadata)  # a copy that trusts no checksum
                break
            changes.append(record)
        problem = ""
        if record.checksum is not None and metadata.checksum != record.checksum:
            problem = "the metadata has another checksum than was saved"
        for change in reversed(changes):
            try:
                metadata = apply(metadata, change.changes, change.txnid)
            except (RequirementFailed, InvalidMetadata) as error:
                reason = f"its changes do not fit its base: {error}"
                raise Corruption(_path(table_id, change.txnid), reason) from error
            if change.checksum is not None and metadata.checksum != change.checksum and not problem:
                problem = "the metadata has another checksum than was saved"
        return metadata, problem

    def _outcome(self, record: Record, metadata: TableMetadata) -> TableMetadata:
        path = _path(record.table_id, record.txnid)
        if not leads_to(record, metadata):
            raise Corruption(path, "the metadata that it leads to has another checksum")
        if isinstance(record, SnapshotRecord):
            metadata.schema.check()  # that of a change was checked when it was applied
            try:
                metadata.check()
            except InvalidMetadata as error:
                raise Corruption(path, str(error)) from error
        return metadata

    def history(self, table_id: str, txnid: str) -> Iterator[Record]:
        """Yield a transaction and its ancestors, newest first, down to the first one.

        Raises `MissingFile` at the first one that was pruned, or is missing: ask for no more than is needed.
        """
        expected: int | None = None
        base: str | None = txnid
        while base is not None:
            record = self.record(table_id, base)
            # The numbers go down one by one, so that the walk ends even if damage made a ring of it.
            if expected is not None and record.sequence != expected:
                raise Corruption(_path(table_id, base), f"it should be transaction {expected}, not {record.sequence}")
            yield record
            expected = record.sequence - 1
            base = record.base

    def record(self, table_id: str, txnid: str) -> Record:
        """Read the file of one transaction."""
        path = _path(table_id, txnid)
        record = decode(self._content(path), path)
        if (record.table_id, record.txnid) != (table_id, txnid):
            raise Corruption(path, f"it holds transaction {record.txnid} of table {record.table_id}")
        self._headers[path] = _header_of(record)
        return record

    def _content(self, path: str) -> bytes:
        try:
            return self._files.read(path)
        except FileNotFoundError:
            raise MissingFile(f"{path} is missing: METADATA refers to it; restore it from a backup") from None
        except TooManyFiles:
            raise
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error}") from error

    def _whole(self, table_id: str, txnid: str) -> _Header:
        """Return what is known of a transaction whose file is read, and found whole."""
        path = _path(table_id, txnid)
        known = self._headers.get(path)
        if known is None:
            return _header_of(self.record(table_id, txnid))
        check_bytes(self._content(path), path)
        return known

    def _header(self, table_id: str, txnid: str) -> _Header:
        """Return what is known of a transaction, or read it."""
        return self._headers.get(_path(table_id, txnid)) or _header_of(self.record(table_id, txnid))

    def is_ancestor(self, metadata: TableMetadata, current_txnid: str) -> bool:
        """Whether the transaction that led to `metadata` is the current one or an ancestor of it.

        Raises `MissingFile` or `Corruption` if that cannot be told.
        """
        return is_among(self.history(metadata.table_id, current_txnid), metadata) or False

    def _needed(self, table_id: str, current_txnid: str) -> set[str]:
        """Return the current transaction and its ancestors down to the last snapshot that is kept.

        What the current one is loaded from is read; if it cannot be, this is no time to remove anything.
        """
        kept: set[str] = set()
        base: str | None = current_txnid
        snapshots = 0
        while base is not None and not snapshots:
            header = self._whole(table_id, base)
            if base in kept:
                raise Corruption(_path(table_id, base), "it is an ancestor of itself")
            kept.add(base)
            snapshots += header.is_snapshot
            base = header.base
        with contextlib.suppress(MissingFile):
            while base is not None and snapshots < SNAPSHOTS_KEPT:
                header = self._header(table_id, base)
                kept.add(base)
                snapshots += header.is_snapshot
                base = header.base
        return kept

    def prune(self, table_id: str, current_txnid: str) -> list[str]:
        """Remove the transactions that nobody can need now that `current_txnid` is committed; return their ids."""
        kept = self._needed(table_id, current_txnid)
        current = self._header(table_id, current_txnid)
        removed = []
        for info in self._files.list(f"{DIRECTORY}/{table_id}"):
            txnid = info.path.rpartition("/")[2].removesuffix(_SUFFIX)
            if txnid in kept or not info.path.endswith(_SUFFIX):
                continue
            try:
                if self._header(table_id, txnid).sequence > current.sequence:
                    continue
                self._files.delete(info.path)
                removed.append(txnid)
            except (FileNotFoundError, MissingFile):
                pass  # somebody else has removed it
            except (EblaError, OSError) as error:
                _log.warning("keeping %s: %s", info.path, error)
                continue
            self._headers.pop(info.path, None)
        return removed


def _all_at_once(base: TableMetadata, changes: Sequence[ChangeRecord]) -> TableMetadata | None:
    """Return the outcome of changes, newest first, if it is the one that was saved; None if each has to be looked at.

    What comes out in the end has the checksum of what was checked when the changes were made: so it is the same value,
    and what lay between need not be checked again.
    """
    metadata = base.unchecked()
    try:
        for record in reversed(changes):
            metadata = apply(metadata, record.changes, record.txnid)
    except (EblaError, LookupError):
        return None
    metadata = metadata.rechecked(base)
    newest = changes[0]
    return metadata if newest.checksum is not None and leads_to(newest, metadata) else None


def _header_of(record: Record) -> _Header:
    return _Header(record.base, record.sequence, isinstance(record, SnapshotRecord))


def _not_saved(path: str, error: OSError) -> MetadataNotSaved:
    return MetadataNotSaved(f"{path} cannot be written: {error}: make room or repair the disk, then retry")


def _path(table_id: str, txnid: str) -> str:
    for part in (table_id, txnid):
        if not _ID.fullmatch(part):
            raise InvalidMetadata(f"{part!r} cannot be the id of a table or transaction")
    return f"{DIRECTORY}/{table_id}/{txnid}{_SUFFIX}"
