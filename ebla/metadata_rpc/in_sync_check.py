"""Whether a replica is still what its leader says it is, when a master is asked to put it in sync.

    leader: put C in sync, which is level in its run 6     runs on record: logs/C/6          as asked
    the same, when C was started again meanwhile           logs/C/6, logs/C/7                no effect, a higher number

A leader asks for what it knew a moment ago. A server that was started again since may have lost its log, and would
count as in sync with nothing on its disk, perhaps in the place of another. A run that keeps replicas is on record once
it has written to its log, before it acknowledges anything, and finds out which log it has when it begins: so the newest
run on record tells both.

The change is not refused. Its leader would wait for it, as nobody could tell that it does not come through later: a
change without effect raises the number, and the leader decides again on what it hears by then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ebla.coordination.service import CoordinationService
from ebla.metadata.values.changes import Change
from ebla.metadata.values.replicating import ChangeInSync
from ebla.metadata.values.runs import start_of_run

__all__ = ["newest_start", "put_as_known"]

_log = logging.getLogger(__name__)


def newest_start(coordination: CoordinationService, server: str) -> int:
    """Return which start of a server is the newest that has a log on record; 0 if none has."""
    runs = (path.removeprefix("logs/") for path in coordination.list(f"logs/{server}"))
    return max(map(start_of_run, runs), default=0)


def put_as_known(coordination: CoordinationService, changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes, without the effect of those that put a replica in sync whose server was started again."""
    return tuple(
        _without_effect(change) if isinstance(change, ChangeInSync) and _is_over(coordination, change) else change
        for change in changes
    )


def _is_over(coordination: CoordinationService, change: ChangeInSync) -> bool:
    """Whether the run is over in which the replica that is put in sync was caught up."""
    if change.put is None or not change.put_start:
        return False
    return newest_start(coordination, change.put.server) > change.put_start


def _without_effect(change: ChangeInSync) -> ChangeInSync:
    assert change.put is not None
    _log.info(
        "tablet %s: %s is not put in sync, as it was started again since run %d",
        change.tablet,
        change.put.server,
        change.put_start,
    )
    return ChangeInSync(change.tablet, change.epoch, change.number)
