"""Making lookup files in the background, and removing those that nobody needs.

    readers --note_cost--> Lookups --take_worth--> a round: remove what is of no fragment, make what pays, in its bound

A round knows from METADATA which fragments there are; what lies in the directory of lookup files and is of none of them
goes. What cannot be made is told to the log of the process and left: whoever reads rows has the fragment.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

import pyarrow as pa

from ebla.errors import EblaError
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.order import common_prefix_length
from ebla.storage.fragment.fragment_reader import Fragment
from ebla.storage.fragment.open_fragments import OpenFragments
from ebla.storage.lookup.lookup_format import DIRECTORY, lookup_path
from ebla.storage.lookup.lookup_policy import Held, who_goes
from ebla.storage.lookup.lookup_writer import write_lookup
from ebla.storage.lookup.row_encoding import can_encode
from ebla.storage.record.records import ERASED, FAMILY, QUALIFIER, ROW, SET, TIMESTAMP, TXN, value_names
from ebla.tablet.tables.table_state import TableState
from ebla.threads.worker import Worker

__all__ = ["LookupMaker", "heirs"]

_log = logging.getLogger(__name__)

# About so many bytes of blocks are read at a time.
PORTION_BYTES = 4 << 20
# What a record takes in a lookup file beyond its values, about.
OVERHEAD_BYTES = 64


# The table and the group of a fragment.
Owner: TypeAlias = tuple[str, int]


class LookupMaker:
    """Makes and removes lookup files of all open tables. Safe to use from several threads."""

    def __init__(
        self, tables: Callable[[], list[TableState]], fragments: OpenFragments, bytes_max: int, *, at_once: bool
    ) -> None:
        """`at_once`: every fragment has one as soon as it can be made, whether it is read by row or not.

        Else those of groups that ask for it.
        """
        # Set once.
        self._tables = tables
        self._fragments = fragments
        self._lookups = fragments.lookups
        self._bytes_max = bytes_max
        self._at_once = at_once
        self._lock = threading.Lock()
        self._worker = Worker("ebla-lookup", lambda is_idle: self.round(), self._failed, doing="making lookup files")
        # Guarded by _lock.
        self._round = 0
        self._seen: list[tuple[str, str]] = []
        self._owners: dict[str, Owner] = {}  # the table and the group that each fragment was of
        self._held: dict[str, Held] = {}  # by fragment
        self._uses: Mapping[str, int] = {}
        self._never: set[str] = set()  # fragments that none can be made of, or for which there was no room
        # Written by whoever holds _lock, read by others.
        self.made_files = 0
        self.failures = 0

    def start(self) -> None:
        """Begin to work in the background, if there may be lookup files."""
        if self._lookups.files is not None:
            self._worker.start()

    def stop(self) -> None:
        """Stop working; one that is half made is left. Idempotent."""
        self._worker.stop()

    def stats(self) -> tuple[int, int]:
        """Return how many lookup files there are, and their bytes."""
        held = [*self._held.values()]
        return len(held), sum(one.bytes for one in held)

    def round(self) -> None:
        """Remove what is of no fragment, and make what is worth it."""
        if self._lookups.files is None:
            return
        with self._lock:
            self._round += 1
            tables = self._tables()
            seen = [(table.id, table.view.metadata.txnid) for table in tables]
            worth = self._lookups.take_worth()
            for file in self._lookups.take_removed() & self._held.keys():
                del self._held[file]
                worth.add(file)
            if seen == self._seen and not worth:
                return
            refs = {ref.file: (table, group, ref) for table in tables for group, ref in _fragments_of(table)}
            self._note_uses()
            if seen != self._seen:
                # Not history: nobody but who reads of old looks for rows in it.
                owners = {file: (table.id, group) for file, (table, group, ref) in refs.items() if not ref.history_txn}
                worth |= heirs(self._owners, owners, self._held.keys())
                self._remove_others(refs.keys())
                self._never &= refs.keys()
                self._owners, self._seen = owners, seen
            at_once = {file for file in self._owners.keys() & refs.keys() if self._at_once or _asks(*refs[file][:2])}
            wanted = worth | (at_once - self._never)
            for file in sorted(wanted & refs.keys() - self._held.keys()):
                if self._worker.is_stopping:
                    return
                table, _, ref = refs[file]
                self._make(table, ref)

    def _remove_others(self, fragments: Collection[str]) -> None:
        """Remove the files in the directory that are of none of these fragments; count those that are."""
        files = self._lookups.files
        assert files is not None
        of_path = {lookup_path(fragment): fragment for fragment in fragments}
        held: dict[str, Held] = {}
        for info in files.list(DIRECTORY):
            fragment = of_path.get(info.path)
            if fragment is None:
                with contextlib.suppress(OSError):  # the next round tries again
                    files.delete(info.path)
            else:
                held[fragment] = self._held.get(fragment, Held(info.size, self._round))
        gone = self._held.keys() - held.keys()
        if gone:
            self._lookups.forget(gone)
            self._never.clear()  # there may be room now
        self._held = held

    def _note_uses(self) -> None:
        uses = self._lookups.uses()
        for fragment, one in self._held.items():
            if uses.get(fragment, 0) != self._uses.get(fragment, 0):
                self._held[fragment] = Held(one.bytes, self._round)
        self._uses = uses

    def _make(self, table: TableState, ref: FragmentRef) -> None:
        files = self._lookups.files
        assert files is not None
        try:
            fragment = table.reader.fragment(ref)
            is_as_written = ref.schema_version >= table.view.schema.typed_since
            fields = _fields_of(fragment) if is_as_written else None
            expected = ref.rows * (fragment.record_bytes + OVERHEAD_BYTES)
            gone = None if fields is None else who_goes(self._held, expected, self._bytes_max, self._round)
            if fields is None or gone is None:
                self._never.add(ref.file)
                return
            for other in gone:
                self._remove(other)
            skip = common_prefix_length(fragment.footer.first, fragment.footer.last)
            written = write_lookup(files, ref.file, ref.bytes, self._portions(fragment, fields), fields, skip)
        except (_Stopped, EblaError, OSError, pa.ArrowException) as error:
            if not isinstance(error, _Stopped):
                self._never.add(ref.file)
                self._failed(error)
            return
        self._held[ref.file] = Held(written, self._round)
        self.made_files += 1
        self._lookups.look_for(ref.file, ref.bytes)

    def _remove(self, fragment: str) -> None:
        assert self._lookups.files is not None
        self._lookups.forget([fragment])
        del self._held[fragment]
        with contextlib.suppress(OSError):
            self._lookups.files.delete(lookup_path(fragment))

    def _portions(self, fragment: Fragment, fields: pa.Schema) -> Iterator[pa.Table]:
        """Yield the records of a fragment, a few megabytes at a time, past the cache."""
        blocks = len(fragment.block_rows)
        each = max(1, PORTION_BYTES // max(1, fragment.record_bytes * fragment.block_rows[0]))
        for begin in range(0, blocks, each):
            if self._worker.is_stopping:
                raise _Stopped
            yield fragment.read_blocks(begin, min(blocks, begin + each), [ROW, *fields.names])

    def _failed(self, error: Exception) -> None:
        _log.warning("a lookup file was not made: %s", error)
        self.failures += 1


def heirs(before: Mapping[str, Owner], after: Mapping[str, Owner], held: Collection[str]) -> set[str]:
    """Return the fragments that came in the place of others with lookup files: their rows are read one by one, too.

    `before` and `after` say of which table and group each fragment is.
    """
    bereft = {before[file] for file in held if file in before and file not in after}
    return {file for file, owner in after.items() if owner in bereft and file not in before}


def _fragments_of(table: TableState) -> Iterator[tuple[int, FragmentRef]]:
    for tablet in table.view.metadata.tablets:
        for state in tablet.groups:
            for ref in state.fragments:
                yield state.group, ref


def _asks(table: TableState, group: int) -> bool:
    return table.view.schema.group_by_id[group].lookup_at_once


def _fields_of(fragment: Fragment) -> pa.Schema | None:
    """Return the columns that records of a fragment have besides their row, values last; None if one cannot be."""
    held = fragment.read_blocks(0, 1, [name for name in fragment.names if name != ROW and not name.startswith("key:")])
    order = [name for name in (FAMILY, QUALIFIER, TIMESTAMP, TXN, ERASED, SET) if name in held.schema.names]
    fields = pa.schema([held.schema.field(name) for name in [*order, *value_names(held)]])
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in fields]
    return fields if all(map(can_encode, kinds)) else None


class _Stopped(Exception):
    """The store is being closed."""
