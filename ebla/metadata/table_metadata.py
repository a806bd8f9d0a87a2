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
from typing import Any, TypeAlias

import msgspec
import xxhash

from ebla.errors import StoreError
from ebla.ranges import KeyRange
from ebla.schema import TableSchema, encode_hook

__all__ = [
    "FragmentRef",
    "GroupState",
    "InvalidMetadata",
    "JoinPlan",
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

# `FragmentRef` has a field called `bytes`, which hides the type inside the class.
RowBytes: TypeAlias = bytes

_CHECKSUM_MASK = (1 << 64) - 1
# A row is looked for among the first rows of every so many tablets, then among so many.
_GUIDE_STEP = 8

_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_first_of = attrgetter("first")
_counted = attrgetter("file", "columns", "families", "families_out", "clip")


class InvalidMetadata(StoreError):
    """Metadata that breaks an invariant. It is refused before it is saved."""


class FragmentRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fragment as one tablet and group sees it: the file, what is in it, and what of it counts."""

    file: str  # path below the root, fragments/<table id>/<id>.parquet
    rows: int
    bytes: int
    first: RowBytes  # the smallest and the largest row in the file, both included
    last: RowBytes
    txn_min: int
    txn_max: int
    schema_version: int
    txn: int | None = None  # of every record, for files without a _txn column
    unique: bool = False  # at most one record for each identity
    has_erasures: bool = False
    has_partial: bool = False
    columns: tuple[int, ...] | None = None  # only these field ids count, and its erasures for no other; None: all
    families: tuple[str, ...] | None = None  # only these families count; None: all
    tail_bytes: int = 0  # so many bytes at the end of the file are checked when it is opened; 0: none
    tail_crc: int = 0  # the crc32c of these
    clip: tuple[RowBytes, RowBytes | None] | None = None  # only rows in this range count; None: all of the tablet
    surplus: int = 0  # so many records are not the newest of their identity in the file
    topped: bool = False  # the newest record of a row sets all that older ones in the file do, down to an erasure
    settled_txn: int = 0  # what may go of the records up to here is gone from the file
    families_out: tuple[str, ...] = ()  # these families do not count
    renamed: tuple[tuple[str, str], ...] = ()  # families as they are called in the file, and now

    @property
    def is_restricted(self) -> bool:
        """Whether not all of the file counts as it lies there."""
        return bool(self.columns is not None or self.families is not None or self.families_out or self.renamed)

    def within(self, rows: KeyRange) -> KeyRange | None:
        """Return the part of `rows` in which records of the file count; None if there is none."""
        return rows if self.clip is None else rows.intersect(KeyRange(*self.clip))

    def may_have_rows_in(self, rows: KeyRange) -> bool:
        """Tell whether some record of the file may count in `rows`."""
        counted = self.within(rows)
        return (
            counted is not None and self.last >= counted.first and (counted.last is None or self.first < counted.last)
        )


class RangeErasure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Hides every record of a row in [first, last) with a smaller txn."""

    first: bytes
    last: bytes | None
    txn: int


class GroupState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one tablet keeps of one group."""

    group: int
    fragments: tuple[FragmentRef, ...] = ()
    erasures: tuple[RangeErasure, ...] = ()
    flushed: int = 0  # the highest log index whose records are in fragments; 0: none
    floor_txn: int = 0  # reads below this txn are refused: what they need may be gone


class Replica(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A server that keeps a copy of a tablet's log, by an assignment with an id of its own."""

    server: str
    assignment_id: str


class SplitPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a tablet is going to be split: from `row` on, the rows are those of the second child."""

    row: bytes
    children: tuple[str, str]


class JoinPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which neighbours are going to be one tablet. Both of them have the same plan."""

    left: str
    right: str
    child: str


class Retired(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tablet that became others. The log may still name it, at `txn` or before; all of that is in fragments."""

    tablet: str
    txn: int


class ReplacedTablet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tablet that was not created in time and gave way to another. These servers may have something of it yet."""

    tablet: str
    servers: tuple[str, ...] = ()


class StreamBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest batch of a stream that was written into a table, and the txn from which on it is seen."""

    app: str
    batch: int
    txn: int


class TabletMetadata(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The rows [first, last) of a table."""

    id: str
    first: bytes
    last: bytes | None
    state: str
    epoch: int
    leader: str | None = None
    replicas: tuple[Replica, ...] = ()
    log: str | None = None  # the server whose log holds its unflushed writes
    groups: tuple[GroupState, ...] = ()
    split: SplitPlan | None = None
    join: JoinPlan | None = None

    @property
    def range(self) -> KeyRange:
        """The rows of the tablet."""
        return KeyRange(self.first, self.last)

    def group(self, group: int) -> GroupState:
        """Return the state of a group; an empty one if the tablet has nothing of it yet."""
        for state in self.groups:
            if state.group == group:
                return state
        return GroupState(group)

    def with_group(self, state: GroupState) -> TabletMetadata:
        """Return the tablet with one group's state replaced or added."""
        others = tuple(other for other in self.groups if other.group != state.group)
        groups = tuple(sorted((*others, state), key=attrgetter("group")))
        return msgspec.structs.replace(self, groups=groups)


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
        end = begin + 1
        while end < len(self.tablets) and (range.last is None or self.tablets[end].first < range.last):
            end += 1
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
        """The newest txn of anything that it knows of: fragments, range erasures, bulk jobs; 0 if there is nothing."""
        states = [state for tablet in self.tablets for state in tablet.groups]
        fragments = (fragment.txn_max for state in states for fragment in state.fragments)
        erasures = (erasure.txn for state in states for erasure in state.erasures)
        return max(self.newest_job_txn, max(fragments, default=0), max(erasures, default=0))

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
        life = (self.jobs, self.retired, self.is_fixed, self.replaced, self.streams)
        return _hash((self.table_id, self.txnid, self.sequence, *life))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {tablet.id: position for position, tablet in enumerate(self.tablets)}

    @cached_property
    def _guide(self) -> list[bytes]:
        """The first rows of every so many tablets, which are compared without looking at the tablets themselves."""
        return [tablet.first for tablet in self.tablets[::_GUIDE_STEP]]

    @cached_property
    def _schema_hash(self) -> int:
        return _hash(self.schema)

    @cached_property
    def _tablets_hash(self) -> int:
        return sum(map(_hash, self.tablets)) & _CHECKSUM_MASK

    def with_tablets(self, changed: Iterable[TabletMetadata]) -> TableMetadata:
        """Return the table with some tablets replaced by others of the same ids and ranges, which are checked."""
        tablets = [*self.tablets]
        tablets_hash = self._tablets_hash
        for tablet in changed:
            position = self._positions[tablet.id]
            former = tablets[position]
            if (former.first, former.last) != (tablet.first, tablet.last):
                raise InvalidMetadata(f"tablet {tablet.id}: its range must not change here")
            check_tablet(tablet, self.schema)
            tablets[position] = tablet
            tablets_hash += _hash(tablet) - _hash(former)
        table = msgspec.structs.replace(self, tablets=tuple(tablets))
        table.__dict__.update(
            {**self.__dict__, "_schema_hash": self._schema_hash, "_tablets_hash": tablets_hash & _CHECKSUM_MASK}
        )
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
        table = msgspec.structs.replace(self, tablets=tablets)
        tablets_hash = self._tablets_hash + sum(map(_hash, new)) - sum(map(_hash, former))
        table.__dict__.update(_schema_hash=self._schema_hash, _tablets_hash=tablets_hash & _CHECKSUM_MASK)
        return table

    def with_swapped(self, swaps: Iterable[tuple[str, TabletMetadata]]) -> TableMetadata:
        """Return the table with some tablets, by id, replaced by others of new ids and the same ranges."""
        tablets = [*self.tablets]
        tablets_hash = self._tablets_hash
        for former_id, tablet in swaps:
            position = self._positions[former_id]
            former = tablets[position]
            if (former.first, former.last) != (tablet.first, tablet.last):
                raise InvalidMetadata(f"tablet {tablet.id}: it takes the place of one with another range")
            check_tablet(tablet, self.schema)
            tablets[position] = tablet
            tablets_hash += _hash(tablet) - _hash(former)
        table = msgspec.structs.replace(self, tablets=tuple(tablets))
        if len(table._positions) != len(tablets):
            raise InvalidMetadata(f"table {self.table_id}: two tablets have the same id")
        table.__dict__.update(_schema_hash=self._schema_hash, _tablets_hash=tablets_hash & _CHECKSUM_MASK)
        return table

    def with_replaced(self, replaced: tuple[ReplacedTablet, ...]) -> TableMetadata:
        """Return the same table with another record of tablets that gave way to others."""
        table = msgspec.structs.replace(self, replaced=replaced)
        table.__dict__.update(self.__dict__)
        return table

    def with_retired(self, retired: tuple[Retired, ...]) -> TableMetadata:
        """Return the same table with another record of tablets that are gone."""
        table = msgspec.structs.replace(self, retired=retired)
        table.__dict__.update(self.__dict__)
        return table

    def with_schema(self, schema: TableSchema, tablets: Iterable[TabletMetadata]) -> TableMetadata:
        """Return the table under another schema, its tablets with the same ids and ranges in the new groups."""
        schema.check()
        table = msgspec.structs.replace(self, schema=schema, tablets=tuple(tablets))
        table.check()
        return table

    def with_txnid(self, txnid: str, sequence: int) -> TableMetadata:
        """Return the same table as the outcome of another transaction."""
        table = msgspec.structs.replace(self, txnid=txnid, sequence=sequence)
        table.__dict__.update(self.__dict__)
        return table

    def with_jobs(self, jobs: tuple[tuple[str, int], ...]) -> TableMetadata:
        """Return the same table with another record of bulk jobs."""
        table = msgspec.structs.replace(self, jobs=jobs)
        table.__dict__.update(self.__dict__)
        return table

    @property
    def is_searchable(self) -> bool:
        """Whether tablets can be found by id and row, though other invariants may not hold."""
        firsts = [tablet.first for tablet in self.tablets]
        return bool(firsts) and len(self._positions) == len(firsts) and firsts == sorted(firsts)

    def with_streams(self, streams: tuple[StreamBatch, ...]) -> TableMetadata:
        """Return the same table with another record of streams."""
        table = msgspec.structs.replace(self, streams=streams)
        table.__dict__.update(self.__dict__)
        return table

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


def _hash(value: Any) -> int:
    return xxhash.xxh3_64_intdigest(_encoder.encode(value))


def check_tablet(tablet: TabletMetadata, schema: TableSchema) -> None:
    """Raise `InvalidMetadata` unless a tablet is right in itself; its neighbours are another matter."""
    problem = _tablet_problem(tablet, schema)
    if problem is not None:
        raise InvalidMetadata(f"tablet {tablet.id}: {problem}")


def _tablet_problem(tablet: TabletMetadata, schema: TableSchema) -> str | None:
    if not tablet.id or not tablet.state or tablet.epoch < 0:
        return "it needs an id, a state, and an epoch"
    if tablet.split is not None or tablet.join is not None:
        problem = _plan_problem(tablet)
        if problem is not None:
            return problem
    if tablet.last is not None and tablet.first >= tablet.last:
        return f"the range from {tablet.first!r} to {tablet.last!r} is empty"
    # A master begins with a million of these: sets are made only of what there are several of.
    if len(tablet.replicas) > 1 and len({replica.server for replica in tablet.replicas}) != len(tablet.replicas):
        return "two replicas are on one server"
    if len(tablet.groups) > 1 and len({state.group for state in tablet.groups}) != len(tablet.groups):
        return "two states for one group"
    for state in tablet.groups:
        if state.group not in schema.group_by_id:
            return f"group {state.group} is not in the schema"
        if state.flushed < 0 or state.floor_txn < 0:
            return f"group {state.group}: a log index or a txn below zero"
        for erasure in state.erasures:
            if KeyRange(erasure.first, erasure.last).is_empty or erasure.txn <= 0:
                return f"group {state.group}: a range erasure of no row, or without a txn"
        for fragment in state.fragments:
            problem = _fragment_problem(fragment, tablet)
            if problem is not None:
                return f"group {state.group}, {fragment.file}: {problem}"
        if len(state.fragments) > 1 and len(set(map(_counted, state.fragments))) != len(state.fragments):
            return f"group {state.group}: a fragment is referenced twice"
    return None


def _plan_problem(tablet: TabletMetadata) -> str | None:
    if (tablet.split is not None) + (tablet.join is not None) > (tablet.state != "running"):
        return f"it is {tablet.state} and has a plan to be split or joined"
    if tablet.split is not None and not (tablet.first < tablet.split.row and tablet.range.contains(tablet.split.row)):
        return f"{tablet.split.row!r}, where it is to be split, does not divide it"
    return None


def _fragment_problem(fragment: FragmentRef, tablet: TabletMetadata) -> str | None:
    if not fragment.file or fragment.rows < 0 or fragment.bytes < 0:
        return "it needs a file, a number of rows and a size"
    if fragment.first > fragment.last:
        return "its first row is after its last"
    last = tablet.last
    if fragment.last < tablet.first or (last is not None and fragment.first >= last):
        return "it has no row of the tablet"
    if fragment.clip is not None and not fragment.may_have_rows_in(tablet.range):
        return "it has no row of the tablet"
    if fragment.txn_min > fragment.txn_max:
        return "its smallest txn is greater than its largest"
    if fragment.txn is not None and not fragment.txn_min == fragment.txn == fragment.txn_max:
        return "its constant txn is not its smallest and largest"
    return None


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
        TabletMetadata(tablet_id, first, last, state, 1, leader, (), log, groups)
        for tablet_id, first, last in zip(tablet_ids, firsts, bounds, strict=True)
    )
    metadata = TableMetadata(table_id, "new", 0, schema, tablets, is_fixed=is_fixed)
    metadata.check()
    return metadata
