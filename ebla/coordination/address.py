"""Where the coordination service of a store is, as a text.

(nothing)                                    a SQLite file in the root directory
zk://one:2181,two:2181,three:2181/ebla       ZooKeeper, and the znode below which the store is
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ebla.clock import Clock
from ebla.coordination.service import CoordinationService, InvalidNode, check_path
from ebla.errors import StoreError, shown
from ebla.extras import needing

__all__ = ["ZooKeeperAddress", "connect", "open_coordination", "parse_address"]

DEFAULT_ROOT = "/ebla"
_SCHEME = "zk://"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """The servers of an ensemble, and the znode of a store."""

    hosts: tuple[str, ...]
    root: str

    def __str__(self) -> str:
        return f"{_SCHEME}{','.join(self.hosts)}{self.root}"


def parse_address(address: str) -> ZooKeeperAddress:
    """Read ``zk://host:port,host:port/root``; `InvalidNode` if it is not such an address."""
    if not isinstance(address, str) or not address.startswith(_SCHEME):
        raise InvalidNode(
            f"{shown(address)} is no address of a coordination service: write zk://host:port,host:port/root"
        )
    servers, _, root = address.removeprefix(_SCHEME).partition("/")
    hosts = tuple(servers.split(","))
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise InvalidNode(f"{address!r}: {host!r} is no host with a port: write zk://host:port,host:port/root")
    root = f"/{root.rstrip('/')}" if root.rstrip("/") else DEFAULT_ROOT
    if check_path(root[1:]).split("/")[0] == "zookeeper":
        raise InvalidNode(f"{address!r}: ZooKeeper keeps /zookeeper to itself: choose another znode")
    return ZooKeeperAddress(tuple(host if ":" in host.rpartition("]")[2] else f"{host}:2181" for host in hosts), root)


def open_coordination(place: str, clock: Clock) -> CoordinationService:
    """Open the service of a cluster: ``zk://...``, or the path of a SQLite file, which is made if it is missing."""
    if "://" in place:
        return connect(parse_address(place), clock)
    from ebla.coordination.sqlite import SqliteCoordination

    file = Path(place)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{file.parent} cannot be made: {error}: choose another place") from error
    return SqliteCoordination(file, clock)


def connect(address: ZooKeeperAddress, clock: Clock, *, read_only: bool = False) -> CoordinationService:
    """Connect to a coordination service; `Unavailable` if it does not answer."""
    with needing("kazoo", f"the coordination service {address}"):
        from ebla.coordination.zookeeper import ZooKeeperCoordination
    return ZooKeeperCoordination(",".join(address.hosts), clock, root=address.root, read_only=read_only)
