"""The METADATA of one table, as a value: its schema, and its tablets with the fragments that hold their rows.

    TableMetadata
    |-- schema
    `-- tablets, by first row          [b"", "g")    ["g", "p")    ["p", None)
          |-- who leads it, at which epoch, whose log has its unflushed writes
          `-- per group: fragment references, range erasures, how far the log is flushed, how far back history reaches

Values are never changed: a change makes a new one that shares all it did not touch.

Invariants (`check`): the tablets' ranges cover every row, with no hole and no overlap; ids are unique; every group
belongs to the schema; every reference overlaps its tablet.

The **checksum** of a value is the sum of the hashes of its parts, so that a change recomputes only what it touched. Two
servers that applied the same changes compare checksums instead of values.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any

import msgspec
import xxhash

from ebla.metadata.values.tablet_metadata import (
    FormerGroup,
    FragmentRef,
    GroupState,
    InvalidMetadata,
    JoinPlan,
    LogEnd,
    RangeErasure,
    Replica,
    SplitPlan,
    TabletMetadata,
    check_tablet,
)
from ebla.model.ranges import KeyRange
from ebla.model.schema import TableSchema, encode_hook

__all__ = [
    "FormerGroup",
    "FragmentRef",
    "GroupState",
    "InvalidMetadata",
    "JoinPlan",
    "LogEnd",
    "RangeErasure",
    "ReplacedTablet",
    "Replica",
    "Retired",
    "SplitPlan",
    "StreamBatch",
    "TableMetadata",
    "TabletMetadata",
    "check_tablet",
    "initial_metadata",
]

_CHECKSUM_MASK = (1 << 64) - 1
# A row is looked for among the first rows of every eighth tablet, then among the eight that follow it.
_GUIDE_STEP = 8

_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_first_of = attrgetter("first")
_shared_numbers: tuple[int, ...] = ()


class Retired(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tablet that became others. The log may still name it, at `txn` or before; all of that is in fragments."""

    tablet: str
    txn: int
    log: str | None = None  # which log that is; None: that of the store, as older versions wrote it
    is_elsewhere: bool = False  # it had changed hands: logs of other servers may name it, too


class ReplacedTablet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tablet that was not created in time and gave way to another. These servers may have something of it yet."""

    tablet: str
    servers: tuple[str, ...] = ()


class StreamBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest batch of a stream that was written into a table, and the txn from which on it is seen."""

    app: str
    batch: int
    txn: int


class TableMetadata(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """A table at one METADATA transaction."""

    table_id: str
    txnid: str
    sequence: int  # how many transactions have led here, this one included
    schema: TableSchema
    tablets: tuple[TabletMetadata, ...]
    jobs: tuple[tuple[str, int], ...] = ()  # the latest bulk jobs that were applied and their txns, oldest first
    retired: tuple[Retired, ...] = ()  # tablets that are gone and that the log may still name
    is_fixed: bool = False  # its tablets are never split or joined
    replaced: tuple[ReplacedTablet, ...] = ()  # tablets that must not come back
    streams: tuple[StreamBatch, ...] = ()  # how far streams into the table have come, the one written last at the end
    created_txn: int = 0  # before it there was no such table; 0: not known, as older versions made it
    former: tuple[TableSchema, ...] = ()  # earlier versions of the schema that rows may still come under, oldest first

    def tablet_for(self, row: bytes) -> TabletMetadata:
        """Return the tablet that `row` belongs to."""
        return self.tablets[self._position_for(row)]

    def tablet_before(self, row: bytes | None) -> TabletMetadata:
        """Return the last tablet that has rows before `row`, which is not empty; None is past every row."""
        return self.tablets[-1 if row is None else bisect_left(self.tablets, row, key=_first_of) - 1]

    def overlapping(self, range: KeyRange) -> tuple[TabletMetadata, ...]:
        """Return the tablets that have rows in `range`, in order."""
        if range.is_empty:
            return ()
        begin = self._position_for(range.first)
        end = len(self.tablets) if range.last is None else begin + 1
        if end < len(self.tablets) and range.last is not None and self.tablets[end].first < range.last:
            end = bisect_left(self.tablets, range.last, end, key=_first_of)
        return self.tablets[begin:end]

    def _position_for(self, row: bytes) -> int:
        count = len(self.tablets)
        end = count if count <= _GUIDE_STEP else bisect_right(self._guide, row) * _GUIDE_STEP
        begin = end - _GUIDE_STEP if end > _GUIDE_STEP else 0
        found = bisect_right(self.tablets, row, begin, end if end < count else count, key=_first_of)
        # Not below 0, which would be the last tablet: the first may begin late if METADATA is damaged.
        return found - 1 if found else 0

    def by_id(self, tablet: str) -> TabletMetadata | None:
        """Return the tablet of that id, or None."""
        position = self._positions.get(tablet)
        return None if position is None else self.tablets[position]

    def position(self, tablet: str) -> int | None:
        """Return the place of the tablet of that id among the tablets, or None."""
        return self._positions.get(tablet)

    def files(self) -> Iterator[str]:
        """Yield the file of every fragment reference; one that several tablets share comes several times."""
        for tablet in self.tablets:
            for state in tablet.groups:
                for fragment in state.fragments:
                    yield fragment.file

    def job_txn(self, job: str) -> int | None:
        """Return the txn at which a bulk job was applied; None if it is not on record."""
        return next((txn for done, txn in reversed(self.jobs) if done == job), None)

    def stream_batch(self, app: str) -> StreamBatch | None:
        """Return the newest batch that was applied of a stream; None if it is not on record."""
        return next((known for known in self.streams if known.app == app), None)

    @property
    def newest_txn(self) -> int:
        """The newest txn of anything that it knows of: fragments, range erasures, bulk jobs, creation; 0 if none."""
        states = [state for tablet in self.tablets for state in tablet.groups]
        fragments = (fragment.txn_max for state in states for fragment in state.fragments)
        erasures = (erasure.txn for state in states for erasure in state.erasures)
        return max(self.newest_job_txn, self.created_txn, max(fragments, default=0), max(erasures, default=0))

    @property
    def newest_job_txn(self) -> int:
        """The txn of the newest bulk job or batch of a stream, 0 if there was none."""
        return max(self.jobs[-1][1] if self.jobs else 0, self.streams[-1].txn if self.streams else 0)

    @property
    def checksum(self) -> int:
        """A 64-bit sum over everything in the value."""
        return (self._head_hash + self._schema_hash + self._tablets_hash) & _CHECKSUM_MASK

    def trust(self, checksum: int) -> None:
        """Take the checksum that was saved with the value, of which every byte is known to be what was written.

        So a table of many tablets is loaded without writing each of them again, to see what it would be.
        """
        self.__dict__["_tablets_hash"] = (checksum - self._head_hash - self._schema_hash) & _CHECKSUM_MASK

    @property
    def _head_hash(self) -> int:
        life = (self.jobs, self.retired, self.is_fixed, self.replaced, self.streams, self.created_txn, self.former)
        return _hash((self.table_id, self.txnid, self.sequence, *life))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return dict(zip((tablet.id for tablet in self.tablets), _numbers(len(self.tablets)), strict=False))

    @cached_property
    def _guide(self) -> list[bytes]:
        """The first row of every eighth tablet: rows are compared with these before any tablet is looked at."""
        return [tablet.first for tablet in self.tablets[::_GUIDE_STEP]]

    @cached_property
    def _schema_hash(self) -> int:
        return _hash(self.schema)

    @cached_property
    def _tablets_hash(self) -> int:
        return sum(map(_hash, self.tablets)) & _CHECKSUM_MASK

    def with_tablets(self, changed: Iterable[TabletMetadata]) -> TableMetadata:
        """Return the table with some tablets replaced by others of the same ids and ranges, which are checked."""
        touched: set[int] | None = self.__dict__.get("_touched")
        if touched is not None:
            tablets = [*self.tablets]
            for tablet in changed:
                position = self._positions[tablet.id]
                tablets[position] = tablet
                touched.add(position)
            table = msgspec.structs.replace(self, tablets=tuple(tablets))
            table.__dict__.update(self.__dict__)
            return table
        table = self._exchanged(((one.id, one) for one in changed), "its range must not change here")
        table.__dict__.update({**self.__dict__, **table.__dict__})
        return table

    def _exchanged(self, exchanged: Iterable[tuple[str, TabletMetadata]], other_range: str) -> TableMetadata:
        """Return the table with some tablets, by id, replaced by others, which are checked."""
        tablets = [*self.tablets]
        tablets_hash = self._tablets_hash
        for former_id, tablet in exchanged:
            position = self._positions[former_id]
            former = tablets[position]
            if (former.first, former.last) != (tablet.first, tablet.last):
                raise InvalidMetadata(f"tablet {tablet.id}: {other_range}")
            check_tablet(tablet, self.schema)
            tablets[position] = tablet
            tablets_hash += _hash(tablet) - _hash(former)
        return self._hashed(tablets, tablets_hash)

    def _hashed(self, tablets: Iterable[TabletMetadata], tablets_hash: int) -> TableMetadata:
        table = msgspec.structs.replace(self, tablets=tuple(tablets))
        table.__dict__.update(_schema_hash=self._schema_hash, _tablets_hash=tablets_hash & _CHECKSUM_MASK)
        return table

    def unchecked(self) -> TableMetadata:
        """Return the same table for changes that were all made before, and checked then; `rechecked` ends the series.

        Tablets are not checked meanwhile, and their hashes not kept.
        """
        table = msgspec.structs.replace(self)
        kept = {name: value for name, value in self.__dict__.items() if name != "_tablets_hash"}
        table.__dict__.update(kept, _touched=set())
        return table

    def rechecked(self, base: TableMetadata) -> TableMetadata:
        """Return the table as it is after a series of changes to `base`, with the hashes of what they touched.

        The caller compares the checksum with the one that was saved: if it is the same, so is the table.
        """
        known = dict(self.__dict__)
        touched = known.pop("_touched", None)
        if touched is not None:  # else a change has replaced tablets by others, and began anew
            changed = sum(_hash(self.tablets[at]) - _hash(base.tablets[at]) for at in touched)
            known["_tablets_hash"] = (base._tablets_hash + changed) & _CHECKSUM_MASK
        table = msgspec.structs.replace(self)
        table.__dict__.update(known)
        return table

    def with_recut(self, gone: Sequence[str], new: Sequence[TabletMetadata]) -> TableMetadata:
        """Return the table with tablets that lie side by side replaced by others that cover the same rows.

        What is new is checked, in itself and against its neighbours, so that no hole and no overlap can come about.
        """
        at = self._positions[gone[0]]
        former = self.tablets[at : at + len(gone)]
        if [tablet.id for tablet in former] != [*gone]:
            raise InvalidMetadata(f"the tablets {', '.join(gone)} do not lie side by side")
        kept = len(self.tablets) - len(gone)
        if len({tablet.id for tablet in new}) != len(new) or any(
            self._positions.get(tablet.id, at) not in range(at, at + len(gone)) for tablet in new
        ):
            raise InvalidMetadata(f"table {self.table_id}: two tablets have the same id")
        if new[0].first != former[0].first or new[-1].last != former[-1].last:
            raise InvalidMetadata(f"the tablets in the place of {', '.join(gone)} do not cover the same rows")
        _check_side_by_side(new)
        for tablet in new:
            check_tablet(tablet, self.schema)
        tablets = (*self.tablets[:at], *new, *self.tablets[at + len(gone) :])
        assert len(tablets) == kept + len(new)
        return self._hashed(tablets, self._tablets_hash + sum(map(_hash, new)) - sum(map(_hash, former)))

    def with_swapped(self, swaps: Iterable[tuple[str, TabletMetadata]]) -> TableMetadata:
        """Return the table with some tablets, by id, replaced by others of new ids and the same ranges."""
        table = self._exchanged(swaps, "it takes the place of one with another range")
        if len(table._positions) != len(table.tablets):
            raise InvalidMetadata(f"table {self.table_id}: two tablets have the same id")
        return table

    def _same_tablets(self, **other: Any) -> TableMetadata:
        """Return the table with something else than tablets and schema replaced, and what was found out of those."""
        table = msgspec.structs.replace(self, **other)
        table.__dict__.update(self.__dict__)
        return table

    def with_replaced(self, replaced: tuple[ReplacedTablet, ...]) -> TableMetadata:
        """Return the same table with another record of tablets that gave way to others."""
        return self._same_tablets(replaced=replaced)

    def with_retired(self, retired: tuple[Retired, ...]) -> TableMetadata:
        """Return the same table with another record of tablets that are gone."""
        return self._same_tablets(retired=retired)

    def with_schema(self, schema: TableSchema, tablets: Iterable[TabletMetadata]) -> TableMetadata:
        """Return the table under another schema, its tablets with the same ids and ranges in the new groups."""
        schema.check()
        table = msgspec.structs.replace(self, schema=schema, tablets=tuple(tablets))
        table.check()
        return table

    def with_former(self, former: tuple[TableSchema, ...]) -> TableMetadata:
        """Return the same table with other earlier versions of its schema."""
        return self._same_tablets(former=former)

    def with_txnid(self, txnid: str, sequence: int) -> TableMetadata:
        """Return the same table as the outcome of another transaction."""
        return self._same_tablets(txnid=txnid, sequence=sequence)

    def with_jobs(self, jobs: tuple[tuple[str, int], ...]) -> TableMetadata:
        """Return the same table with another record of bulk jobs."""
        return self._same_tablets(jobs=jobs)

    @property
    def is_searchable(self) -> bool:
        """Whether tablets can be found by id and row, though other invariants may not hold."""
        firsts = [tablet.first for tablet in self.tablets]
        return bool(firsts) and len(self._positions) == len(firsts) and firsts == sorted(firsts)

    def with_streams(self, streams: tuple[StreamBatch, ...]) -> TableMetadata:
        """Return the same table with another record of streams."""
        return self._same_tablets(streams=streams)

    def check(self) -> None:
        """Raise `InvalidMetadata` unless all of the invariants hold."""
        if not self.table_id or not self.txnid or self.sequence < 0:
            raise InvalidMetadata("a table needs an id, and a transaction that made it")
        if not self.tablets:
            raise InvalidMetadata(f"table {self.table_id} has no tablet")
        if len(self._positions) != len(self.tablets):
            raise InvalidMetadata(f"table {self.table_id}: two tablets have the same id")
        if self.tablets[0].first != b"":
            raise InvalidMetadata(f"table {self.table_id}: no tablet holds the rows before {self.tablets[0].first!r}")
        _check_side_by_side(self.tablets)
        if self.tablets[-1].last is not None:
            raise InvalidMetadata(f"table {self.table_id}: no tablet holds the rows from {self.tablets[-1].last!r} on")
        for tablet in self.tablets:
            check_tablet(tablet, self.schema)


def _check_side_by_side(tablets: Sequence[TabletMetadata]) -> None:
    for tablet, following in pairwise(tablets):
        if tablet.last is None or tablet.last > following.first:
            raise InvalidMetadata(f"tablets {tablet.id} and {following.id} overlap")
        if tablet.last < following.first:
            raise InvalidMetadata(f"there is a hole between the tablets {tablet.id} and {following.id}")


def _numbers(count: int) -> tuple[int, ...]:
    """Return the numbers from 0 on, at least `count` of them; all tables share them."""
    global _shared_numbers
    numbers = _shared_numbers
    if len(numbers) < count:
        # Others may do the same at this moment: then there are two such tuples for a while, and no harm is done.
        numbers = _shared_numbers = tuple(range(1 << (count - 1).bit_length()))
    return numbers


def _hash(value: Any) -> int:
    return xxhash.xxh3_64_intdigest(_encoder.encode(value))


def initial_metadata(
    table_id: str,
    schema: TableSchema,
    tablet_ids: Sequence[str],
    splits: Sequence[bytes] = (),
    *,
    leader: str | None = None,
    log: str | None = None,
    state: str = "running",
    is_fixed: bool = False,
    replicas: int = 1,
) -> TableMetadata:
    """Return a new table, cut at the encoded rows `splits`, with one tablet more than splits and no data.

    Its txnid is given to it when it is created. Raises `InvalidMetadata` if the splits are not strictly ascending.
    """
    if len(tablet_ids) != len(splits) + 1:
        raise InvalidMetadata(f"{len(splits)} splits make {len(splits) + 1} tablets, not {len(tablet_ids)}")
    groups = tuple(GroupState(group) for group in sorted(schema.group_by_id))
    bounds: list[bytes | None] = [*splits, None]
    firsts = [b"", *splits]
    tablets = tuple(
        TabletMetadata(tablet_id, first, last, state, 1, leader, (), log, groups, wanted=replicas, counted=replicas)
        for tablet_id, first, last in zip(tablet_ids, firsts, bounds, strict=True)
    )
    metadata = TableMetadata(table_id, "new", 0, schema, tablets, is_fixed=is_fixed)
    metadata.check()
    return metadata
