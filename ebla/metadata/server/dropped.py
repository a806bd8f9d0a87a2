"""Ids of tables that are gone for good: they outlive the nodes and the METADATA of their tables, in one node.

    drop ----> tables/<id> {deleted} ----> METADATA is removed ----> no tables/<id>, but <id> in `dropped`

What comes back late is known by its id: METADATA that a stopped process wrote after all was removed, a directory of
METADATA that was not there, a job that is repeated. So such an id is not taken for a table that the catalog has lost,
and no table is made of it again. The newest `KEPT_MAX` are kept; what is older than so many drops does not come back.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.coordination.service import (
    CompareAndSet,
    CoordinationConflict,
    CoordinationService,
    Create,
    Delete,
    Operation,
)
from ebla.errors import Corruption, OutcomeUnknown
from ebla.metadata.values.table_config import config_path, decode_config

__all__ = ["KEPT_MAX", "NODE", "DroppedTables"]

NODE = "dropped"
KEPT_MAX = 4096
AT_ONCE_MAX = 256  # nodes that go in one step

_decoder = msgspec.json.Decoder(list[str])


class DroppedTables:
    """The ids on record. Keeps nothing in memory."""

    def __init__(self, coordination: CoordinationService) -> None:
        self._coordination = coordination

    def ids(self) -> list[str]:
        """Return the ids of tables that are gone for good, the oldest first."""
        return self._read()[0]

    def _read(self) -> tuple[list[str], int | None]:
        node = self._coordination.read(NODE)
        if node is None:
            return [], None
        try:
            return _decoder.decode(node.value), node.version
        except msgspec.MsgspecError as error:
            raise Corruption(NODE, f"not a list of tables that were dropped: {error}") from error

    def bury(self, table_ids: Sequence[str]) -> int:
        """Remove the nodes of dropped tables, and keep their ids; return how many went. The rest waits."""
        ids, version = self._read()
        operations: list[Operation] = []
        buried: list[str] = []
        for table_id in table_ids[:AT_ONCE_MAX]:
            path = config_path(table_id)
            node = self._coordination.read(path)
            if node is not None and not decode_config(path, node).is_there:
                operations.append(Delete(path, node.version))
                buried.append(table_id)
        if not buried:
            return 0
        gone = set(buried)
        value = msgspec.json.encode([*(one for one in ids if one not in gone), *buried][-KEPT_MAX:])
        operations.append(Create(NODE, value) if version is None else CompareAndSet(NODE, value, version))
        try:
            self._coordination.multi(operations)
        except (CoordinationConflict, OutcomeUnknown):
            return 0  # somebody else is at it, or it is seen the next time
        return len(buried)
