"""Whether a tablet server may ask for a change of METADATA: it leads the tablets that it speaks of. Pure.

    Flush, ReplaceFragments, FinishSplit, ...   it leads every tablet that the change names
    ChangeInSync                                the same: only its leader says who is in sync
    SetWanted                                   the same, when a tablet that it leads alone is to have more replicas
    VacateTablets                               it is the leader that goes
    TakeOver                                    it is the server that takes over; then it leads the tablet
    OfferTablets of nobody                      it vacates the tablet in the same request: it comes back by itself
    AssignTablets, ChangeLeaders, AlterSchema, ...  never: masters decide those

That the epoch is the current one is checked where the change is applied, by every metadata server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ebla.errors import RequestError
from ebla.metadata.values.changes import (
    AddFragments,
    Change,
    Flush,
    RangeErase,
    RecordBatch,
    RecordJob,
    ReplaceFragments,
    RequireSchema,
    TakeLog,
)
from ebla.metadata.values.handing_over import OfferTablets, TakeOver, VacateTablets
from ebla.metadata.values.recutting import BeginJoin, BeginSplit, CancelJoin, CancelSplit, FinishJoin, FinishSplit
from ebla.metadata.values.replicating import ChangeInSync, SetWanted
from ebla.metadata.values.requirements import RequirementFailed
from ebla.metadata.values.serving import LoadTablets, UnloadTablets
from ebla.metadata.values.table_metadata import TableMetadata

__all__ = ["check_sender"]


def check_sender(metadata: TableMetadata, sender: str, changes: Sequence[Change]) -> None:
    """Raise `RequestError` for changes that masters make, `RequirementFailed` if the sender does not lead a tablet."""
    led: set[str] = set()  # what it leads once the changes before were made
    left: set[str] = set()
    for change in changes:
        match change:
            case VacateTablets():
                _check_is(sender, change.leader)
                left.update(at.tablet for at in change.tablets)
            case TakeOver():
                _check_is(sender, change.server)
                led.add(change.tablet.tablet)
            case OfferTablets() if all(offer.target is None and offer.tablet in left for offer in change.offers):
                pass
            case RecordJob() | RecordBatch() | RequireSchema():
                pass
            case _:
                for tablet_id in _named(change):
                    tablet = metadata.by_id(tablet_id)
                    # One that is not there is refused where the change is applied, with the right words.
                    if tablet_id not in led and tablet is not None and tablet.leader != sender:
                        reason = f"tablet {tablet_id} is led by {tablet.leader}, not by {sender}"
                        raise RequirementFailed("other_leader", reason)


def _check_is(sender: str, named: str) -> None:
    if sender != named:
        raise RequestError(f"{sender} speaks for {named}: a server speaks for itself")


def _named(change: Change) -> Iterable[str]:
    match change:
        case Flush() | AddFragments() | RangeErase() | UnloadTablets() | LoadTablets():
            return [at.tablet for at in change.tablets]
        case TakeLog():
            return [at.tablet for at in change.tablets]
        case ChangeInSync():
            return [change.tablet]
        case SetWanted():
            return [at.tablet for at in change.tablets]
        case ReplaceFragments() | BeginSplit() | FinishSplit() | CancelSplit():
            return [change.tablet.tablet]
        case BeginJoin() | FinishJoin() | CancelJoin():
            return [change.left.tablet, change.right.tablet]
    raise RequestError(f"{type(change).__name__} is decided by masters: a tablet server cannot ask for it")
