"""What a report means: for every reported replica, whether it is as it should be, and what to do if not. Pure.

    tablet in METADATA, this replica assigned    creating, and the leader says running    start
                                                 older schema version                     alter
                                                 older epoch, or stopped and should not   update
                                                 failed                                   another is to lead it
                                                 led here, offered to another             hand over
    tablet in METADATA, another assignment       delete, once all that are assigned have said that they serve it
    tablet on record as replaced, table purged   delete
    deleted table                                update (stop serving); delete when the retention is over
    of an epoch or version that is news to us    refresh: somebody else changed METADATA, look again
    nobody knows it                              refresh; if that does not help, leave it alone and show it

An unknown tablet is deleted only if it is known to be deleted. "Not found" is no knowledge: it may be a tablet of a
split that this master has not heard of, or a mistake of ours.
"""

from __future__ import annotations

from collections.abc import Callable

from ebla.master.catalog import Catalog
from ebla.master.messages import ReportedTablet
from ebla.metadata.values.assigning import CREATING
from ebla.metadata.values.table_metadata import TabletMetadata

__all__ = [
    "ALTER",
    "CREATE",
    "DELETE",
    "FAILED",
    "GIVE_UP",
    "HAND_OVER",
    "REFRESH",
    "REPLICATE",
    "START",
    "TAKE_OUT",
    "UNKNOWN",
    "UPDATE",
    "judge",
]

CREATE = "create"
UPDATE = "update"
ALTER = "alter"
DELETE = "delete"
START = "start"
FAILED = "failed"
REFRESH = "refresh"
HAND_OVER = "hand over"
GIVE_UP = "give up"
TAKE_OUT = "take out"
REPLICATE = "replicate"
UNKNOWN = "unknown"

_NOTHING: tuple[str, ...] = ()


def judge(
    catalog: Catalog,
    server: str,
    replica: ReportedTablet,
    retained: dict[str, bool],
    is_in_other_hands: Callable[[TabletMetadata, str], bool],
) -> tuple[TabletMetadata | None, tuple[str, ...]]:
    """Return the tablet if a server is to have the replica of it that it reports, and what has to be done about it.

    `retained` says of every deleted table whether it can still be brought back; `is_in_other_hands` whether all other
    servers that are to have a tablet have said that they serve it: until then any replica may be the last.
    """
    if replica.table in catalog.tombstones or replica.tablet in catalog.gone:
        return None, (DELETE,)
    info = catalog.tablets.get(replica.tablet)
    stored = None if info is None else info.stored
    metadata = None if stored is None else stored.metadata
    tablet = None if metadata is None else metadata.by_id(replica.tablet)
    if info is None or stored is None or metadata is None or tablet is None:
        return None, (UNKNOWN,)
    for assigned in tablet.assigned:
        if assigned.server == server and assigned.assignment_id == replica.assignment_id:
            break
    else:
        if replica.epoch > tablet.epoch:
            return None, (REFRESH,)
        is_over = stored.config.is_deleted and not retained.get(info.id, True)
        return None, (DELETE,) if is_over or is_in_other_hands(tablet, server) else _NOTHING
    schema_version = metadata.schema.version
    if replica.epoch > tablet.epoch or replica.schema_version > schema_version:
        return tablet, (REFRESH,)
    is_deleted = stored.config.is_deleted
    if is_deleted and not retained.get(info.id, True):
        return tablet, (DELETE,)
    is_running = replica.state == "running"
    if (
        is_running
        and not is_deleted
        and replica.epoch == tablet.epoch
        and replica.schema_version == schema_version
        and tablet.state != CREATING
        and tablet.leader is not None
    ):
        # The master that offered it to another, or the run that it asked to resign, may be gone since.
        return tablet, (HAND_OVER,) if tablet.target is not None and tablet.leader == server else _NOTHING
    actions = []
    if replica.schema_version < schema_version:
        actions.append(ALTER)
    if replica.epoch < tablet.epoch or (replica.state == "stopped") != is_deleted:
        actions.append(UPDATE)
    if tablet.leader is None and assigned == tablet.target:
        actions.append(CREATE)  # it has it already, as who led it before, and is to take it over all the same
    if replica.state == "failed" and replica.epoch == tablet.epoch:
        actions.append(FAILED)
    if tablet.state == CREATING and is_running and tablet.leader == server and replica.epoch == tablet.epoch:
        actions.append(START)
    return tablet, tuple(actions)
