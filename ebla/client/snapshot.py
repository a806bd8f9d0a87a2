"""A snapshot: the whole database as it was at one txn."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from ebla.client.table import Table


class Snapshot:
    """All tables at one txn. What is read through it never changes; nothing can be written through it."""

    def __init__(self, txn: int, table_at: Callable[[str, int], Table]) -> None:
        self.txn = txn
        self._table_at = table_at

    def __repr__(self) -> str:
        return f"<ebla.Snapshot at txn {self.txn}>"

    def table(self, name: str) -> Table:
        """Return a table as it was at the snapshot."""
        return self._table_at(name, self.txn)

    def close(self) -> None:
        """Let the snapshot go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
