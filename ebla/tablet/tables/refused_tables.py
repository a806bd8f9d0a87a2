"""Tables that are there and cannot be served: which, why, and what of the log they may still need.

    open    a schema that cannot be, METADATA that cannot be read, a name that means nothing  -->  refused, alone
    use     every request for it is told what is wrong; the other tables are served
    log     from the first entry that names a refused table on, no segment is removed: it was not replayed

Tables that the catalog has lost have no name; of the log they need what refused ones need (`lost_tables`).

So nothing is lost by opening a store of which one table is damaged: repair it, open again, and it is all there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ebla.errors import EblaError, SchemaError, TableDamaged
from ebla.storage.log.log_entry import LogEntry

__all__ = ["UNLINKED", "RefusedTables"]

# Between name and id of a dropped table that cannot be loaded, where it is refused.
UNLINKED = "~"


class RefusedTables:
    """The refused tables of one store. Changed while it is opened, and by drops, under the commit lock."""

    def __init__(self) -> None:
        self._errors: dict[str, EblaError] = {}  # by name
        self._ids: set[str] = set()
        self.held_txn: int | None = None
        """The oldest txn in the log of a refused table; None if there is none."""

    @property
    def errors(self) -> Mapping[str, EblaError]:
        """Why each is refused, by name."""
        return MappingProxyType(self._errors)

    def add(self, name: str, table_id: str, error: EblaError) -> None:
        """Refuse a table; its id is empty if the name is all that there is of it."""
        self._errors[name] = error
        self._ids.add(table_id)

    def keep_log_of(self, table_ids: Iterable[str]) -> None:
        """Keep the log of tables of which the name is not known."""
        self._ids.update(table_ids)

    def forget(self, name: str) -> None:
        """Forget a table that was dropped. The log stays as it is until the store is opened again."""
        self._errors.pop(name, None)

    def check(self, name: str) -> None:
        """Raise `TableDamaged` if the table of that name is refused."""
        error = self._errors.get(name)
        if error is not None:
            advice = (
                "restore its METADATA" if isinstance(error, SchemaError) else "`ebla.verify` tells what can be done"
            )
            raise TableDamaged(f"the table {name!r} cannot be loaded: {error}: {advice}, or drop it") from error

    def note(self, entry: LogEntry) -> None:
        """Look at an entry of the log that is replayed for the other tables."""
        if self._ids and not self._ids.isdisjoint(part.table for part in entry.parts):
            self.hold([entry.txn_min])

    def hold(self, txns: Iterable[int | None]) -> None:
        """Keep the log from the smallest of these txns on: what was replayed of it is served by nobody."""
        held = [txn for txn in (self.held_txn, *txns) if txn is not None]
        self.held_txn = min(held, default=None)
