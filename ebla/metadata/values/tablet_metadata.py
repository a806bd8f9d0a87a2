"""The METADATA of one tablet, as a value: its range, who has it, and the fragments that hold its rows.

    TabletMetadata    [first, last), state, epoch, leader, replicas, log, plans to split or join it
    `-- GroupState    for each group: how far the log is flushed, how far back history reaches
        |-- FragmentRef     a file, what is in it, and what of it counts
        `-- RangeErasure    what hides older records

Values are never changed. `check_tablet` says what has to hold for a tablet by itself.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TypeAlias

import msgspec

from ebla.errors import StoreError
from ebla.model.ranges import KeyRange
from ebla.model.schema import TableSchema

__all__ = [
    "FormerGroup",
    "FragmentRef",
    "GroupState",
    "InvalidMetadata",
    "JoinPlan",
    "LogEnd",
    "RangeErasure",
    "Replica",
    "SplitPlan",
    "TabletMetadata",
    "check_tablet",
    "needed_of",
]

# `FragmentRef` has a field called `bytes`, which hides the type inside the class.
RowBytes: TypeAlias = bytes

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
    history_txn: int = 0  # no read at this txn or a later one needs the file, it is history; 0: it is current
    cleared_txn: int = 0  # no record of the file is hidden by a range erasure up to this txn

    @property
    def is_history(self) -> bool:
        """Whether the file holds only what others replace, or hide, from some txn on."""
        return self.history_txn > 0

    def is_read_at(self, txn: int) -> bool:
        """Tell whether a read at a txn may need the file."""
        return self.txn_min <= txn and (not self.history_txn or txn < self.history_txn)

    def has_hidden_by(self, erasure_txn: int) -> bool:
        """Tell whether a range erasure with a txn may hide some record of the file."""
        return self.txn_min < erasure_txn > self.cleared_txn

    def is_outlived_at(self, horizon: int) -> bool:
        """Tell whether no read at `horizon` or later needs the file."""
        return 0 < self.history_txn <= horizon

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

    @property
    def current(self) -> tuple[FragmentRef, ...]:
        """The fragments that a read of the present needs."""
        return tuple(ref for ref in self.fragments if not ref.history_txn)

    @property
    def history(self) -> tuple[FragmentRef, ...]:
        """The fragments that only reads of the past need."""
        return tuple(ref for ref in self.fragments if ref.history_txn)


class FormerGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a group of a former version of the schema is flushed."""

    version: int
    group: int
    flushed: int


class Replica(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A server that keeps a copy of a tablet's log, by an assignment with an id of its own.

    Of tablets with several: `log_id` names the log that counts, "" before there was one. In sync, it has every
    committed entry on disk; else it is learning. One that is only to be named has neither: compare its `key`.
    """

    server: str
    assignment_id: str
    log_id: str = ""
    is_in_sync: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Which replica it is, whatever its state."""
        return self.server, self.assignment_id


class LogEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a log that was taken over ended: what is behind it in the log counts for nobody."""

    log: str
    segment: str
    offset: int


class SplitPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a tablet is going to be split: from `row` on, the rows are those of the second child."""

    row: bytes
    children: tuple[str, str]


class JoinPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which neighbours are going to be one tablet. Both of them have the same plan."""

    left: str
    right: str
    child: str


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
    target: Replica | None = None  # the server that is to lead it next
    log_epoch: int = 0  # entries of lower epochs in `log` do not count: others led the tablet since they were written
    taken: LogEnd | None = None  # how far the log counts that was replayed when the tablet changed hands last
    behind: tuple[FormerGroup, ...] = ()  # how far groups of former schemas are flushed, while rows of them may come
    number: int = 0  # of its configuration: it grows with every change of leader, replicas, in-sync set, wanted number
    wanted: int = 1  # how many replicas there should be
    counted: int = 1  # how many there were meant to be when that many were last in sync: `needed` is of these
    txn_floor: int = 0  # every txn of this epoch is greater; never falls
    leaving: tuple[Replica, ...] = ()  # replicas no longer, and not known to be deleted
    flushed_epoch: int = 0  # of the entry at `flushed_index`
    flushed_index: int = 0  # what replicas have up to here is in fragments, for all groups

    @property
    def is_served(self) -> bool:
        """Whether somebody leads it, or should: it was created, and is not offline."""
        return self.state in ("running", "splitting", "joining")

    @property
    def assigned(self) -> tuple[Replica, ...]:
        """The replicas, and the one that is to be."""
        return self.replicas if self.target is None else (*self.replicas, self.target)

    @property
    def is_replicated(self) -> bool:
        """Whether it has several replicas, or is to have some: then its leader changes by `ChangeLeaders` alone."""
        return self.wanted > 1 or self.counted > 1 or bool(self.leaving or self.in_sync)

    @property
    def in_sync(self) -> tuple[Replica, ...]:
        """The replicas that are in sync."""
        return tuple(replica for replica in self.replicas if replica.is_in_sync)

    @property
    def needed(self) -> int:
        """How many have to be in sync at any time."""
        return needed_of(self.counted)

    def replica_on(self, server: str) -> Replica | None:
        """Return the replica on a server, if there is one."""
        return next((replica for replica in self.replicas if replica.server == server), None)

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


def needed_of(counted: int) -> int:
    """How many of so many replicas have to be in sync: a majority."""
    return counted // 2 + 1


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
    if tablet.wanted < 1 or tablet.counted < 1 or tablet.number < 0 or tablet.txn_floor < 0:
        return "a number of replicas, of its configuration, or a txn is out of bounds"
    if tablet.counted > 1 and tablet.replicas and len(tablet.in_sync) < tablet.needed:
        return f"{len(tablet.in_sync)} of its replicas are in sync, and {tablet.needed} are needed"
    if len(tablet.groups) > 1 and len({state.group for state in tablet.groups}) != len(tablet.groups):
        return "two states for one group"
    if tablet.target is not None and tablet.target.server == tablet.leader:
        return f"it is led by {tablet.leader} and offered to the same"
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
    if fragment.history_txn and fragment.history_txn < fragment.txn_max:
        return "it is history from a txn on that is older than its newest record"
    return None
