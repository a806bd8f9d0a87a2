"""Whether a table is as it was: for whoever keeps a plan of it, and wants the newest rows.

    moment = newest_txn(db)                what is committed now
    seen = seen_at(db, "users", moment)    equal to another only if nothing was written to the table in between

A store that is open for writing in this process says so for nothing; of any other one it is not known, and is not
asked: it is opened anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebla.client.database import Database
from ebla.direct.clusters import newest_in, remote_of
from ebla.direct.opens import opened, store_of
from ebla.tablet.read.view import TableView

__all__ = ["Seen", "newest_txn", "seen_at"]


@dataclass(frozen=True, eq=False, slots=True)
class Seen:
    """A table as somebody saw it: another commit, flush or change of its schema makes another one."""

    view: TableView

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and self.view is other.view

    def __hash__(self) -> int:
        return id(self.view)


def newest_txn(store: Database | str) -> int:
    """Return the txn of the newest commit that a reader sees now."""
    remote = remote_of(store) if isinstance(store, Database) else None
    if remote is not None:
        return newest_in(remote)
    with opened(store) as database:
        return store_of(database).sequencer.committed


def seen_at(store: Database | str, table: str, txn: int) -> Seen | None:
    """Return what a table is now if that is what it was at a txn; None if it is not, or if that is not known.

    In a table whose rows expire, time alone changes what is seen.
    """
    if not isinstance(store, Database) or store.read_only or remote_of(store) is not None:
        return None
    engine = store_of(store)
    view = engine.table(table).view
    is_settled = engine.sequencer.allocated <= txn
    expires = any(group.max_age_microseconds is not None for group in view.schema.groups)
    return Seen(view) if is_settled and not expires else None
