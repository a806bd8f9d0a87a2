"""Taking a table offline and back, in METADATA. Pure, like all changes.

    running --UnloadTablets--> unloaded --LoadTablets--> running

The sender has seen to it that all that the log has of the tablets is in fragments: no server has them, and no log.
"""

from __future__ import annotations

import msgspec

from ebla.metadata.values.replicating import unreplicated
from ebla.metadata.values.requirements import RequirementFailed, TabletAt, led, named_once
from ebla.metadata.values.table_metadata import TableMetadata, TabletMetadata

__all__ = ["UNLOADED", "LoadTablets", "Serving", "UnloadTablets", "serve"]

UNLOADED = "unloaded"
_RUNNING = "running"


class UnloadTablets(msgspec.Struct, frozen=True, array_like=True, tag="unload_tablets"):
    """No server has these tablets any more. With `keeps_log`, replies to clients are in the log of the last one."""

    tablets: tuple[TabletAt, ...]
    keeps_log: bool = False


class LoadTablets(msgspec.Struct, frozen=True, array_like=True, tag="load_tablets"):
    """These tablets are to be served again. With `keeps_log`, whoever does so looks at the log of the last one."""

    tablets: tuple[TabletAt, ...]
    keeps_log: bool = False


Serving = UnloadTablets | LoadTablets


def serve(metadata: TableMetadata, change: Serving) -> TableMetadata:
    """Return the metadata with tablets unloaded or to be served; what is so already stays so."""
    named_once(change.tablets)
    wanted, other = (UNLOADED, _RUNNING) if isinstance(change, UnloadTablets) else (_RUNNING, UNLOADED)
    changed: list[TabletMetadata] = []
    for at in change.tablets:
        tablet = unreplicated(
            led(metadata, at), "taking such a table offline is not there yet; set replicas to 1 first"
        )
        if tablet.state not in (wanted, other):
            raise RequirementFailed("busy", f"tablet {tablet.id} is {tablet.state}: let that end first")
        log = tablet.log if change.keeps_log else None
        changed.append(msgspec.structs.replace(tablet, state=wanted, leader=None, log=log))
    return metadata.with_tablets(changed)
