"""What the processes in these tests write: an endless list of operations, each known by its number alone.

Several threads write side by side, each to rows of its own, so that what one of them wrote does not depend on the
others: `Work(thread)` gives operation 0, 1, 2, ... of a thread, for the store and for the reference model. A put writes
one row in each of the three tablets with the number of the operation in it, so that a torn commit is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ebla.model.declaration import Group, Schema
from ebla.settings import KIB, Settings
from tests.reference.reference import ReferenceTable

# So small that within a few dozen commits everything is flushed, rolled, folded and deleted many times.
SMALL = Settings(
    flush_bytes=6 * KIB,
    memory_bytes_max=64 * KIB,
    close_flush_bytes=2 * KIB,
    log_segment_bytes=4 * KIB,
    log_bytes_max=24 * KIB,
    recent_row_slots=1 << 8,
    metadata_snapshot_every=4,
)
SCHEMA = Schema(
    key={"place": "string", "thread": "int32", "row": "int32"},
    groups=[
        Group("typed", columns={"number": "int64", "text": "string"}, max_versions="all"),
        Group("cells", families=["c"], max_versions=3),
    ],
)
SPLITS = [("b",), ("c",)]
PLACES = ("a", "b", "c")
ROWS = 7
TABLE = "work"


class Work:
    """The operations of one thread."""

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def rows(self, number: int) -> list[dict[str, Any]]:
        """Return the rows that a put writes: the same in each tablet."""
        row: dict[str, Any] = {"thread": self._thread, "row": number % ROWS, "number": number}
        if number % 3:
            row["text"] = f"text {number} " * (1 + number % 5)
        if number % 2:
            row["c:n"] = b"%d" % number
        return [{"place": place, **row} for place in PLACES]

    def is_synced(self, number: int) -> bool:
        """Whether the operation, once it has returned, is safe from any crash."""
        return number % 4 != 2

    def act(self, number: int, table: Any) -> int:
        """Do an operation on the store; returns its txn."""
        wait = ("durable", "logged", "none", "durable")[number % 4]
        match self.kind(number):
            case "erase":
                return int(table.erase(("b", self._thread, number % ROWS), wait=wait))
            case "erase_range":
                return int(table.erase_range(("a", self._thread, 2), ("a", self._thread, 5), wait=wait))
        return int(table.put(self.rows(number), wait=wait))

    def model(self, number: int) -> Callable[[ReferenceTable, int], None]:
        """Return what the operation does to the model."""
        match self.kind(number):
            case "erase":
                return lambda model, txn: model.erase(("b", self._thread, number % ROWS), txn)
            case "erase_range":
                return lambda model, txn: model.erase_range(("a", self._thread, 2), ("a", self._thread, 5), txn)
        return lambda model, txn: model.put(self.rows(number), txn)

    def kind(self, number: int) -> str:
        """Return what sort of operation it is."""
        if number % 11 == 7:
            return "erase"
        return "erase_range" if number % 19 == 13 else "put"
