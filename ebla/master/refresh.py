"""Looking again at what is durable: the master is not the only one who changes METADATA.

Tablet servers flush, split and join their tablets, and a master that has lost its lease may have one more write under
way. So whoever drives a master watches the tables in the coordination service and has those that changed looked at
again; a report that does not fit what is in memory does the same. A watch is never lost and may be late: until then,
what is decided on old news is refused where it is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebla.master.catalog import Catalog
from ebla.master.writes import Operation, ReadTables, StoredTable

__all__ = ["refresh_tables"]


def refresh_tables(catalog: Catalog, table_ids: Sequence[str]) -> Operation[None]:
    """Read tables again and commit what is found to memory.

    What an operation of this master has changed meanwhile, or is about to, is looked at once more in the next round.
    """

    def switches(table_id: str) -> int:
        info = catalog.tables.get(table_id)
        return -1 if info is None else info.switches

    before = [switches(table_id) for table_id in table_ids]
    answers = yield ReadTables(tuple(table_ids))
    for table_id, answer, seen in zip(table_ids, answers, before, strict=True):
        if not isinstance(answer, StoredTable) or table_id in catalog.tombstones:
            continue
        info = catalog.tables.get(table_id)
        if switches(table_id) == seen and (info is None or info.doing is None):
            catalog.install(answer)
            continue
        catalog.stale[table_id] = None
        if answer.metadata is not None:
            catalog.install_metadata(answer.metadata)
