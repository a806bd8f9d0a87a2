"""Who may do everything in a cluster of this host that has users: made with the cluster.

DIR/admin.token     its token, which nobody but the owner of the directory can read
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebla.access.rights import ALL
from ebla.access.tokens import hash_of, new_token
from ebla.access.user_list import UserList
from ebla.client.remote.connecting import TOKEN_FILE
from ebla.clock import SystemClock
from ebla.coordination.address import open_coordination
from ebla.errors import RequestError, StoreNotFound, Unavailable
from ebla.local_cluster.cluster_file import COORDINATION, had_zookeeper, read_cluster

__all__ = ["ADMIN", "kept_token", "make_administrator", "users_of"]

ADMIN = "admin"


@contextmanager
def users_of(directory: Path | None, coordination: str | None) -> Iterator[UserList]:
    """Open the users of the cluster of a directory, or of one that is coordinated at a place."""
    if (directory is None) == (coordination is None):
        raise RequestError("say which cluster: --data DIR of `ebla up`, or --coordination PLACE")
    if coordination is None and directory is not None:
        place = directory / "root" / COORDINATION
        try:
            coordination = read_cluster(directory).coordination
        except (StoreNotFound, Unavailable):
            if had_zookeeper(directory) or not place.exists():
                raise  # its users are in a ZooKeeper, which is down as well
            coordination = str(place)  # it is not up
    elif coordination is not None and "://" not in coordination and not Path(coordination).exists():
        raise StoreNotFound(f"there is no cluster coordinated at {coordination}: name the file of one, or zk://...")
    with open_coordination(str(coordination), SystemClock()) as service:
        yield UserList(service)


def kept_token(directory: Path) -> str | None:
    """Return the token of the administrator of a cluster; None if there is none, or not for us."""
    try:
        return (directory / TOKEN_FILE).read_text().strip() or None
    except OSError:
        return None


def make_administrator(coordination: str, directory: Path) -> None:
    """Have an administrator whose token is in the directory; one that is there already is kept."""
    with open_coordination(coordination, SystemClock()) as service:
        users = UserList(service)
        kept = kept_token(directory)
        known = users.read().users.get(ADMIN)
        if kept is not None and known is not None and any(one.sha256 == hash_of(kept) for one in known.tokens):
            return
        token, stored = new_token(ADMIN, None)
        users.change(lambda now: now.with_token(ADMIN, stored).granted(ADMIN, ALL, "admin"))
    file = directory / TOKEN_FILE
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(token + "\n")
