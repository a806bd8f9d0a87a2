"""What a job keeps for itself: its snapshot from compaction, its files from garbage collection.

    db.spark("users") --> frame --> its session --> Holding: a pin at the txn, and the files that Spark reads by name
                            |
                            `--> frame.where(...), .select(...), .groupBy(...)     hold on to the same session

Every DataFrame that is derived from another takes over its session object. So the frame gets one of its own, which is
Spark's in all but identity, and when the last of these DataFrames is gone, so is what was held.

    a database open for writing here    held in this process, before the plan is made
    a cluster                           plan of what its servers tell -> hold by name -> the same question
    any other                           plan -> hold by name -> is all of it still there? if not, plan anew

Who has such a store open sees what is held by name (`held_pins`), and so does whoever opens it while the job runs.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from ebla.client.database import Database
from ebla.client.moments import AsOf
from ebla.client.remote.remote_service import RemoteService
from ebla.direct import held_pins
from ebla.direct.clusters import captured_table, cluster_of, connected, metadata_now, remote_of
from ebla.direct.held_pins import Held
from ebla.direct.opens import coordination_of, opened, store_of
from ebla.errors import EblaError, HistoryGone, MissingFile, Unavailable
from ebla.model.ranges import ALL, KeyRange
from ebla.retry import RACES
from ebla.settings import Settings
from ebla.tablet.engine import TabletStore
from ebla.tablet.read.view import check_history
from ebla.tablet.tables.table_state import TableState
from ebla.tablet.upkeep.horizon import Horizon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Holding", "Needs", "SharedHolding", "held_plan", "opened_table"]

_log = logging.getLogger(__name__)
Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a plan needs to be there: rows of some groups of a table as of a txn, and files that are read by name.

    `is_fixed`: it must be this txn; else a newer one does as well.
    """

    what: str
    table: TableState
    txn: int
    groups: tuple[int, ...]
    range: KeyRange = ALL
    files: frozenset[str] = frozenset()
    is_fixed: bool = False
    cluster: tuple[str, ...] = ()


class Holding:
    """Holds a txn and files of a store until it is released, or whoever it was given to is gone."""

    def __init__(self) -> None:
        self._let_go: list[Callable[[], None]] = []
        self._held: list[Held] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def hold(self, store: TabletStore, txn: int) -> None:
        """Hold a txn. It is held before anybody asks whether history still reaches back to it."""
        store.pins.hold(txn)
        self._let_go.append(lambda: store.pins.let_go(txn))

    def hold_files(self, store: TabletStore, files: Iterable[str]) -> None:
        """Hold fragments."""
        self._let_go.append(store.hold_files(files))

    def hold_by_name(self, root: str, needs: Needs) -> Held:
        """Put on record what a plan needs, for whoever has the store open, or opens it."""
        held = held_pins.begin(root, needs.what, needs.table.name, needs.txn, needs.files, needs.cluster)
        self._held.append(held)
        return held

    def release(self) -> None:
        """Let go of everything. Doing it twice is fine."""
        self._release(held_pins.end)

    def _release(self, end: Callable[[Held], None]) -> None:
        while self._let_go:
            self._let_go.pop()()
        while self._held:
            end(self._held.pop())

    def given_to(self, spark: SparkSession, at_end: Callable[[], None] | None = None) -> SparkSession:
        """Return a session like this one for DataFrames: with the last of them, what is held is let go.

        With `at_end`, that is called then, and has to see to it; it must not wait for anything.
        """
        own: SparkSession = object.__new__(type(spark))
        own.__dict__.update(spark.__dict__)
        if at_end is None:
            self.kept_by(own)
        else:
            weakref.finalize(own, at_end).atexit = False
        return own

    def kept_by(self, owner: object) -> None:
        """Let go of everything when an object is gone, if not before."""
        weakref.finalize(owner, self._release, held_pins.end_later).atexit = False


class SharedHolding(Holding):
    """Holds the txn of a load whose end nobody sees: its tasks renew it. No files."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Held | None = None

    def hold_by_name(self, root: str, needs: Needs) -> Held:
        """Put on record what a plan needs, for whoever has the store open, or opens it."""
        assert not needs.files, "they are read through opens that are made anew"
        self.held = held_pins.share(root, needs.txn, needs.cluster)
        return self.held


def held_plan(
    source: Database | str | os.PathLike[str],
    holding: Holding | None,
    plan: Callable[[Database], tuple[Plan, Needs]],
    settings: Settings | None = None,
    *,
    table: str | None = None,
    as_of: AsOf | None = None,
) -> Plan:
    """Make a plan and hold what it needs; made anew, of the newest there is, if some of that went before it was held.

    In a store that is open for writing here, `plan` itself holds. `HistoryGone` if the txn must be one that is gone.
    Of a cluster, `table` as of a moment is what the plan is made of.
    """
    remote = remote_of(source) if isinstance(source, Database) else None
    if remote is not None and table is not None:
        return _held_plan_in(remote, holding, plan, table, as_of, settings)
    for _ in RACES:
        with opened(source, settings) as database:
            try:
                made, needs = plan(database)
            except HistoryGone:
                if database is not source or store_of(database).is_writable:
                    raise
                source = database.path  # files that this open names are gone; what it shows need not be
                continue
            if holding is None or store_of(database).is_writable or _is_held(database, holding, needs):
                return made
            holding.release()
            source = database.path
    raise Unavailable("the store is compacted faster than a job can be planned: nothing was done, retry")


@contextmanager
def opened_table(
    source: Database | str | os.PathLike[str], table: str, what: str, settings: Settings | None = None
) -> Iterator[Database]:
    """Lend the database given, or a read-only open of a root; of a cluster, a table as it is now, held for a job."""
    remote = remote_of(source) if isinstance(source, Database) else None
    if remote is None:
        with opened(source, settings) as database:
            yield database
        return
    for _ in RACES:
        with captured_table(remote, table, None, settings) as database, Holding() as holding:
            store = store_of(database)
            state = store.table(table)
            metadata = state.view.metadata
            groups = tuple(group.id for group in metadata.schema.groups)
            needs = Needs(what, state, store.sequencer.committed, groups, files=frozenset(metadata.files()))
            if _is_held(database, holding, replace(needs, cluster=cluster_of(database))):
                yield database
                return
    raise _too_fast()


def _too_fast() -> Unavailable:
    return Unavailable("the table is compacted faster than a job can be planned: nothing was done, retry")


def _held_plan_in(
    remote: RemoteService,
    holding: Holding | None,
    plan: Callable[[Database], tuple[Plan, Needs]],
    table: str,
    as_of: AsOf | None,
    settings: Settings | None,
) -> Plan:
    for _ in RACES:
        with captured_table(remote, table, as_of, settings) as database:
            try:
                made, needs = plan(database)
            except (HistoryGone, MissingFile):
                if as_of is not None:
                    raise
                continue  # compacted since it was captured
            needs = replace(needs, cluster=cluster_of(database))
            if holding is None or _is_held(database, holding, needs):
                return made
            holding.release()
    raise _too_fast()


def _is_held(database: Database, holding: Holding, needs: Needs) -> bool:
    try:
        held = holding.hold_by_name(str(database.path.resolve()), needs)
    except EblaError as error:
        _log.warning("what a job reads is not held, and is there only while history lasts: %s", error)
        return True
    return _is_there(database, needs, held)


def _is_there(database: Database, needs: Needs, held: Held) -> bool:
    """Tell whether all of it is still there, asked after it was held."""
    horizon = held.horizon_txn if needs.cluster else Horizon(coordination_of(database)).read()
    if not needs.is_fixed and needs.txn < horizon:
        return False
    if needs.cluster:
        remote = remote_of(connected(needs.cluster))
        assert remote is not None
        now = metadata_now(remote, needs.table.id, needs.txn)
    else:
        now = store_of(database).metadata.refresh(needs.table.id)
    if now.txnid == needs.table.view.metadata.txnid:
        return True
    try:
        for tablet in now.overlapping(needs.range):
            for group in needs.groups:
                check_history(tablet.group(group), needs.txn)
    except HistoryGone:
        return False
    return not needs.files or needs.files <= set(now.files())
