"""Capturing tables at one moment: what METADATA names and what is only in memory, held while it is copied.

    a database open for writing here    flush -> [commit lock] txn and views -> pin and files held in this process
    a cluster                           flush -> txn of all servers -> pin and files held by name
    any other                           read-only open -> pin and files held by name, for whoever has it open

A captured view has all that was committed up to its txn, and nothing later. Nothing else is held: writes, flushes,
compactions, splits and garbage go on beside it. What was held is let go when the block is left, in whatever way; if the
process is killed, it expires (`held_pins`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ebla.client.database import Database
from ebla.client.embedded.opening import open_alone
from ebla.client.remote.remote_service import RemoteService
from ebla.clock import SystemClock
from ebla.direct.cluster_address import of_remote
from ebla.direct.clusters import captured_table, metadata_now, remote_of, root_of
from ebla.direct.held_pins import begin, end
from ebla.direct.opens import coordination_of, store_of
from ebla.direct.place import Place
from ebla.errors import Unavailable
from ebla.metadata.values.changes import Change, RangeErase, TabletAt, update
from ebla.metadata.values.table_metadata import FragmentRef, RangeErasure, TableMetadata
from ebla.model.ranges import KeyRange
from ebla.retry import Retries
from ebla.service.requests import Flush, HoldNewest, LetGo
from ebla.settings import Settings
from ebla.storage.files.files import Files
from ebla.tablet.flush.serialize import reference_to, write_blocks
from ebla.tablet.jobs.bulk import add_references
from ebla.tablet.read.view import TableView
from ebla.tablet.recovery.identity import read_identity
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.horizon import Horizon

__all__ = ["Capture", "captured", "with_memory"]

_MOMENTS = Retries(60, 0.02)  # what is looked for is a moment between two changes


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
    remote = remote_of(source) if isinstance(source, Database) else None
    if remote is not None:
        with _captured_in_cluster(remote, tables, name) as found:
            yield found
    elif isinstance(source, Database) and not source.read_only:
        with _captured_here(source, tables) as found:
            yield found
    else:
        with _captured_elsewhere(place.root, tables, name) as found:
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
    states = _states(database, tables)
    for state in states:
        if not state.is_offline:
            store.flush(state)  # what comes meanwhile is little, and goes to a file of the backup
    with contextlib.ExitStack() as held:
        for _ in _MOMENTS.attempts(clock):
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
            read_identity(coordination_of(database)).cluster,
            txn,
            {s.name: v for s, v in zip(states, views, strict=True)},
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
        for _ in _MOMENTS.attempts(clock):
            with (
                contextlib.ExitStack() as trying,
                open_alone(root, read_only=True, settings=Settings(scan_threads=1)) as database,
            ):
                store = store_of(database)
                states = _states(database, tables)
                txn, views = store.sequencer.committed, [state.view for state in states]
                if not all(_is_within(view, txn) for view in views):
                    continue
                trying.callback(end, begin(root, "backup", name, txn, _files(views)))
                # Asked after all of it is held: from here on neither files nor history go.
                is_before = txn < Horizon(coordination_of(database)).read()
                current = [store.metadata.refresh(view.metadata.table_id) for view in views]
                floors = [state.floor_txn for one in current for tablet in one.tablets for state in tablet.groups]
                if is_before or not _are_named(views, store.metadata.read) or any(floor > txn for floor in floors):
                    continue
                store_id = read_identity(coordination_of(database)).cluster
                held.push(trying.pop_all())
                break
        else:
            raise _too_fast()
        yield Capture(store_id, txn, {s.name: v for s, v in zip(states, views, strict=True)})


# --- held by a cluster -----------------------------------------------------------------------------


@contextlib.contextmanager
def _captured_in_cluster(remote: RemoteService, tables: Sequence[str] | None, name: str) -> Iterator[Capture]:
    names = remote.tables() if tables is None else list(tables)
    settings = Settings(scan_threads=1)
    for one in names:
        remote.table(one).carry_out(Flush())  # what comes meanwhile is little, and goes to a file of the backup
    with contextlib.ExitStack() as held:
        for _ in _MOMENTS.attempts(SystemClock()):
            with contextlib.ExitStack() as trying:
                txn = remote.carry_out(HoldNewest())
                trying.callback(remote.carry_out, LetGo(txn))
                found = [trying.enter_context(captured_table(remote, one, txn, settings)) for one in names]
                views = [store_of(one).table(own).view for one, own in zip(found, names, strict=True)]
                if not all(_is_within(view, txn) for view in views):
                    continue
                pin = begin(root_of(remote), "backup", name, txn, _files(views), of_remote(remote, reads_only=True))
                trying.callback(end, pin)
                # Asked after all of it is held: from here on neither files nor history go.
                if txn < pin.horizon_txn or not _are_named(views, partial(metadata_now, remote)):
                    continue
                held.push(trying.pop_all())
                break
        else:
            raise _too_fast()
        yield Capture(remote.cluster_id, txn, dict(zip(names, views, strict=True)))


# --- what is in memory ---------------------------------------------------------------------------


def with_memory(view: TableView, txn: int, files: Files, new_path: Callable[[str], str]) -> TableMetadata:
    """Write what a view has in memory up to a txn to new files; return METADATA that has them and all else."""
    metadata = view.metadata
    changes: list[Change] = []
    erased: dict[RangeErasure, None] = {}
    for group in view.schema.groups:
        held = [memory.committed(txn) for memory in view.memories_of(group.id).values()]
        blocks = [block for own, _ in held for block in own]
        erasures = [erasure for _, own in held for erasure in own]
        erased.update((RangeErasure(one.first, one.last, one.txn), None) for one in erasures)
        info = write_blocks(view, group.id, blocks, erasures, files, new_path)
        if info is not None:
            ref: FragmentRef = reference_to(info, view.schema.version)
            changes.append(add_references(group.id, [ref], metadata))
    for erasure in erased:
        tablets = metadata.overlapping(KeyRange(erasure.first, erasure.last))
        changes.append(RangeErase(erasure, tuple(TabletAt(tablet.id, tablet.epoch) for tablet in tablets)))
    return update(metadata, changes)
