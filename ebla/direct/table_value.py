"""A table that no store has, read like any other: its METADATA as a value, and its files below some directory.

    METADATA of a backup + its files  -->  a store of this one table, in memory, for reading  -->  the engine's reader

So what a backup or a restore has made can be looked at before anybody else can see it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from ebla.client.database import Database
from ebla.direct.opens import TASK_SETTINGS, store_of
from ebla.direct.value_store import value_database
from ebla.metadata.values.restoring import unpack_metadata
from ebla.tablet.engine import TabletStore

__all__ = ["VALUE_NAME", "forget_values", "reading_value"]

VALUE_NAME = "value"
OPEN_MAX = 2

_lock = threading.Lock()
_idle: OrderedDict[tuple[str, bytes, int], Database] = OrderedDict()  # guarded by _lock


@contextmanager
def reading_value(root: str, packed: bytes, txn: int) -> Iterator[TabletStore]:
    """Lend a store that has the table `VALUE_NAME` with this METADATA, packed, and nothing else, as of a txn.

    The process keeps it for a while: the next task may want the same.
    """
    key = (root, packed, txn)
    with _lock:
        store = _idle.pop(key, None)
    if store is None:
        store = _opened(root, packed, txn)
    try:
        yield store_of(store)
    except BaseException:
        store.close()
        raise
    with _lock:
        closed = [store] if key in _idle else []
        _idle.setdefault(key, store)
        while len(_idle) > OPEN_MAX:
            closed.append(_idle.popitem(last=False)[1])
    for one in closed:
        one.close()


def forget_values(root: str) -> None:
    """Close what the process keeps of tables with files below `root`, and that nobody reads just now."""
    with _lock:
        closed = [_idle.pop(key) for key in list(_idle) if key[0] == root]
    for store in closed:
        store.close()


def _opened(root: str, packed: bytes, txn: int) -> Database:
    return value_database(root, VALUE_NAME, unpack_metadata(packed, root), txn, TASK_SETTINGS)
