"""Capturing tables at one moment: what METADATA names and what is only in memory, held while it is copied.

    a database open for writing here    flush -> [commit lock] txn and views -> pin and files held in this process
    any other                           read-only open -> pin by name, files by intents, for whoever has it open

A captured view has all that was committed up to its txn, and nothing later. Nothing else is held: writes, flushes,
compactions, splits and garbage go on beside it. What was held is let go when the block is left, in whatever way; if the
process is killed, by the next capture of the same store that finds nobody behind it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebla.client.coordination_place import connect_at
from ebla.client.database import Database
from ebla.client.database import open as open_database
from ebla.clock import Clock, SystemClock
from ebla.coordination.service import CoordinationService
from ebla.errors import EblaError, StoreLocked, Unavailable
from ebla.metadata.changes import Change, RangeErase, TabletAt, update
from ebla.metadata.table_metadata import FragmentRef, RangeErasure, TableMetadata
from ebla.pipeline.location import store_of
from ebla.pipeline.place import Place
from ebla.ranges import KeyRange
from ebla.settings import Settings
from ebla.storage.files import FileLock, Files, LocalFiles
from ebla.tablet.bulk import add_references
from ebla.tablet.bulk_jobs import begin_hold, end_hold, list_intents
from ebla.tablet.identity import read_identity
from ebla.tablet.pins import Pins
from ebla.tablet.serialize import reference_to, write_blocks
from ebla.tablet.table_state import TableState
from ebla.tablet.view import TableView

__all__ = ["Capture", "captured", "with_memory"]

ATTEMPTS_MAX = 60
PAUSE_SECONDS = 0.02
# What a process that was killed has held is let go after this in any case, but for its pin.
HOLD_EXPIRES_SECONDS = 86_400.0
PREFIX = "backup-"

# No other: people name snapshots as they like, and these must not be taken for ours.
_NAME = re.compile(PREFIX + r"\d{8}T\d{9}-[0-9a-f]{8}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Capture:
    """Tables at one txn, by name, and the id of the store that they are in."""

    store: str
    txn: int
    views: dict[str, TableView]


@contextlib.contextmanager
def captured(source: Database | str | os.PathLike[str], tables: Sequence[str] | None, name: str) -> Iterator[Capture]:
    """Capture some tables of a store, or all, and hold what they consist of for as long as the block runs.

    `name` is what the hold is known by to others. Raises `UnknownTable` for a table that is not there, and
    `Unavailable` if the store is written too fast by another process to find a moment.
    """
    place = Place.of(source)  # whatever is wrong with it is said there
    if isinstance(source, Database) and not source.read_only:
        with _captured_here(source, tables) as found:
            yield found
    else:
        with _captured_elsewhere(place.root, tables, PREFIX + name) as found:
            yield found


def _is_within(view: TableView, txn: int) -> bool:
    """Tell whether METADATA has nothing later than a txn, and history reaches back to it."""
    return all(
        state.floor_txn <= txn
        and all(ref.txn_max <= txn for ref in state.fragments)
        and all(erasure.txn <= txn for erasure in state.erasures)
        for tablet in view.metadata.tablets
        for state in tablet.groups
    )


def _states(database: Database, tables: Sequence[str] | None) -> list[TableState]:
    """Return the tables asked for, or all; one that is damaged is no reason to leave it out in silence."""
    store = store_of(database)
    return [store.table(name) for name in (database.tables() if tables is None else tables)]


def _files(views: Sequence[TableView]) -> set[str]:
    return {file for view in views for file in view.metadata.files()}


# --- held by this process ------------------------------------------------------------------------


@contextlib.contextmanager
def _captured_here(database: Database, tables: Sequence[str] | None) -> Iterator[Capture]:
    store = store_of(database)
    clock = SystemClock()
    _Hold(database._coordination, store.files, clock).remove_stale()
    states = _states(database, tables)
    for state in states:
        if not state.is_offline:
            store.flush(state)  # what comes meanwhile is little, and goes to a file of the backup
    with contextlib.ExitStack() as held:
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                clock.sleep(PAUSE_SECONDS)
            with contextlib.ExitStack() as trying:
                txn, views = store.hold_views(states)
                trying.callback(store.pins.let_go, txn)
                # A bulk commit may be in METADATA already and not yet visible.
                if not all(_is_within(view, txn) for view in views):
                    continue
                trying.callback(store.hold_files(_files(views)))
                # A compaction may have replaced some before they were held: then a sweep may have them in mind already.
                if not _are_named(views, store.metadata.refresh):
                    continue
                held.push(trying.pop_all())
                break
        else:
            raise _too_fast()
        yield Capture(
            read_identity(database._coordination).cluster, txn, {s.name: v for s, v in zip(states, views, strict=True)}
        )


def _are_named(views: Sequence[TableView], refresh: Callable[[str], TableMetadata]) -> bool:
    return all(set(view.metadata.files()) <= set(refresh(view.metadata.table_id).files()) for view in views)


def _too_fast() -> Unavailable:
    return Unavailable(
        "the store is written too fast to find a moment at which METADATA and log agree: nothing was changed, retry, "
        "or back up from the process that has it open"
    )


# --- held by name --------------------------------------------------------------------------------


@contextlib.contextmanager
def _captured_elsewhere(root: str, tables: Sequence[str] | None, name: str) -> Iterator[Capture]:
    clock = SystemClock()
    with contextlib.ExitStack() as held:
        coordination = held.enter_context(connect_at(Path(root), clock))
        hold = _Hold(coordination, LocalFiles(root), clock)
        hold.remove_stale()
        held.enter_context(hold.locked(name))
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                clock.sleep(PAUSE_SECONDS)
            with (
                contextlib.ExitStack() as trying,
                open_database(root, read_only=True, settings=Settings(scan_threads=1)) as database,
            ):
                store = store_of(database)
                states = _states(database, tables)
                txn, views = store.sequencer.committed, [state.view for state in states]
                if not all(_is_within(view, txn) for view in views):
                    continue
                trying.callback(hold.release, name)
                hold.hold(name, txn, _files(views))
                # Asked after all of it is held: from here on neither files nor history go.
                current = [store.metadata.refresh(view.metadata.table_id) for view in views]
                floors = [state.floor_txn for one in current for tablet in one.tablets for state in tablet.groups]
                if not _are_named(views, store.metadata.read) or any(floor > txn for floor in floors):
                    continue
                held.push(trying.pop_all())
                break
        else:
            raise _too_fast()
        yield Capture(read_identity(coordination).cluster, txn, {s.name: v for s, v in zip(states, views, strict=True)})


class _Hold:
    """Pins and intents in the coordination service, and a lock by which others see that somebody is behind them."""

    def __init__(self, coordination: CoordinationService, files: Files, clock: Clock) -> None:
        self._coordination = coordination
        self._files = files
        self._clock = clock
        self._pins = Pins(coordination, clock)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        lock = self._files.lock(_lock_path(name))
        try:
            yield
        finally:
            self._unlock(name, lock)

    def hold(self, name: str, txn: int, files: set[str]) -> None:
        self._pins.pin(name, txn)
        for directory in sorted({file.rpartition("/")[0] for file in files}):
            table_id = directory.rpartition("/")[2]
            begin_hold(self._coordination, self._clock, name, table_id, HOLD_EXPIRES_SECONDS)

    def release(self, name: str) -> None:
        try:
            self._pins.release(name)
            end_hold(self._coordination, name)
        except EblaError as error:
            _log.warning("the snapshot %s could not be released: %s: release it with `ebla snapshots`", name, error)

    def remove_stale(self) -> None:
        """Let go of what processes have held that are gone."""
        names = {pin.name for pin in self._pins.all()} | {
            intent.job.rpartition(".")[0] for intent in list_intents(self._coordination)
        }
        for name in sorted(name for name in names if _NAME.fullmatch(name)):
            with contextlib.suppress(StoreLocked):
                lock = self._files.lock(_lock_path(name))
                try:
                    self.release(name)
                finally:
                    self._unlock(name, lock)

    def _unlock(self, name: str, lock: FileLock) -> None:
        with contextlib.suppress(OSError):
            self._files.delete(_lock_path(name))
        lock.release()


def _lock_path(name: str) -> str:
    return f"bulk/{name}.lock"


# --- what is in memory ---------------------------------------------------------------------------


def with_memory(view: TableView, txn: int, files: Files, new_path: Callable[[str], str]) -> TableMetadata:
    """Write what a view has in memory up to a txn to new files; return METADATA that has them and all else."""
    metadata = view.metadata
    changes: list[Change] = []
    erased: dict[RangeErasure, None] = {}
    for group in view.schema.groups:
        blocks, erasures = view.memory_of(group.id).committed(txn)
        erased.update((RangeErasure(one.first, one.last, one.txn), None) for one in erasures)
        info = write_blocks(view, group.id, blocks, erasures, files, new_path)
        if info is not None:
            ref: FragmentRef = reference_to(info, view.schema.version)
            changes.append(add_references(group.id, [ref], metadata))
    for erasure in erased:
        tablets = metadata.overlapping(KeyRange(erasure.first, erasure.last))
        changes.append(RangeErase(erasure, tuple(TabletAt(tablet.id, tablet.epoch) for tablet in tablets)))
    return update(metadata, changes)
