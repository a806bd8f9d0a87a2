"""Coordination files of format 1, from before nodes named each other: read as they are, or brought to format 2.

    nodes            path | parent | value | version | checksum       the checksum covers path and value
    nodes_by_parent  parent, path                                     an index, which listings came from

A file is brought to format 2 by the first who opens it for writing, in one transaction, after SQLite has compared the
index with the table. Who opens it for reading must not change it, and reads it as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c

from ebla.coordination.service import Node
from ebla.coordination.sqlite_nodes import NODES, damaged, insert_all

__all__ = ["OLD_AT", "OLD_LISTING", "old_node", "old_paths", "upgrade"]

OLD_AT = "SELECT path, value, version, checksum FROM nodes WHERE path = ?"
OLD_LISTING = "SELECT path FROM nodes WHERE parent = ? ORDER BY path"


def old_node(file: Path, rows: Sequence[tuple[Any, ...]]) -> Node | None:
    """Return the node from the rows of `OLD_AT`."""
    if not rows:
        return None
    path, value, version, checksum = rows[0]
    if not isinstance(path, str) or not isinstance(value, bytes) or type(version) is not int:
        raise damaged(file, f"node {path!r} is not what was written")
    if google_crc32c.extend(google_crc32c.value(path.encode()), value) != checksum:
        raise damaged(file, f"the checksum of node {path!r} is wrong")
    return Node(value, version)


def old_paths(file: Path, rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return the paths from the rows of `OLD_LISTING`."""
    for (path,) in rows:
        if not isinstance(path, str):
            raise damaged(file, f"{path!r} is not the path of a node")
    return [path for (path,) in rows]


def upgrade(connection: sqlite3.Connection, file: Path, version: int) -> None:
    """Bring the file to format `version` unless somebody else does so first. Nothing is changed if it is damaged."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA user_version").fetchone() == (1,):
            rows = connection.execute("SELECT path, value, version, checksum FROM nodes ORDER BY path").fetchall()
            nodes = []
            for row in rows:
                node = old_node(file, [row])
                assert node is not None
                nodes.append((row[0], node))
            connection.execute("DROP TABLE nodes")
            connection.execute(NODES)
            insert_all(connection, nodes)
            connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
