"""The machine's host in a real server: entries come numbered, a run is a lease, METADATA is known by table."""

from __future__ import annotations

from collections.abc import Callable

from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata
from ebla.replication.configuration import Configuration, Position
from ebla.replication.host import Host
from ebla.replication.lease import Lease
from ebla.replication.server_log import ServerLog
from ebla.replication.settings import ReplicationSettings
from ebla.tablet.lead.run import server_of_run

__all__ = ["LiveHost", "configuration_of", "name_of", "split_name"]

# The log cuts itself into segments.
NO_SEGMENTS = 1 << 62


class RunLease(Lease):
    """The lease of a run: its number is that of the start, and it covers what the run leads as long as it is held."""

    __slots__ = ("_is_held",)

    def __init__(self, start: int, is_held: Callable[[], bool], seconds: float) -> None:
        super().__init__(seconds)
        self.number = start
        self._is_held = is_held

    def covers(self, number: int, now: float) -> bool:
        """Tell whether the run of this number answers."""
        return number == self.number and self._is_held()


class LiveHost(Host):
    """One run of a server."""

    __slots__ = ("versions",)
    is_numbering = False

    def __init__(
        self, server: str, start: int, log_id: str, is_held: Callable[[], bool], settings: ReplicationSettings
    ) -> None:
        super().__init__(server, start, log_id, ServerLog((), NO_SEGMENTS), settings)
        self.lease = RunLease(start, is_held, settings.lease_seconds)
        self.versions: dict[str, int] = {}  # of METADATA, by table

    def version_of(self, tablet: str) -> int:
        """Return the version of METADATA that is known here of a tablet's table."""
        return self.versions.get(split_name(tablet)[0], 0)


def name_of(table: str, tablet: str) -> str:
    """Return how the machine calls a tablet of a table."""
    return f"{table}/{tablet}"


def split_name(name: str) -> tuple[str, str]:
    """Return the table and the tablet that the machine calls so."""
    table, _, tablet = name.partition("/")
    return table, tablet


def configuration_of(metadata: TableMetadata, tablet: TabletMetadata) -> Configuration:
    """Return a tablet of METADATA as the machine sees it. Its lease is the start number of the run that leads it."""
    lease = 0
    if tablet.log is not None and server_of_run(tablet.log) == tablet.leader:
        lease = int(tablet.log.rpartition("/")[2])
    return Configuration(
        name_of(metadata.table_id, tablet.id),
        tablet.first,
        tablet.last,
        tablet.epoch,
        tablet.number,
        tablet.leader or "",
        lease,
        tablet.replicas,
        tablet.wanted,
        tablet.counted,
        tablet.txn_floor,
        Position(tablet.flushed_epoch, tablet.flushed_index),
        schema_version=metadata.schema.version,
        leaving=tablet.leaving,
    )
