"""`ebla.connect`: tables that other processes serve, used as those of `ebla.open` are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ebla.access.credentials import Credentials, user_credentials
from ebla.access.tls import client_tls
from ebla.arguments import checked_path
from ebla.client.database import Database
from ebla.client.remote.remote_service import TIMEOUT_SECONDS, RemoteService
from ebla.errors import RequestError, StoreNotFound, shown
from ebla.service.cluster_place import CLUSTER_FILE, is_cluster_directory, is_down

__all__ = ["connect", "connect_as"]

TOKEN_FILE = "admin.token"

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.\-]+):(\d{1,5})")


def connect(
    address: str | os.PathLike[str] | Sequence[str],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    token: str | Callable[[], str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
) -> Database:
    """Connect to a cluster, or to a process that serves a store, and return its database.

    `address` is ``host:port`` of a master, or several of them, or the path of the ``cluster.json`` of a cluster. What a
    call does that meets a server which is away, or tablets that move, is repeated for up to `timeout_seconds`,
    unless it might then happen twice. `Unavailable` if nobody answers, `IncompatibleVersion` if the server speaks
    another version.

    `token` is what a cluster with users wants to be shown (`ebla user add`), or a function that returns it and is asked
    again from time to time; `Denied` without one, or without the rights that a call needs. Given the path of a cluster
    that `ebla up --auth` started, that of its administrator is used if it can be read.

    `tls_ca` is the file with the certificate of the authority of a cluster that speaks TLS (`ebla certs`); the path of
    a cluster that `ebla up --tls` started tells it. `TlsError` if the servers are not to be trusted.
    """
    if isinstance(timeout_seconds, bool) or not isinstance(timeout_seconds, (int, float)) or not timeout_seconds > 0:
        raise RequestError(f"timeout_seconds is a number of seconds above 0, not {shown(timeout_seconds)}")
    if token is None:
        token = _kept_token(address)
    addresses, ca_told = _addresses(address)
    tls_ca = ca_told if tls_ca is None else tls_ca
    tls = None if tls_ca is None else client_tls(tls_ca)
    return connect_as(addresses, user_credentials(token, tls), float(timeout_seconds))


def connect_as(
    addresses: Sequence[str], credentials: Credentials, timeout_seconds: float = TIMEOUT_SECONDS
) -> Database:
    """Connect to masters, and show them credentials."""
    service = RemoteService(
        [_checked(one) for one in addresses], timeout_seconds=timeout_seconds, credentials=credentials
    )
    return Database(Path(service.root or service.addresses[0]), service)


def _kept_token(address: object) -> str | None:
    """Return the token that lies beside the ``cluster.json`` of an address, if it is one."""
    if not isinstance(address, (str, os.PathLike)) or (isinstance(address, str) and _ADDRESS.fullmatch(address)):
        return None
    path = checked_path("the path of a cluster.json", address)
    try:
        return ((path if path.is_dir() else path.parent) / TOKEN_FILE).read_text().strip() or None
    except OSError:
        return None


def _addresses(given: str | os.PathLike[str] | Sequence[str]) -> tuple[list[str], str | None]:
    """Return where the masters are, and the authority that the file of a cluster tells."""
    if isinstance(given, str) and _ADDRESS.fullmatch(given):
        return [_checked(given)], None
    if isinstance(given, (str, os.PathLike)):
        return _of_file(checked_path("the path of a cluster.json", given))
    if not isinstance(given, Sequence) or not given:
        raise RequestError(f"address is host:port, a list of those, or the path of a cluster.json, not {shown(given)}")
    return [_checked(one) for one in given], None


def _checked(address: object) -> str:
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None or not 0 < int(found[2]) < 65_536:
        raise RequestError(f"an address is host:port, such as '127.0.0.1:7070', not {shown(address)}")
    return found[0]


def _of_file(path: Path) -> tuple[list[str], str | None]:
    """Return the addresses of the masters in a ``cluster.json``, and the file of its authority."""
    file = path
    try:
        file = path / CLUSTER_FILE if path.is_dir() else path
        told = json.loads(file.read_text())
        processes = told["processes"]
        masters = [_checked(one["address"]) for one in processes if one["role"] == "master"]
        tls_ca = told.get("tls_ca")
    except FileNotFoundError:
        directory = path.parent if path.name == CLUSTER_FILE else path
        if is_cluster_directory(directory):
            raise is_down(directory) from None
        raise StoreNotFound(
            f"{shown(str(path))} is neither host:port nor the path of a cluster.json: is the cluster up?"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{shown(str(file))} cannot be read as a cluster.json: {type(error).__name__}") from None
    if not masters:
        raise RequestError(f"{file} names no master")
    return masters, tls_ca
