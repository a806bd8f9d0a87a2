"""Verifying the METADATA of a table, and mending it: what is wrong, and what it would be if it were right. Pure.

    examine(metadata, facts about the files)  -->  findings, and the metadata with everything mended that can be

It trusts where a tablet ends, as META does, which names it by that; where it begins follows from the one before:

    found                          what it is                  mended by
    (..a) (a..b) (a..c)            overlap: half a split       (..a) (a..c)   if (a..b) has nothing of its own
    (..a) (b..c)                   hole: half a split          (..a) (a..c)   if no stray file has rows of a..b
    (..a) (a..c) (b..d)            overlap                     nobody can tell: two tablets may have taken writes

What is mended loses no record that could be read before. Whatever would (a missing file, a damaged one, one that is
another table's) is only told: restore the file from a backup. What is not wrong is left as it is, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ebla.errors import EblaError
from ebla.metadata.values.table_metadata import (
    FragmentRef,
    GroupState,
    RangeErasure,
    TableMetadata,
    TabletMetadata,
    check_tablet,
)
from ebla.model.ranges import KeyRange

__all__ = ["Examination", "FileFacts", "Finding", "check_load", "examine"]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a file that a table names: what it says of itself, or why it cannot be read.

    With `is_sized_only` nobody has looked into it yet.
    """

    size: int = 0
    problem: str = ""  # "missing" or what is damaged; empty: it could be read
    table: str = ""  # the table that it was written for
    rows: int = 0
    first: bytes = b""
    last: bytes = b""
    txn_min: int | None = None
    txn_max: int | None = None
    is_sized_only: bool = False


# A file that nobody names; a log whose end is not told as exactly as it could be.
_HARMLESS = frozenset({"orphan", "log reach"})


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong; `repair` says what is done about it, and is empty if nothing can be."""

    kind: str
    table: str
    text: str
    tablet: str = ""
    file: str = ""
    repair: str = ""

    @property
    def is_harmless(self) -> bool:
        """Whether nothing is lost or refused because of it: it is told, and the store is as it should be."""
        return self.kind in _HARMLESS


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found in one table, and what becomes of it; `mended` is None if nothing is to be changed."""

    findings: tuple[Finding, ...]
    mended: TableMetadata | None


def examine(
    name: str, metadata: TableMetadata, facts: Mapping[str, FileFacts], strays: Sequence[FileFacts] = ()
) -> Examination:
    """Look at everything that METADATA says of a table called `name`; `facts` has every file that it names.

    `strays` are files of the table that nobody names: a hole in which they have rows is that of a lost tablet.
    """
    return _Examiner(name, metadata, facts, strays).examine()


def check_load(name: str, metadata: TableMetadata, tablet_id: str, facts: Mapping[str, FileFacts]) -> list[Finding]:
    """Return what speaks against loading one tablet: its neighbours do not meet it, or something in it is wrong.

    It takes the same time however many tablets there are, so that it can be asked at each load; `facts` has the files
    of this tablet, their sizes at least.
    """
    return _Examiner(name, metadata, facts, ()).examine_one(tablet_id)


def _by_last(tablet: TabletMetadata) -> tuple[bool, bytes]:
    return tablet.last is None, tablet.last or b""


class _Examiner:
    def __init__(
        self, name: str, metadata: TableMetadata, facts: Mapping[str, FileFacts], strays: Sequence[FileFacts]
    ) -> None:
        self._name = name
        self._metadata = metadata
        self._facts = facts
        self._strays = strays
        self._findings: list[Finding] = []

    def _tell(self, kind: str, text: str, tablet: str = "", file: str = "", repair: str = "") -> None:
        self._findings.append(Finding(kind, self._name, text, tablet, file, repair))

    def examine(self) -> Examination:
        try:
            self._metadata.schema.check()
        except EblaError as error:
            self._tell("schema", f"{error}: restore METADATA from a backup")
        tablets = self._ranges(self._in_order(self._metadata.tablets))
        tablets = [self._tablet(tablet) for tablet in tablets]
        if tuple(tablets) == self._metadata.tablets:
            return Examination(tuple(self._findings), None)
        mended = msgspec.structs.replace(self._metadata, tablets=tuple(tablets))
        try:
            mended.check()
        except EblaError as error:
            # Something else is wrong that cannot be mended: a half-mended table would be refused as well.
            self._tell("not mended", f"what is left cannot be mended: {error}")
            findings = [_unmended(finding) for finding in self._findings]
            return Examination(tuple(findings), None)
        return Examination(tuple(self._findings), mended)

    def examine_one(self, tablet_id: str) -> list[Finding]:
        """Look at one tablet and at where its neighbours end and begin."""
        tablets = self._metadata.tablets
        at = self._metadata.position(tablet_id)
        if at is None:
            self._tell("unknown tablet", f"the table has no tablet {tablet_id}", tablet_id)
            return self._findings
        tablet = tablets[at]
        before = tablets[at - 1].last if at else b""
        following = tablets[at + 1].first if at + 1 < len(tablets) else None
        if (tablet.first, tablet.last) != (before, following):
            shown = ", ".join(f"{one.id} [{one.first!r}, {one.last!r})" for one in tablets[max(0, at - 1) : at + 2])
            kind = "hole" if _is_hole(before, tablet, following) else "overlap"
            text = f"there is {'a' if kind == 'hole' else 'an'} {kind} at {tablet_id}: {shown}"
            self._tell(kind, text, tablet_id, repair="make them meet, unless rows could be lost by it")
        self._tablet(tablet)
        if not self._findings:
            try:
                check_tablet(tablet, self._metadata.schema)
            except EblaError as error:
                self._tell("tablet", str(error), tablet_id)
        return self._findings

    # --- ranges ----------------------------------------------------------------------------------

    def _in_order(self, tablets: Sequence[TabletMetadata]) -> list[TabletMetadata]:
        ordered = sorted(tablets, key=_by_last)
        if ordered != list(tablets):
            self._tell("order", "the tablets do not stand in the order of their rows", repair="put them in order")
        seen: set[str] = set()
        for tablet in ordered:
            if tablet.id in seen:
                self._tell("duplicate id", f"two tablets have the id {tablet.id}", tablet.id)
            seen.add(tablet.id)
        if not ordered:
            self._tell("no tablets", "the table has no tablet: restore its METADATA from a backup")
        return ordered

    def _ranges(self, tablets: Sequence[TabletMetadata]) -> list[TabletMetadata]:
        """Make the tablets meet, as verifyMeta goes: where one begins is where the one before ends."""
        kept: list[TabletMetadata] = []
        for tablet in tablets:
            kept = self._without_halves(kept, tablet)
            begin = kept[-1].last if kept else b""
            if begin is None:
                self._tell("overlap", f"{tablet.id} and {kept[-1].id} both have the last rows", tablet.id)
            elif tablet.last is not None and tablet.last <= begin:
                self._tell("empty range", f"{tablet.id} ends at {tablet.last!r} and has no row", tablet.id)
            elif tablet.first > begin:
                text = f"no tablet has the rows from {begin!r} to {tablet.first!r}"
                if self._hole(text, tablet, begin, tablet.first, f"let {tablet.id} begin at {begin!r}"):
                    tablet = msgspec.structs.replace(tablet, first=begin)
            elif tablet.first < begin:
                self._tell("overlap", f"{kept[-1].id} and {tablet.id} share rows from {tablet.first!r} on", tablet.id)
            kept.append(tablet)
        if kept and kept[-1].last is not None:
            last = kept[-1]
            text = f"no tablet has the rows from {last.last!r} on"
            if self._hole(text, last, last.last or b"", None, f"let {last.id} have all rows to the end"):
                kept[-1] = msgspec.structs.replace(last, last=None)
        return kept

    def _hole(self, text: str, tablet: TabletMetadata, first: bytes, last: bytes | None, repair: str) -> bool:
        """Tell of a hole; return whether it may be closed."""
        lost = [s for s in self._strays if s.last >= first and (last is None or s.first < last)]
        if lost:
            text += f", and {len(lost)} files that nobody names have some: a tablet was lost, restore METADATA"
        self._tell("hole", text, tablet.id, repair="" if lost else repair)
        return not lost

    def _without_halves(self, kept: list[TabletMetadata], tablet: TabletMetadata) -> list[TabletMetadata]:
        """Leave out tablets that lie within `tablet` from its beginning on, and have nothing that it has not."""
        first = next((i for i, other in enumerate(kept) if other.first == tablet.first), None)
        if first is None or kept[-1].last == tablet.first:
            return kept
        inner = kept[first:]
        if not all(_is_covered(other, tablet) for other in inner):
            return kept
        for other in inner:
            text = f"{other.id} lies within {tablet.id}: a split of it was written by half"
            self._tell("overlap", text, other.id, repair=f"remove {other.id}, which has nothing of its own")
        return kept[:first]

    # --- one tablet ------------------------------------------------------------------------------

    def _tablet(self, tablet: TabletMetadata) -> TabletMetadata:
        changes: dict[str, object] = {}
        servers = {replica.server: replica for replica in reversed(tablet.replicas)}
        if len(servers) != len(tablet.replicas):
            text = f"{tablet.id} has two replicas on one server"
            self._tell("replicas", text, tablet.id, repair="keep the first of them")
            changes["replicas"] = tuple(r for r in tablet.replicas if servers[r.server] is r)
        if not tablet.id or not tablet.state or tablet.epoch < 0:
            self._tell("tablet", f"tablet {tablet.id!r} has no id, no state or no epoch", tablet.id)
        split = tablet.split
        if split is not None and not (tablet.first < split.row and tablet.range.contains(split.row)):
            text = f"{tablet.id} is to be split at {split.row!r}, which does not divide it"
            self._tell("split", text, tablet.id, repair="forget the plan")
            changes["split"] = None
        elif tablet.state == "running" and (split is not None or tablet.join is not None):
            text = f"{tablet.id} is running and has a plan to be split or joined"
            self._tell("plan", text, tablet.id, repair="forget the plan")
            changes["split"] = changes["join"] = None
        groups = self._groups(msgspec.structs.replace(tablet, **changes))
        if groups != tablet.groups:
            changes["groups"] = groups
        return msgspec.structs.replace(tablet, **changes) if changes else tablet

    def _groups(self, tablet: TabletMetadata) -> tuple[GroupState, ...]:
        states: dict[int, GroupState] = {}
        for state in tablet.groups:
            if state.group not in self._metadata.schema.group_by_id:
                is_empty = not state.fragments and not state.erasures
                text = f"{tablet.id} has something of group {state.group}, which the schema does not have"
                self._tell("group", text, tablet.id, repair="forget it, as it is empty" if is_empty else "")
                if is_empty:
                    continue
            known = states.get(state.group)
            if known is not None:
                text = f"{tablet.id} has two states for group {state.group}"
                if known == state or state == GroupState(state.group):
                    self._tell("group", text, tablet.id, repair="keep the one that says more")
                    continue
                self._tell("group", text, tablet.id)
                return tablet.groups
            states[state.group] = self._group(tablet, state)
        return tuple(states.values())

    def _group(self, tablet: TabletMetadata, state: GroupState) -> GroupState:
        where = f"{tablet.id}, group {state.group}"
        flushed, floor = state.flushed, state.floor_txn
        if flushed < 0 or floor < 0:
            self._tell("numbers", f"{where}: a log index or txn below zero", tablet.id, repair="take zero")
            flushed, floor = max(0, flushed), max(0, floor)
        erasures = tuple(erasure for erasure in state.erasures if _is_real(erasure))
        if erasures != state.erasures:
            self._tell(
                "erasure", f"{where}: a range erasure of no row, or without a txn", tablet.id, repair="forget it"
            )
        fragments: list[FragmentRef] = []
        for fragment in state.fragments:
            mended = self._fragment(tablet, fragment)
            if mended is None:
                continue
            if mended in fragments:
                text = f"{where}: {fragment.file} is referenced twice"
                self._tell("twice", text, tablet.id, fragment.file, "keep one of the two")
                continue
            fragments.append(mended)
        changed = GroupState(state.group, tuple(fragments), erasures, flushed, floor)
        return state if changed == state else changed

    # --- one reference ---------------------------------------------------------------------------

    def _fragment(self, tablet: TabletMetadata, fragment: FragmentRef) -> FragmentRef | None:
        facts = self._facts.get(fragment.file, FileFacts(problem="missing"))
        tell: Callable[..., None] = lambda kind, text, repair="": self._tell(  # noqa: E731
            kind, f"{tablet.id}: {fragment.file} {text}", tablet.id, fragment.file, repair
        )
        if fragment.schema_version > self._metadata.schema.version:
            tell("future", f"was written under schema version {fragment.schema_version}, which is not there yet")
        if facts.problem:
            kind = "missing" if facts.problem == "missing" else "unreadable"
            tell(kind, f"is {facts.problem}: restore it from a backup")
            return fragment
        place = fragment.file.split("/")
        if len(place) > 1 and facts.table != place[1] and not facts.is_sized_only:
            tell("foreign", f"was written for table {facts.table}: restore the right file from a backup")
            return fragment
        if facts.size != fragment.bytes:
            tell("size", f"has {facts.size} bytes, and {fragment.bytes} were written: restore it from a backup")
            return fragment
        if not facts.is_sized_only:
            fragment = self._agreed(fragment, facts, tell)
        if not fragment.may_have_rows_in(tablet.range):
            tell("outside", "has no row of the tablet", "forget the reference")
            return None
        return fragment

    def _agreed(self, fragment: FragmentRef, facts: FileFacts, tell: Callable[..., None]) -> FragmentRef:
        """Return the reference with what the file says of itself, where it says something else."""
        said: dict[str, object] = {"rows": facts.rows, "first": facts.first, "last": facts.last}
        if fragment.txn is not None:
            said |= {"txn_min": fragment.txn, "txn_max": fragment.txn}
        elif facts.txn_min is not None and facts.txn_max is not None:
            said |= {"txn_min": facts.txn_min, "txn_max": facts.txn_max}
        wrong = {name: value for name, value in said.items() if getattr(fragment, name) != value}
        if not wrong:
            return fragment
        tell("reference", f"is described wrongly ({', '.join(wrong)})", "take what the file says of itself")
        return msgspec.structs.replace(fragment, **wrong)


def _is_hole(before: bytes | None, tablet: TabletMetadata, following: bytes | None) -> bool:
    if before is None or tablet.first < before:
        return False
    return tablet.first > before or (tablet.last is not None and (following is None or tablet.last < following))


def _is_real(erasure: RangeErasure) -> bool:
    return not KeyRange(erasure.first, erasure.last).is_empty and erasure.txn > 0


def _is_covered(inner: TabletMetadata, outer: TabletMetadata) -> bool:
    """Whether a tablet has nothing that another, in which it lies, does not have as well."""
    if outer.last is not None and (inner.last is None or inner.last >= outer.last):
        return False
    for state in inner.groups:
        other = outer.group(state.group)
        if not set(state.fragments) <= set(other.fragments) or not set(state.erasures) <= set(other.erasures):
            return False
        if state.flushed > other.flushed or state.floor_txn > other.floor_txn:
            return False
    return True


def _unmended(finding: Finding) -> Finding:
    """Return a finding without its repair, which is not going to happen."""
    return Finding(finding.kind, finding.table, finding.text, finding.tablet, finding.file)
