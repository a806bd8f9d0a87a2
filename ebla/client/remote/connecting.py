"""`ebla.connect`: tables that other processes serve, used as those of `ebla.open` are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ebla.arguments import checked_path
from ebla.client.database import Database
from ebla.client.remote.remote_service import TIMEOUT_SECONDS, RemoteService
from ebla.errors import RequestError, StoreNotFound, shown

__all__ = ["connect"]

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.\-]+):(\d{1,5})")


def connect(address: str | os.PathLike[str] | Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> Database:
    """Connect to a cluster, or to a process that serves a store, and return its database.

    `address` is ``host:port`` of a master, or several of them, or the path of the ``cluster.json`` of a cluster. What a
    call does that meets a server which is away, or tablets that move, is repeated for up to `timeout_seconds`,
    unless it might then happen twice. `Unavailable` if nobody answers, `IncompatibleVersion` if the server speaks
    another version.
    """
    if isinstance(timeout_seconds, bool) or not isinstance(timeout_seconds, (int, float)) or not timeout_seconds > 0:
        raise RequestError(f"timeout_seconds is a number of seconds above 0, not {shown(timeout_seconds)}")
    service = RemoteService(_addresses(address), timeout_seconds=float(timeout_seconds))
    return Database(Path(service.root or service.addresses[0]), service)


def _addresses(given: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    if isinstance(given, str) and _ADDRESS.fullmatch(given):
        return [_checked(given)]
    if isinstance(given, (str, os.PathLike)):
        return _of_file(checked_path("the path of a cluster.json", given))
    if not isinstance(given, Sequence) or not given:
        raise RequestError(f"address is host:port, a list of those, or the path of a cluster.json, not {shown(given)}")
    return [_checked(one) for one in given]


def _checked(address: object) -> str:
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None or not 0 < int(found[2]) < 65_536:
        raise RequestError(f"an address is host:port, such as '127.0.0.1:7070', not {shown(address)}")
    return found[0]


def _of_file(path: Path) -> list[str]:
    """Return the addresses of the masters in a ``cluster.json``."""
    file = path
    try:
        file = path / "cluster.json" if path.is_dir() else path
        told = json.loads(file.read_text())
        processes = told["processes"]
        masters = [_checked(one["address"]) for one in processes if one["role"] == "master"]
    except FileNotFoundError:
        raise StoreNotFound(
            f"{shown(str(path))} is neither host:port nor the path of a cluster.json: is the cluster up?"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{shown(str(file))} cannot be read as a cluster.json: {type(error).__name__}") from None
    if not masters:
        raise RequestError(f"{file} names no master")
    return masters
