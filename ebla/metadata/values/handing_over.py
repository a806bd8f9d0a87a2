"""A tablet with one replica changes hands, in METADATA. Pure, like all changes.

    led by A ----OfferTablets(B)----> led by A, offered to B            A flushes, pauses, and resigns
       |                                  |
       |  A resigned, or its lease is over: VacateTablets               from here on A changes nothing any more
       v                                  v
    led by nobody --OfferTablets(B)--> led by nobody, offered to B --TakeOver--> led by B

Who leads nothing has nothing: B is made the leader by B's own change, once it has replayed what A's log holds of the
tablet, and names in the same transaction the fragments that this became. So **no server is made the leader of what it
does not have**, and a target that never answers has cost nothing: the tablet is offered to another.

Vacating raises the epoch, and so does taking over: a flush of A that comes late is refused, and of two targets that
were offered the tablet one after the other only the last one can take it. `log_epoch` is the epoch since which the
tablet's log is its log: entries of lower epochs in it, as of a server that gets the tablet back, never count.
A split or a join that A had begun is undone; whoever leads next may begin again.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ebla.metadata.values.recutting import RUNNING
from ebla.metadata.values.replicating import unreplicated
from ebla.metadata.values.requirements import RequirementFailed, TabletAt, led, named_once
from ebla.metadata.values.table_metadata import LogEnd, Replica, TableMetadata, TabletMetadata

__all__ = ["HandOver", "Offer", "OfferTablets", "TakeOver", "VacateTablets", "hand_over"]


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """A tablet, decided when it was at `epoch`, and the server that is to have it; None: nobody else is."""

    tablet: str
    epoch: int
    target: Replica | None


class OfferTablets(msgspec.Struct, frozen=True, array_like=True, tag="offer_tablets"):
    """These servers are to lead these tablets next. Nothing else changes, not even the epoch."""

    offers: tuple[Offer, ...]


class VacateTablets(msgspec.Struct, frozen=True, array_like=True, tag="vacate_tablets"):
    """`leader` leads these tablets no more: it says so itself, or its lease is over.

    `is_flushed` says that all that its log has of them is in fragments: then nobody has to replay it. Which log that
    was stays on record: the txns of whoever leads next are above those of whoever wrote it.
    """

    tablets: tuple[TabletAt, ...]
    leader: str
    is_flushed: bool = False


class TakeOver(msgspec.Struct, frozen=True, array_like=True, tag="take_over"):
    """`server` leads a tablet that nobody led, at the next epoch, and writes to its own log from now on.

    `end` is where the log that it has replayed ended: nothing beyond it ever counts, whoever still writes there. None:
    there was no log to replay. What was replayed is named by changes behind this one, at the epoch that it leads to.
    """

    tablet: TabletAt
    server: str
    assignment_id: str
    log: str
    end: LogEnd | None = None


HandOver: TypeAlias = OfferTablets | VacateTablets | TakeOver


def hand_over(metadata: TableMetadata, change: HandOver) -> TableMetadata:
    """Return the metadata after a step of a change of hands; raise `RequirementFailed` if it does not fit."""
    match change:
        case OfferTablets():
            named_once(change.offers)
            return metadata.with_tablets([_offered(metadata, offer) for offer in change.offers])
        case VacateTablets():
            return metadata.with_tablets(_vacated(metadata, change))
        case TakeOver():
            return metadata.with_tablets([_taken_over(metadata, change)])


def _served(metadata: TableMetadata, at: TabletAt | Offer) -> TabletMetadata:
    tablet = led(metadata, at)
    if not tablet.is_served:
        raise RequirementFailed("other_state", f"tablet {tablet.id} is {tablet.state}: nobody can lead it next")
    return unreplicated(tablet)


def _offered(metadata: TableMetadata, offer: Offer) -> TabletMetadata:
    tablet = _served(metadata, offer)
    if offer.target is not None and offer.target.server == tablet.leader:
        raise RequirementFailed("leads_already", f"tablet {tablet.id} is led by {tablet.leader} already")
    return msgspec.structs.replace(tablet, target=offer.target)


def _vacated(metadata: TableMetadata, change: VacateTablets) -> list[TabletMetadata]:
    named_once(change.tablets)
    changed: dict[str, TabletMetadata] = {}
    for at in change.tablets:
        tablet = _served(metadata, at)
        if tablet.leader != change.leader:
            reason = f"tablet {tablet.id} is led by {tablet.leader}, not by {change.leader}"
            raise RequirementFailed("other_leader", reason)
        for other in () if tablet.join is None else (tablet.join.left, tablet.join.right):
            neighbour = changed.get(other) or metadata.by_id(other)
            if neighbour is not None:
                changed[other] = msgspec.structs.replace(neighbour, state=RUNNING, join=None)
        changed[tablet.id] = msgspec.structs.replace(
            tablet,
            state=RUNNING,
            epoch=tablet.epoch + 1,
            leader=None,
            log=None if change.is_flushed else tablet.log,
            taken=LogEnd(tablet.log, "", 0) if change.is_flushed and tablet.log is not None else tablet.taken,
            split=None,
            join=None,
        )
    return [*changed.values()]


def _taken_over(metadata: TableMetadata, change: TakeOver) -> TabletMetadata:
    tablet = _served(metadata, change.tablet)
    own = Replica(change.server, change.assignment_id)
    if tablet.leader is not None:
        raise RequirementFailed("other_leader", f"tablet {tablet.id} is led by {tablet.leader}, who must resign first")
    if own != tablet.target and (tablet.target is not None or own not in tablet.replicas):
        reason = f"tablet {tablet.id} was not offered to {change.server} by the assignment {change.assignment_id}"
        raise RequirementFailed("not_offered", reason)
    if tablet.log != (None if change.end is None else change.end.log):
        reason = f"tablet {tablet.id} has unflushed writes in the log {tablet.log}: replay that first"
        raise RequirementFailed("other_log", reason)
    epoch = tablet.epoch + 1
    return msgspec.structs.replace(
        tablet,
        epoch=epoch,
        leader=change.server,
        replicas=(own,),
        log=change.log,
        target=None,
        log_epoch=epoch,
        taken=change.end or tablet.taken,
    )
