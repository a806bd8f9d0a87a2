"""How a store is, for people outside of it: `ebla.status` and ``ebla status``, whoever has it open or nobody.

    coordination service, METADATA   which tables there are, their tablets, fragments and bytes; what is damaged
    sizes of files                   the log and METADATA
    LOCK, STATUS                     who has the store open; what that process told last (publishing.py)

It takes no lock and reads no rows and no log: the owner does not notice.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from ebla.client.embedded.coordination_place import connect_at, is_store, no_store, recorded_address
from ebla.client.embedded.opening import checked_root, new_id
from ebla.client.embedded.ownership import OWNER_NODE
from ebla.client.embedded.publishing import Status, is_locked, read_status
from ebla.clock import Clock, SystemClock
from ebla.coordination.lease import LeaseRecord
from ebla.coordination.service import CoordinationService
from ebla.metadata.values.table_metadata import TableMetadata
from ebla.service.counters import Counters
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.recovery.found_tables import FoundTable, read_tables
from ebla.tablet.recovery.identity import read_identity
from ebla.tablet.recovery.open_metadata import open_metadata

__all__ = ["Owner", "StoreStatus", "TableStatus", "status"]


class Owner(msgspec.Struct, frozen=True):
    """The process that has a store open for writing, or had it last, by what it told."""

    pid: int
    host: str
    version: str
    opened: datetime
    told: datetime
    counters: Counters


class TableStatus(msgspec.Struct, frozen=True):
    """What METADATA says of one table; `damage` if it cannot be served, or not all of it."""

    name: str
    tablets: int = 0
    fragments: int = 0
    fragment_bytes: int = 0
    is_offline: bool = False
    damage: str = ""


class StoreStatus(msgspec.Struct, frozen=True):
    """How a store is. `state` is ``died`` if its last owner ended without closing it: the next open replays the log."""

    path: str
    state: Literal["open", "closed", "died"]
    owner: Owner | None
    format_version: int
    tables: tuple[TableStatus, ...]
    fragment_bytes: int
    log_bytes: int
    log_segments: int
    metadata_bytes: int
    problems: tuple[str, ...]


def status(path: str | os.PathLike[str] = "data") -> StoreStatus:
    """Tell how a store is: who has it open, its tables and sizes, and what is wrong. Takes no lock, changes nothing."""
    root = checked_root(path)
    if not is_store(root):
        raise no_store(root)
    clock = SystemClock()
    files = LocalFiles(root)
    with connect_at(root, clock, read_only=True) as coordination:
        identity = read_identity(coordination)
        metadata = open_metadata(coordination, files, clock, new_id, identity, read_only=True)
        tables = tuple(_table_status(found) for found in read_tables(metadata) if not found.is_unlinked)
        told = read_status(root)
        state = _state(root, told, coordination, clock)
    log = _sizes(root / "log", "*/*.log")
    problems = [f"{table.name}: {table.damage}" for table in tables if table.damage]
    if told is not None and state == "open":
        problems += [failure for failure in told.failures if failure not in problems]
    return StoreStatus(
        path=str(root),
        state=state,
        owner=None if told is None else _owner(told),
        format_version=identity.format_version,
        tables=tables,
        fragment_bytes=sum(_sizes(root / "fragments", "*/*.parquet")),
        log_bytes=sum(log),
        log_segments=len(log),
        metadata_bytes=sum(_sizes(root / "metadata", "*/*.meta")),
        problems=tuple(problems),
    )


def _owner(told: Status) -> Owner:
    return Owner(
        told.pid,
        told.host,
        told.version,
        _time(told.opened_microseconds),
        _time(told.told_microseconds),
        told.counters,
    )


def _time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def _table_status(found: FoundTable) -> TableStatus:
    metadata: TableMetadata | None = found.metadata
    if metadata is None:
        return TableStatus(found.name, damage=str(found.error))
    # Clipped by a split, a file may be named by several tablets.
    sizes = {ref.file: ref.bytes for tablet in metadata.tablets for group in tablet.groups for ref in group.fragments}
    return TableStatus(
        name=found.name,
        tablets=len(metadata.tablets),
        fragments=len(sizes),
        fragment_bytes=sum(sizes.values()),
        is_offline=any(tablet.state == "unloaded" for tablet in metadata.tablets),
        damage=found.damage,
    )


def _sizes(directory: Path, pattern: str) -> list[int]:
    sizes = []
    for path in directory.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
            sizes.append(path.stat().st_size)
    return sizes


def _state(
    root: Path, told: Status | None, coordination: CoordinationService, clock: Clock
) -> Literal["open", "closed", "died"]:
    if is_locked(root, told) or _is_leased(root, coordination, clock):
        return "open"
    return "died" if told is not None and not told.is_closed else "closed"


def _is_leased(root: Path, coordination: CoordinationService, clock: Clock) -> bool:
    """Tell whether a host holds the lease of a store that several hosts see."""
    if recorded_address(root) is None:
        return False
    node = coordination.read(OWNER_NODE)
    lease = None if node is None else msgspec.json.decode(node.value, type=LeaseRecord)
    return lease is not None and bool(lease.owner) and clock.microseconds() < lease.expires_microseconds
