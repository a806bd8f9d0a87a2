"""The catalog: every table and tablet in memory, found by id, by name, by tablet id, and by key.

    name  ---.
    table id --> TableInfo --> StoredTable --> tablets by first row          locate: two lookups and a binary search
    tablet id -'
    server  ----> its tablets, how many of them it leads                     what placement and balancing go by

The catalog is a copy of what is durable, never ahead of it: operations write first and `install` then. Readers take no
lock. Writers are one at a time between their writes (the driver sees to that), so nothing here needs one either.

A **name** belongs to the table that has it, or to the operation that has reserved it: create, rename and undelete all
reserve, so that two of them cannot both win it. **Tombstones** are the ids of what is gone for good: only what has one,
or is on record as replaced, may be deleted from a server that reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ebla.errors import TableExists, UnknownTable
from ebla.master.table_info import TableInfo, TabletInfo
from ebla.master.writes import StoredTable
from ebla.metadata.values.assigning import CREATING, PREPARING
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata

__all__ = ["Catalog"]

_PENDING = (PREPARING, CREATING)


class Catalog:
    """All tables.

    `moved` and `switched` are what servers have to be told of, whoever decided it; the master takes it from there.

    Iteration orders are those of insertion, so that the same events give the same decisions."""

    def __init__(self) -> None:
        self.tables: dict[str, TableInfo] = {}
        self.names: dict[str, TableInfo] = {}
        self.tablets: dict[str, TableInfo] = {}
        self.tombstones: set[str] = set()  # ids of purged tables; never iterated
        self.gone: dict[str, str] = {}  # tablets that were replaced, split or joined -> their table
        self.retired: set[str] = set()  # those of them that were split or joined; never iterated
        self.pending: dict[str, None] = {}  # tablets of running tables that wait for servers, or for their leader
        self.vacant: dict[str, None] = {}  # tablets that are to be served, and that nobody leads
        self.offered: dict[str, None] = {}  # tablets that another server is to lead next
        self.replicated: dict[str, None] = {}  # tablets that have several replicas, or are to have some
        self.altering: dict[str, None] = {}  # tables of which former schemas are kept
        self.deleted: dict[str, TableInfo] = {}  # tables that are to be purged, or brought back
        self.stale: dict[str, None] = {}  # tables that are known to be otherwise than they are here: look again
        self.moved: list[tuple[TabletMetadata | None, TabletMetadata | None]] = []  # placed otherwise: before, after
        self.switched: dict[str, None] = {}  # tables that were deleted, brought back or altered
        self._is_loading = False
        self._placed: dict[str, dict[str, None]] = {}  # server -> tablets
        self._leads: dict[str, int] = {}
        self._reserved: dict[str, str] = {}  # name -> the operation that is about to give it to a table

    # --- reading ---------------------------------------------------------------------------------

    def table(self, name: str) -> TableInfo:
        """Return the table of that name; `UnknownTable` if there is none."""
        info = self.names.get(name)
        if info is None:
            raise UnknownTable(f"there is no table {name!r}")
        return info

    def locate(self, name: str, row: bytes) -> TabletInfo:
        """Return the tablet of a table that `row` belongs to."""
        info = self.table(name)
        stored = info.stored
        assert stored is not None
        assert stored.metadata is not None
        return TabletInfo(info, stored, stored.metadata.tablet_for(row))

    def tablet(self, tablet_id: str) -> TabletInfo | None:
        """Return the tablet of that id, of a table that is there or deleted; None if there is none."""
        info = self.tablets.get(tablet_id)
        if info is None:
            return None
        stored = info.stored
        assert stored is not None
        assert stored.metadata is not None
        tablet = stored.metadata.by_id(tablet_id)
        return None if tablet is None else TabletInfo(info, stored, tablet)

    def placed_on(self, server: str) -> dict[str, None]:
        """Return the tablets of which a server is to keep a replica, as a set that must not be changed."""
        return self._placed.get(server, {})

    def led_by(self, server: str) -> list[tuple[str, int]]:
        """Return the tablets that a server is to lead, with their epochs."""
        found = (self.tablet(tablet_id) for tablet_id in self.placed_on(server))
        return [(info.tablet.id, info.tablet.epoch) for info in found if info and info.tablet.leader == server]

    def replicas_on(self, server: str) -> int:
        """Return how many replicas a server is to keep."""
        return len(self._placed.get(server, ()))

    def leaders_on(self, server: str) -> int:
        """Return how many tablets a server is to lead."""
        return self._leads.get(server, 0)

    def placed_servers(self) -> Iterator[str]:
        """Yield every server that is to keep something."""
        return (server for server, tablets in self._placed.items() if tablets)

    def named(self) -> list[TableInfo]:
        """Return the tables that clients see, sorted by name."""
        return [self.names[name] for name in sorted(self.names)]

    def configs(self) -> dict[str, TableConfig]:
        """Return the configurations of tables as they would be if METADATA was as it is known here."""
        found = {}
        for table_id, info in self.tables.items():
            stored = info.stored
            if stored is not None and stored.metadata is not None:
                found[table_id] = msgspec.structs.replace(stored.config, metadata_txnid=stored.metadata.txnid)
        return found

    # --- names -----------------------------------------------------------------------------------

    def reserve(self, name: str, owner: str) -> None:
        """Keep a name for one operation; `TableExists` if a table has it or another operation is about to give it."""
        if name in self.names:
            raise TableExists(f"there is a table {name!r} already: choose another name, or drop it first")
        if name in self._reserved:
            raise TableExists(f"a table {name!r} is being made: choose another name, or wait and see")
        self._reserved[name] = owner

    def release(self, name: str) -> None:
        """Give a reserved name back, used or not."""
        self._reserved.pop(name, None)

    # --- commits to memory -----------------------------------------------------------------------

    def load(self, tables: Iterable[StoredTable]) -> None:
        """Take over what is durable, at the start of a term."""
        self._is_loading = True
        for stored in tables:
            self.install(stored)
        self._is_loading = False

    def install(self, stored: StoredTable) -> TableInfo | None:
        """Commit a table to memory as it is durably. Of METADATA the newest that is known counts."""
        if stored.is_purged:
            self._purge(stored.table_id)
            return None
        info = self.tables.get(stored.table_id)
        if info is None:
            info = self.tables[stored.table_id] = TableInfo(stored.table_id)
        known = None if info.stored is None else info.stored.metadata
        metadata = stored.metadata
        assert metadata is not None
        if known is not None and known.sequence > metadata.sequence:
            metadata = known
        if info.stored is not None and info.stored.config.state != stored.config.state:
            self.switched[info.id] = None
        self._index_name(info, stored)
        if metadata is not known:
            self._index_tablets(info, known, metadata)
        info.stored = StoredTable(stored.table_id, stored.config, metadata)
        info.switches += 1
        if stored.config.is_deleted:
            self.deleted[info.id] = info
            for tablet in metadata.tablets:
                self.pending.pop(tablet.id, None)
        elif self.deleted.pop(info.id, None) is not None:
            self.pending.update((tablet.id, None) for tablet in metadata.tablets if tablet.state in _PENDING)
        return info

    def install_metadata(self, metadata: TableMetadata) -> None:
        """Commit the outcome of a METADATA transaction to memory, unless a newer one is known, or the table is gone."""
        info = self.tables.get(metadata.table_id)
        if info is None or info.stored is None or info.metadata.sequence >= metadata.sequence:
            return
        self._index_tablets(info, info.metadata, metadata)
        info.stored = StoredTable(info.id, info.stored.config, metadata)
        if info.is_deleted:
            for tablet in metadata.tablets:
                self.pending.pop(tablet.id, None)

    def add_preparing(self, table_id: str, dirty: StoredTable) -> TableInfo:
        """Add a table that nobody sees yet."""
        info = self.tables[table_id] = TableInfo(table_id)
        info.begin("its creation", dirty)
        return info

    def drop_preparing(self, table_id: str) -> None:
        """Forget a table whose creation failed."""
        info = self.tables.get(table_id)
        if info is not None and info.stored is None:
            del self.tables[table_id]

    def _index_name(self, info: TableInfo, stored: StoredTable) -> None:
        # The new name first: a reader beside this finds the table by one name or both, never by none.
        name = None if stored.config.is_deleted else stored.config.name
        if name is not None:
            self.names[name] = info
        if info.is_visible and info.name != name and self.names.get(info.name) is info:
            del self.names[info.name]

    def _index_tablets(self, info: TableInfo, known: TableMetadata | None, metadata: TableMetadata) -> None:
        if known is None:
            gone: Sequence[TabletMetadata] = ()
            new: Sequence[TabletMetadata] = metadata.tablets
        elif len(known.tablets) == len(metadata.tablets):
            pairs = [(a, b) for a, b in zip(known.tablets, metadata.tablets, strict=True) if a is not b]
            former_ones: list[TabletMetadata] = []
            changed: list[TabletMetadata] = []
            for former, tablet in pairs:
                if _is_placed_alike(former, tablet):
                    self._index_state(tablet)
                else:
                    former_ones.append(former)
                    changed.append(tablet)
            gone, new = former_ones, changed
        else:
            gone = [tablet for tablet in known.tablets if metadata.by_id(tablet.id) is not tablet]
            new = [tablet for tablet in metadata.tablets if known.by_id(tablet.id) is not tablet]
        if metadata.former:
            self.altering[info.id] = None
        else:
            self.altering.pop(info.id, None)
        if not self._is_loading:
            self._note_moves(gone, new)
            if known is not None and known.schema.version != metadata.schema.version:
                self.switched[info.id] = None
        for tablet in gone:
            self._drop_tablet(tablet)
        for tablet in new:
            self._add_tablet(info, tablet)
        if known is None or known.replaced is not metadata.replaced:
            self.gone.update((one.tablet, info.id) for one in metadata.replaced)
        if known is None or known.retired is not metadata.retired:
            self.gone.update((one.tablet, info.id) for one in metadata.retired)
            self.retired.update(one.tablet for one in metadata.retired)

    def _note_moves(self, gone: Iterable[TabletMetadata], new: Iterable[TabletMetadata]) -> None:
        """Keep which tablets have got other servers, another leader, or another epoch."""
        before = {tablet.id: tablet for tablet in gone}
        for tablet in new:
            former = before.pop(tablet.id, None)
            if tablet.assigned and (
                former is None or former.epoch != tablet.epoch or former.assigned != tablet.assigned
            ):
                self.moved.append((former, tablet))
        self.moved.extend((tablet, None) for tablet in before.values())

    def _add_tablet(self, info: TableInfo, tablet: TabletMetadata) -> None:
        self.tablets[tablet.id] = info
        self._index_state(tablet)
        for replica in tablet.assigned:
            placed = self._placed.get(replica.server)
            if placed is None:
                placed = self._placed[replica.server] = {}
            placed[tablet.id] = None
        if tablet.leader is not None:
            self._leads[tablet.leader] = self._leads.get(tablet.leader, 0) + 1

    def _index_state(self, tablet: TabletMetadata) -> None:
        if tablet.state in _PENDING:
            self.pending[tablet.id] = None
        else:
            self.pending.pop(tablet.id, None)
        for is_so, known in (
            (tablet.is_served and tablet.leader is None, self.vacant),
            (tablet.target is not None, self.offered),
            (tablet.is_replicated, self.replicated),
        ):
            if is_so:
                known[tablet.id] = None
            else:
                known.pop(tablet.id, None)

    def _drop_tablet(self, tablet: TabletMetadata) -> None:
        self.tablets.pop(tablet.id, None)
        for known in (self.pending, self.vacant, self.offered, self.replicated):
            known.pop(tablet.id, None)
        for replica in tablet.assigned:
            self._placed[replica.server].pop(tablet.id, None)
        if tablet.leader is not None:
            self._leads[tablet.leader] -= 1

    def _purge(self, table_id: str) -> None:
        self.tombstones.add(table_id)
        info = self.tables.pop(table_id, None)
        self.deleted.pop(table_id, None)
        self.altering.pop(table_id, None)
        if info is None or info.stored is None:
            return
        if info.is_visible and self.names.get(info.name) is info:
            del self.names[info.name]
        metadata = info.metadata
        for tablet in metadata.tablets:
            self._drop_tablet(tablet)
        for replaced in metadata.replaced:
            self.gone.pop(replaced.tablet, None)
        for retired in metadata.retired:
            self.gone.pop(retired.tablet, None)
            self.retired.discard(retired.tablet)


def _is_placed_alike(former: TabletMetadata, tablet: TabletMetadata) -> bool:
    """Whether two values of a tablet have it on the same servers, under the same leader and epoch."""
    return (
        former.id == tablet.id
        and former.epoch == tablet.epoch
        and former.leader == tablet.leader
        and former.target == tablet.target
        and (former.replicas is tablet.replicas or former.replicas == tablet.replicas)
    )
