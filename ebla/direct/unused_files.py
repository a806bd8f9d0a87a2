"""What is known of a store's files by others than its tables, for a job that looks for those that nobody names.

The rules are the engine's (`ebla.tablet.garbage`): a job lists files, reads METADATA of every table, and hands what it
has `Seen` to `sum_up`. What it asks of the store is read from the coordination service, without its owner.
"""

from __future__ import annotations

from collections.abc import Mapping

from ebla.clock import SystemClock
from ebla.direct.place import Place
from ebla.metadata.server.directory import TableDirectory
from ebla.metadata.server.dropped import DroppedTables
from ebla.metadata.values.table_config import TableConfig
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.flush.pending_files import FRAGMENTS
from ebla.tablet.garbage.candidates import Candidates
from ebla.tablet.garbage.garbage_report import Seen, sum_up
from ebla.tablet.garbage.job_intents import list_intents
from ebla.tablet.garbage.lost_tables import METADATA, Strangers, look_at_strangers, lost
from ebla.tablet.garbage.pins import Pins

__all__ = [
    "FRAGMENTS",
    "METADATA",
    "Seen",
    "Strangers",
    "candidates",
    "dropped_ids",
    "look_at_strangers",
    "lost",
    "sum_up",
    "table_configs",
    "used_by_jobs",
]


def used_by_jobs(place: Place, now_microseconds: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return how the names of files begin that jobs are about to write, and the files that jobs read."""
    with place.coordination() as coordination:
        intents = [one for one in list_intents(coordination) if one.expires_microseconds > now_microseconds]
        return tuple(one.prefix for one in intents), Pins(coordination, SystemClock()).files()


def candidates(place: Place) -> tuple[Mapping[str, int], int | None]:
    """Return what earlier rounds found unused, since when, and the version of that list."""
    with place.coordination() as coordination:
        return Candidates(coordination, LocalFiles(place.root)).read()


def table_configs(place: Place) -> dict[str, TableConfig]:
    """Return what is known of every table, by its id; also of those that are being dropped."""
    with place.coordination() as coordination:
        return TableDirectory(coordination, SystemClock()).configs()


def dropped_ids(place: Place) -> list[str]:
    """Return the ids of tables that are gone for good."""
    with place.coordination() as coordination:
        return DroppedTables(coordination).ids()
