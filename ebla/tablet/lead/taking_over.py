"""Taking tablets over: what the log of their last leader holds becomes fragments, and one change makes this run lead.

    1  read METADATA         which tablets are offered, and in whose log their unflushed writes are
    2  pass the bound        above every txn that the last leader gave out: nothing is written below what it answered
    3  replay by filter      the parts of these tablets in its log; what is flushed is passed over
    4  write fragments       all that was replayed, durable, and named by nobody yet
    5  one change            the next epoch, this leader and its log, the fragments, how far they are flushed, and the
                             end (segment, offset) of the old log: **nothing beyond it is ever replayed**

The last leader answers nothing any more when this begins: it resigned, or its lease was taken, and METADATA says so
(`VacateTablets`). Whatever fails before 5 leaves nothing behind but files that nobody names; the tablets are offered
still, to this server or to another. A log that several tables have tablets in is read once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError, OutcomeUnknown, StoreError, Unavailable
from ebla.metadata.values.changes import Change, update
from ebla.metadata.values.handing_over import Offer, OfferTablets, TakeOver, VacateTablets
from ebla.metadata.values.requirements import TabletAt
from ebla.metadata.values.table_metadata import LogEnd, TableMetadata, TabletMetadata
from ebla.storage.files.files import Files
from ebla.storage.log.log_format import SegmentBytes
from ebla.storage.log.log_reader import list_segments
from ebla.tablet.engine import TabletStore
from ebla.tablet.lead.log_parts import former_schemas, parts_of, under_schema, without_records
from ebla.tablet.lead.run import server_of_run
from ebla.tablet.recovery.log_sort import (
    LogSorter,
    SortedPortion,
    SortedTable,
    changes_for,
    check_portions,
    open_table,
)
from ebla.tablet.recovery.server_record import read_bound, read_extent
from ebla.tablet.tables.table_state import TableState

__all__ = ["Offered", "TabletTaker", "newest_txn"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offered:
    """A tablet that this server is to lead, and the id of that assignment."""

    table: str
    tablet: str
    assignment_id: str


@dataclass(frozen=True, slots=True)
class _Claim:
    """The tablets of one table that are taken from one log."""

    table: TableState
    base: TableMetadata
    tablets: tuple[TabletMetadata, ...]
    assignments: Mapping[str, str]

    def changes(self, server: str, run: str, end: LogEnd | None) -> list[Change]:
        """Return what makes the tablets led by a run. Those that a former run of the server led, it vacates itself."""
        own = [one for one in self.tablets if one.leader == server]
        changes: list[Change] = []
        if own:
            changes.append(VacateTablets(tuple(TabletAt(one.id, one.epoch) for one in own), server))
            # It was to be handed over when the former run ended: that is decided again.
            promised = tuple(Offer(one.id, one.epoch + 1, None) for one in own if one.target is not None)
            if promised:
                changes.append(OfferTablets(promised))
        for one in self.tablets:
            epoch = one.epoch + (one.leader == server)
            changes.append(TakeOver(TabletAt(one.id, epoch), server, self.assignments[one.id], run, end))
        return changes


class TabletTaker:
    """Takes tablets over for a run. One thread at a time."""

    def __init__(self, store: TabletStore, coordination: CoordinationService, logs: Files | None = None) -> None:
        """`logs` are those of this server, if they are not among the files that all servers see."""
        # Set once.
        self._logs = store.files if logs is None else logs
        self._store = store
        self._coordination = coordination
        self._run = store.server
        self._server = server_of_run(store.server)

    def take(self, offers: Sequence[Offered]) -> dict[Offered, EblaError]:
        """Take over what is offered; return what could not be, and why. What is led already stays so."""
        failed: dict[Offered, EblaError] = {}
        by_log: dict[str | None, dict[str, list[Offered]]] = defaultdict(lambda: defaultdict(list))
        bases: dict[str, TableMetadata] = {}
        for offer in offers:
            try:
                if offer.table not in bases:
                    bases[offer.table] = self._store.metadata.refresh(offer.table)
                tablet = bases[offer.table].by_id(offer.tablet)
                if tablet is None or tablet.leader not in (None, self._server):
                    raise Unavailable(f"tablet {offer.tablet} is not to be had: {_why_not(tablet)}")
            except EblaError as error:
                failed[offer] = error
                continue
            if tablet.leader == self._server and tablet.log == self._run:
                self._use(self._open(bases[offer.table]), bases[offer.table])
            else:
                by_log[tablet.log][offer.table].append(offer)
        for log, tables in by_log.items():
            several = [offer for offers in tables.values() for offer in offers]
            try:
                claims = [self._claim(bases[table], offers) for table, offers in tables.items()]
                failed.update(self._take_from(log, claims, several))
            except EblaError as error:
                failed.update((offer, error) for offer in several)
        for offer, reason in failed.items():
            _log.warning("tablet %s of table %s was not taken over: %s", offer.tablet, offer.table, reason)
        return failed

    def _claim(self, base: TableMetadata, offers: Sequence[Offered]) -> _Claim:
        found = [base.by_id(offer.tablet) for offer in offers]
        tablets = tuple(tablet for tablet in found if tablet is not None)
        return _Claim(self._open(base), base, tablets, {offer.tablet: offer.assignment_id for offer in offers})

    def _open(self, base: TableMetadata) -> TableState:
        table = self._store.open_tables.find(base.table_id)
        if table is None:
            table = self._store.add_table(self._store.metadata.name_of(base.table_id), base)
        return table

    # --- from one log ---

    def _take_from(
        self, log: str | None, claims: Sequence[_Claim], offers: Sequence[Offered]
    ) -> dict[Offered, EblaError]:
        self._pass_bound(log, claims)
        begun: list[str] = []
        failed: dict[Offered, EblaError] = {}
        is_unknown = False
        try:
            end, portion, former = (None, None, []) if log is None else self._replay(log, claims, begun)
            for claim in claims:
                changes = claim.changes(self._server, self._run, end)
                try:
                    if portion is not None:
                        changes += [one.flush for one in former if one.table == claim.base.table_id]
                        to_come = update(claim.base, changes)
                        own = [one for one in portion.tables if one.table == claim.base.table_id]
                        changes += changes_for(to_come, own)
                        self._remember_replies(claim, to_come, portion)
                    self._commit(claim, changes)
                except EblaError as error:
                    is_unknown |= isinstance(error, OutcomeUnknown)
                    failed.update((one, error) for one in offers if one.table == claim.base.table_id)
        finally:
            if not is_unknown:
                self._store.pending.let_go(begun)  # else METADATA may come to name them yet
        return failed

    def _pass_bound(self, log: str | None, claims: Sequence[_Claim]) -> None:
        tablets = [tablet for claim in claims for tablet in claim.tablets]
        runs = {one.taken.log for one in tablets if one.taken is not None} | ({log} if log is not None else set())
        bounds = [read_bound(self._coordination, run) for run in sorted(runs)]
        made = [claim.base.created_txn for claim in claims]
        self._store.txn_clock.pass_by(max([*bounds, *made, *map(newest_txn, tablets)]))
        with self._store.passing.passing() as pass_txn:
            pass_txn()  # so that the newest moment here is after all that the tablets have

    def _replay(
        self, log: str, claims: Sequence[_Claim], begun: list[str]
    ) -> tuple[LogEnd, SortedPortion, list[SortedTable]]:
        """Return the end of the log, what became of it, and what of it was written under former schemas."""
        files, settings = self._store.files, self._store.settings
        is_own = server_of_run(log) == self._server and f"log/{log}" in self._logs.list_directories(
            f"log/{self._server}"
        )
        logs = self._logs if is_own else files
        extent = read_extent(self._coordination, logs, log)
        paths = list_segments(logs, f"log/{log}", extent)
        to_come = {
            claim.base.table_id: update(claim.base, claim.changes(self._server, self._run, LogEnd(log, "", 0)))
            for claim in claims
        }
        names = {claim.base.table_id: claim.table.name for claim in claims}

        def new_path(table_id: str) -> str:
            begun.append(self._store.pending.new_path(table_id))
            return begun[-1]

        taken = {tablet.id: tablet for claim in claims for tablet in claim.tablets}
        former: list[SortedTable] = []
        late = former_schemas(to_come.values())
        read: Iterable[tuple[str, SegmentBytes, bool]]
        read = ((path, logs.read(path), path == paths[-1]) for path in paths)
        if late:
            read = [*read]  # once: what a stopped process writes meanwhile is behind the end
        # What was written under former schemas becomes fragments of these, which METADATA counts for that of today.
        for table_id, version in late:
            under = {table_id: open_table(names[table_id], under_schema(to_come[table_id], version), files)}
            own = {tablet.id: taken[tablet.id] for tablet in to_come[table_id].tablets if tablet.id in taken}
            sorter = LogSorter(
                files,
                server_of_run(log),
                under,
                new_path,
                settings.flush_bytes,
                partial(parts_of, tablets=own, is_counted=version.__eq__),
            )
            former += _whole(log, sorter.sort(0, read)).tables
        sorter = LogSorter(
            files,
            server_of_run(log),
            {table_id: open_table(names[table_id], metadata, files) for table_id, metadata in to_come.items()},
            new_path,
            settings.flush_bytes,
            lambda entry: without_records(parts_of(entry, taken), late),
        )
        portion = _whole(log, sorter.sort(0, read))
        segments = check_portions([portion], extent)
        last = segments[-1] if segments else None
        end = LogEnd(log, "" if last is None else last.path, 0 if last is None else last.bytes)
        return end, portion, former

    def _commit(self, claim: _Claim, changes: Sequence[Change]) -> None:
        metadata = self._store.metadata
        try:
            saved = metadata.commit(claim.base.table_id, changes)
        except OutcomeUnknown:
            saved = metadata.refresh(claim.base.table_id)
            tablet = saved.by_id(claim.tablets[0].id)
            if tablet is None or tablet.log != self._run or tablet.leader != self._server:
                raise
        self._use(claim.table, saved)
        _log.info("leads %s of %s", ", ".join(one.id for one in claim.tablets), claim.table.name)

    def _use(self, table: TableState, metadata: TableMetadata) -> None:
        """Serve what METADATA says is led here. What is remembered of rows may be of another time that it was led."""
        tables = self._store.open_tables
        with tables.lock:
            before = frozenset() if table.led is None else table.led.ids
            table.use_metadata(metadata, self._run)
            now = frozenset() if table.led is None else table.led.ids
            table.gain(now - before, self._store.sequencer.allocated)
        tables.events.deliver()

    def _remember_replies(self, claim: _Claim, to_come: TableMetadata, portion: SortedPortion) -> None:
        """Log here what the last leader told its clients, before this run leads: a request repeated then is known."""
        told = {one.tablet: one.replies for one in portion.replies if one.table == claim.base.table_id}
        epochs = {tablet.id: tablet.epoch for tablet in to_come.tablets}
        self._store.kept_replies.adopt(claim.table, told, epochs)
        with self._store.open_tables.lock:
            self._store.kept_replies.former.restore(portion.former_replies)


def _whole(log: str, portion: SortedPortion) -> SortedPortion:
    if portion.damage is not None:
        raise portion.damage.error()
    if portion.refused:
        raise StoreError(f"the log {log} cannot be replayed: {portion.refused[0][1]}")
    return portion


def newest_txn(tablet: TabletMetadata) -> int:
    """Return the newest txn that METADATA has of a tablet."""
    found = [0]
    for state in tablet.groups:
        found.append(state.floor_txn)
        found += [ref.txn_max for ref in state.fragments]
        found += [erasure.txn for erasure in state.erasures]
    return max(found)


def _why_not(tablet: TabletMetadata | None) -> str:
    return "it was split, joined or dropped" if tablet is None else f"{tablet.leader} leads it"
