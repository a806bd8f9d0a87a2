"""The nodes in the SQLite file, each of which says which one comes next: so nothing can be missing unnoticed.

    path             following        link                 value | version | checksum
    (beginning)      master           crc(path, following)
    master           names/users      ...                  ...     230       crc(path, version, value)
    names/users      tables/7f3a      ...
    tables/7f3a      (end)            ...

One flipped bit in a page of SQLite's tree may lead a search past rows that are there, and SQLite does not notice. Here
it is noticed, whatever became of the pages: a node that is not found is absent only if the row before its place says
so, by naming one that comes after it; and a listing is whole only if each row in it names the next. Rows are vouched
for by checksums, and those of links and values are apart, so that setting a value touches one row, as without links.

Making or removing a node changes the row before it as well, in the same transaction of SQLite.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from ebla.coordination.service import (
    CompareAndSet,
    Create,
    Delete,
    Node,
    NodeExists,
    NodeMissing,
    NodeNotEmpty,
    Operation,
    VersionConflict,
)
from ebla.errors import Corruption

__all__ = [
    "AT",
    "NODES",
    "apply",
    "damaged",
    "insert_all",
    "listed",
    "listing",
    "node_at",
]

NODES = """CREATE TABLE nodes (
        path TEXT PRIMARY KEY, following TEXT NOT NULL, link INTEGER NOT NULL,
        value BLOB NOT NULL, version INTEGER NOT NULL, checksum INTEGER NOT NULL
    ) WITHOUT ROWID"""

# No node can be called that: the path of the row before all nodes, and what the last one names as the next.
BEGINNING = END = ""
# No path has this character, and it comes after all others.
_LAST = "\U0010ffff"

# The row of a path, or, if it has none, the one before its place. Values of others are not fetched.
AT = """
    SELECT path, following, link, CASE path WHEN ?1 THEN value END, version, checksum
    FROM nodes WHERE path <= ?1 ORDER BY path DESC LIMIT 1
"""
_BEFORE = "SELECT path, following, link, NULL, version, checksum FROM nodes WHERE path < ? ORDER BY path DESC LIMIT 1"
# From the row before the first of them on: that one says whether any is missing at the beginning.
_LISTING = """
    SELECT path, following, link FROM nodes
    WHERE path >= (SELECT path FROM nodes WHERE path <= ? ORDER BY path DESC LIMIT 1) AND path < ? ORDER BY path
"""


class Row(NamedTuple):
    """A row that was found whole. `node` is None if it is another than was asked for."""

    path: str
    following: str
    node: Node | None


def damaged(file: Path, reason: str) -> Corruption:
    """Return the error for a file that is not what was written."""
    advice = "keep what is there, let nothing be removed, and bring the file back from a copy of the store"
    return Corruption(str(file), f"{reason}: {advice}")


# --- reading -------------------------------------------------------------------------------------


def node_at(file: Path, path: str, rows: Sequence[tuple[Any, ...]]) -> Node | None:
    """Return the node at `path` from the rows of `AT`; None if it is certainly absent, else `Corruption`."""
    return _at(file, path, rows).node


def listing(path: str) -> tuple[str, tuple[str, str]]:
    """Return the query for all that is below `path`, for `listed` to judge."""
    # '0' is the character after '/': everything below the path, and nothing else, sorts between the two.
    return (_LISTING, (f"{path}/", f"{path}0")) if path else (_LISTING, (BEGINNING, _LAST))


def listed(file: Path, path: str, rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return the paths directly below `path`; `Corruption` if a single row is missing or not what was written."""
    first, last = listing(path)[1]
    expected: str | None = None
    found = []
    for row in rows:
        at, following = _check_link(file, row)
        if expected is None:
            if at > first:
                raise _missing(file, first)
        elif at != expected:
            raise _missing(file, expected)
        elif "/" not in at[len(first) :]:
            found.append(at)
        expected = following
    if expected is None or END != expected < last:
        raise _missing(file, expected or first)
    return found


def _at(file: Path, path: str, rows: Sequence[tuple[Any, ...]]) -> Row:
    if not rows:
        raise _missing(file, path)
    at, following = _check_link(file, rows[0][:3])
    value, version, checksum = rows[0][3:]
    if at != path:
        if at > path or END != following <= path:
            raise _missing(file, following)
        return Row(at, following, None)
    if not isinstance(value, bytes) or type(version) is not int or _checksum(path, version, value) != checksum:
        raise damaged(file, f"the checksum of node {path!r} is wrong")
    return Row(at, following, Node(value, version))


def _check_link(file: Path, row: Sequence[Any]) -> tuple[str, str]:
    at, following, link = row
    if not isinstance(at, str) or not isinstance(following, str) or _link(at, following) != link:
        raise damaged(file, f"the checksum of what follows node {at!r} is wrong")
    return at, following


def _missing(file: Path, path: str) -> Corruption:
    return damaged(file, f"what it says of the nodes from {path!r} on cannot be found in it")


def _link(path: str, following: str) -> int:
    return int(google_crc32c.value(f"{path}\0{following}".encode()))


def _checksum(path: str, version: int, value: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(f"{path}\0{version}\0".encode()), value))


# --- writing -------------------------------------------------------------------------------------


def insert_all(connection: sqlite3.Connection, nodes: Sequence[tuple[str, Node]]) -> None:
    """Fill an empty table with nodes, sorted by path, and the row before them."""
    rows = [(BEGINNING, Node(b"", 0)), *nodes]
    following = [path for path, _ in nodes] + [END]
    connection.executemany(
        "INSERT INTO nodes (path, following, link, value, version, checksum) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (path, then, _link(path, then), node.value, node.version, _checksum(path, node.version, node.value))
            for (path, node), then in zip(rows, following, strict=True)
        ],
    )


def apply(connection: sqlite3.Connection, file: Path, operation: Operation) -> int | None:
    """Carry out one operation within a transaction; return the new version, if there is one."""
    path = operation.path
    if isinstance(operation, CompareAndSet):
        # Nearly always it fits: then it is one statement.
        version = operation.expected_version + 1
        sql = "UPDATE nodes SET value = ?, version = ?, checksum = ? WHERE path = ? AND version = ?"
        checksum = _checksum(path, version, operation.value)
        found = connection.execute(sql, (operation.value, version, checksum, path, operation.expected_version))
        if found.rowcount == 1:
            return version
    row = _at(file, path, connection.execute(AT, (path,)).fetchall())
    if isinstance(operation, Create):
        if row.node is not None:
            raise NodeExists(path, "there is a node already")
        connection.execute(
            "INSERT INTO nodes (path, following, link, value, version, checksum) VALUES (?, ?, ?, ?, 1, ?)",
            (path, row.following, _link(path, row.following), operation.value, _checksum(path, 1, operation.value)),
        )
        _set_following(connection, row.path, path)
        return 1
    if row.node is None:
        raise NodeMissing(path, "there is no node")
    if row.node.version != operation.expected_version:
        raise VersionConflict(path, f"expected version {operation.expected_version}, found {row.node.version}")
    if isinstance(operation, Delete):
        below = f"{path}/{_LAST}"
        if _at(file, below, connection.execute(AT, (below,)).fetchall()).path.startswith(f"{path}/"):
            raise NodeNotEmpty(path, "there are nodes below it")
        before = connection.execute(_BEFORE, (path,)).fetchall()
        at, following = _check_link(file, before[0][:3]) if before else (BEGINNING, END)
        if following != path:
            raise _missing(file, path)
        connection.execute("DELETE FROM nodes WHERE path = ?", (path,))
        _set_following(connection, at, row.following)
    return None


def _set_following(connection: sqlite3.Connection, path: str, following: str) -> None:
    sql = "UPDATE nodes SET following = ?, link = ? WHERE path = ?"
    connection.execute(sql, (following, _link(path, following), path))
