"""A snapshot: the whole database as it was at one txn."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ebla.client.staying import StaysHere
from ebla.errors import Closed

if TYPE_CHECKING:
    from ebla.client.table import Table


class Snapshot(StaysHere):
    """All tables at one txn. What is read through it never changes; nothing can be written through it.

    As long as it is held, everything it shows is kept, however long ago it was. One without a name is held until it is
    closed, or its process ends; one with a name until `release`, by any process.
    """

    def __init__(
        self,
        txn: int,
        table_at: Callable[[str, int], Table],
        let_go: Callable[[], None],
        name: str | None = None,
    ) -> None:
        self.txn = txn
        self.name = name
        self._table_at = table_at
        self._let_go = let_go
        self._is_held = True

    def __repr__(self) -> str:
        called = "" if self.name is None else f" {self.name!r}"
        return f"<ebla.Snapshot{called} at txn {self.txn}>"

    def table(self, name: str) -> Table:
        """Return a table as it was at the snapshot.

        `UnknownTable` if it was dropped since, also if another has its name by now; or if it was made, or got its
        name, later: then ``db.table(name).scan(as_of=snapshot)`` shows what it was at that time.
        """
        if not self._is_held:
            raise Closed("the snapshot was let go: what it showed may be gone; make another")
        return self._table_at(name, self.txn)

    def close(self) -> None:
        """Let go of a snapshot without a name. One with a name stays: it ends with `release`."""
        if self.name is None:
            self.release()

    def release(self) -> None:
        """Say that nobody needs the snapshot any more. Doing it twice is fine."""
        if self._is_held:
            self._is_held = False
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
