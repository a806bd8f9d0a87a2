"""One copy of what many tablets have in common, so that a million of them fit into memory.

A decoder makes a new object of every value that it reads: each tablet gets its own copy of its server's name, of its
state, and of the row where the next one begins. In memory they are shared when they are made, and again here, right
after they were read. About a third of a tablet's size goes.

    bytes of a tablet --decode--> tablet --share--> the next one is decoded into what the copies have left free

So tablets are decoded one by one: if all of them were read first, the room of the copies would lie scattered between
what stays, and be of no use to anybody.

Values are changed in place, which is allowed at this moment only: nobody else has seen them yet, and they stay equal to
what they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import force_setattr

from ebla.metadata.values.table_metadata import TabletMetadata

__all__ = ["shared"]


def shared(tablets: Iterable[TabletMetadata]) -> Iterator[TabletMetadata]:
    """Yield the tablets of a table, each just decoded, with equal values shared among them."""
    known: dict[Any, Any] = {}
    share = known.setdefault
    before: TabletMetadata | None = None
    for tablet in tablets:
        force_setattr(tablet, "state", share(tablet.state, tablet.state))
        if tablet.leader is not None:
            force_setattr(tablet, "leader", share(tablet.leader, tablet.leader))
        if tablet.log is not None:
            force_setattr(tablet, "log", share(tablet.log, tablet.log))
        for replica in tablet.replicas:
            force_setattr(replica, "server", share(replica.server, replica.server))
        if before is not None and before.last == tablet.first:
            force_setattr(before, "last", tablet.first)
        before = tablet
        has_fragments = False
        for state in tablet.groups:
            for fragment in state.fragments:
                has_fragments = True
                if fragment.first == tablet.first:
                    force_setattr(fragment, "first", tablet.first)
                if fragment.txn_min == fragment.txn_max:
                    force_setattr(fragment, "txn_max", fragment.txn_min)
        if not has_fragments:
            force_setattr(tablet, "groups", share(tablet.groups, tablet.groups))
        yield tablet
