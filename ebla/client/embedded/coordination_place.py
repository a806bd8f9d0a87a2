"""Which coordination service a store in a directory has: a file in it, or one elsewhere whose address is in it.

    coordination.sqlite      the service itself                         one host
    coordination.address     zk://one:2181,two:2181/ebla                several hosts

The address is written when the store is made, so that everybody who knows the directory finds the service: other
processes, the command line, Spark. It is rewritten when the store is opened for writing with another one.
"""

from __future__ import annotations

from pathlib import Path

from ebla.clock import Clock
from ebla.coordination.address import ZooKeeperAddress, connect, parse_address
from ebla.coordination.service import CoordinationService, InvalidNode
from ebla.coordination.sqlite import SqliteCoordination
from ebla.errors import Corruption, EblaError, MissingFile, RequestError, StoreError, StoreNotFound, TooManyFiles
from ebla.service.cluster_place import cluster_refusal
from ebla.storage.files.files import Files
from ebla.tablet.recovery.identity import IDENTITY_NODE

COORDINATION_FILE = "coordination.sqlite"
ADDRESS_FILE = "coordination.address"
STORE_DIRECTORIES = ("metadata", "fragments", "log")
STORE_FILES = ("metadata/*/*.meta", "fragments/*/*.parquet", "log/*/*.log")


def is_store(root: Path) -> bool:
    """Whether there is a store in a directory, and not a cluster."""
    if cluster_refusal(root) is not None:
        return False
    return (root / COORDINATION_FILE).exists() or (root / ADDRESS_FILE).exists()


def no_store(root: Path) -> EblaError:
    """Return what to raise where `is_store` is false: the path is wrong, or a store there has lost its service."""
    refusal = cluster_refusal(root)
    if refusal is not None:
        return refusal
    if root.exists() and not root.is_dir():
        return StoreNotFound(f"{root} is a file, not the directory of a store: check the path")
    if any(next(root.glob(pattern), None) for pattern in STORE_FILES):
        return MissingFile(
            f"{root} has files of a store, but neither {COORDINATION_FILE} nor {ADDRESS_FILE}: "
            "bring back the one that it had, from a copy"
        )
    return StoreNotFound(f"there is no store at {root}: check the path, or make one with ebla.open(path)")


def connect_at(root: Path, clock: Clock, *, read_only: bool = False, is_lasting: bool = True) -> CoordinationService:
    """Connect to the service of a store that is there; what need not outlive the machine need not be `is_lasting`."""
    address = recorded_address(root)
    if address is not None:
        return connect(address, clock, read_only=read_only)
    file = root / COORDINATION_FILE
    return SqliteCoordination(file, clock, read_only=read_only, create=False, is_lasting=is_lasting)


def recorded_address(root: Path) -> ZooKeeperAddress | None:
    """Return the address that is written in a directory; None if there is none."""
    file = root / ADDRESS_FILE
    try:
        return parse_address(file.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return None
    except (InvalidNode, UnicodeDecodeError) as error:
        raise Corruption(str(file), str(error)) from error
    except OSError as error:
        if TooManyFiles.is_meant_by(error):
            raise TooManyFiles.at(file, error) from error
        raise StoreError(f"{file} cannot be read: {error}: mend the cause, then open the store again") from error


def chosen_address(root: Path, given: str | None, *, may_create: bool) -> ZooKeeperAddress | None:
    """Return where the service is, or will be, given what the caller says; None: in a file.

    `StoreNotFound` if there is no store and none may be made, `MissingFile` if there is one that lost its service,
    `RequestError` if the directory is that of a cluster.
    """
    refusal = cluster_refusal(root)
    if refusal is not None:
        raise refusal
    there = is_store(root)
    if not there and not may_create:
        raise no_store(root)
    if root.exists() and not root.is_dir():
        raise StoreNotFound(f"{root} is a file, not the directory of a store: choose another path")
    if not there and any((root / directory).is_dir() for directory in STORE_DIRECTORIES):
        # Made anew, it would know nothing of the tables that are there.
        lost = COORDINATION_FILE if given is None else ADDRESS_FILE
        raise MissingFile(f"{root / lost} is missing, but there are files of a store: restore it from a copy")
    if given is None:
        return recorded_address(root)
    if (root / COORDINATION_FILE).exists():
        raise RequestError(f"the store at {root} is coordinated by {COORDINATION_FILE}: open it without `coordination`")
    return parse_address(given)


def open_elsewhere(
    root: Path, files: Files, address: ZooKeeperAddress, clock: Clock, *, read_only: bool
) -> CoordinationService:
    """Connect to a service elsewhere, and make sure that what it knows is this store and no other."""
    coordination = connect(address, clock, read_only=read_only)
    try:
        known = coordination.read(IDENTITY_NODE) is not None
        recorded = recorded_address(root)
        if known and recorded is None:
            raise StoreError(f"{address} belongs to another store than the new one at {root}: name another znode")
        if not known and any((root / directory).is_dir() for directory in STORE_DIRECTORIES):
            raise MissingFile(f"{address} knows nothing of the store at {root}: restore it, or check the address")
        if not read_only and recorded != address:
            _record(files, address)
    except BaseException:
        coordination.close()
        raise
    return coordination


def _record(files: Files, address: ZooKeeperAddress) -> None:
    fresh = f"{ADDRESS_FILE}.new"
    try:
        if files.exists(fresh):
            files.delete(fresh)
        with files.create(fresh) as file:
            file.write(f"{address}\n".encode())
            file.sync()
        files.replace(fresh, ADDRESS_FILE)
        files.sync_directory("")
    except OSError as error:
        raise StoreError(f"{ADDRESS_FILE} cannot be written: {error}: mend the cause, then open it again") from error
