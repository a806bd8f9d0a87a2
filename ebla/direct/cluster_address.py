"""A cluster as jobs name it: the addresses of its masters, and what to show there.

    driver    connected with a user's own token, or reads it from a file
    tasks     are given a short-lived token, and the certificate of the authority

It goes from process to process as a value. What leaves a process never has a user's own token with it: one that was
read from a file stays behind, and a token that was derived from it goes in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ebla.access.credentials import RENEW_SECONDS, Credentials
from ebla.access.tls import Tls, client_tls
from ebla.access.tokens import claim_in, is_signed
from ebla.arguments import checked_path
from ebla.client.remote.remote_service import RemoteService
from ebla.errors import RequestError

__all__ = ["OPTIONS", "Cluster", "cluster_options", "of_options", "of_remote"]

TASK_TOKEN_SECONDS = 24 * 3_600.0
READ_ALL = {"*": "read"}

OPTIONS = ("cluster", "token", "token_file", "tls_ca")

_Self = TypeVar("_Self", bound="Cluster")


class Cluster(tuple[str, ...]):
    """The addresses of masters. Two with tokens of different rights differ, and those of one user and rights do not."""

    token: str | None  # a short-lived one
    token_file: str | None  # of this machine
    ca: bytes | None
    ca_file: str | None

    def __new__(
        cls: type[_Self],
        masters: Sequence[str],
        token: str | None = None,
        token_file: str | None = None,
        ca: bytes | None = None,
        ca_file: str | None = None,
    ) -> _Self:
        """Make one; `ca` is what was in `ca_file`."""
        made = super().__new__(cls, masters)
        made.token, made.token_file, made.ca, made.ca_file = token, token_file, ca, ca_file
        return made

    @property
    def scope(self) -> tuple[Any, ...]:
        """For whom, and with which rights."""
        if self.token is None:
            return (self.token_file, self.ca)
        claim = claim_in(self.token)
        grants = None if claim.grants is None else tuple(sorted(claim.grants.items()))
        return (claim.name, claim.token, grants, self.ca)

    def credentials(self, newest: Callable[[], str | None]) -> Credentials:
        """Return what to show; of tokens that are handed over, always the `newest`."""
        tls = None if self.ca is None else Tls(self.ca, Path(self.ca_file or "tls_ca"))
        if self.token_file is not None:
            file = Path(self.token_file)
            return Credentials(lambda: _read(file), RENEW_SECONDS, tls)
        if self.token is None:
            return Credentials(tls=tls)
        return Credentials(lambda: newest() or str(self.token), RENEW_SECONDS, tls)

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.scope == getattr(other, "scope", (None, None))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        token = self.token
        if self.token_file is not None:
            from ebla.direct.clusters import connected, remote_of

            remote = remote_of(connected(self))
            token = None if remote is None else remote.task_token(TASK_TOKEN_SECONDS)
        return (Cluster, (tuple(self), token, None, self.ca, self.ca_file))


def of_remote(remote: RemoteService, *, reads_only: bool) -> Cluster:
    """Return the cluster of a connection for the tasks of a job, which may read what the user may, or do all of it."""
    token = remote.task_token(TASK_TOKEN_SECONDS, READ_ALL if reads_only else None)
    tls = remote.credentials.tls
    ca, file = (None, None) if tls is None else (tls.ca, str(tls.ca_file))
    return Cluster(remote.addresses, token, None, ca, file)


def of_options(options: dict[str, str | None]) -> Cluster:
    """Return the cluster that options of Spark name; empty if they name none."""
    masters = tuple(one.strip() for one in (options.get("cluster") or "").split(",") if one.strip())
    token, file, ca = (options.get(name) or None for name in ("token", "token_file", "tls_ca"))
    if not masters:
        given = next((name for name in OPTIONS[1:] if options.get(name)), None)
        if given is not None:
            raise RequestError(f"the option {given} is for a cluster: name its masters by the option cluster")
        return Cluster(())
    if token is not None and file is not None:
        raise RequestError("give either the option token, which holds for a while, or token_file")
    if token is not None and not is_signed(token):
        raise RequestError(
            "options are seen in plans and by every task: put the token into a file that you alone can read, and name "
            "it by the option token_file"
        )
    if file is not None:
        file = os.path.abspath(checked_path("token_file", file))
    tls = None if ca is None else client_tls(ca)
    return Cluster(masters, token, file, None if tls is None else tls.ca, None if tls is None else str(tls.ca_file))


def cluster_options(remote: RemoteService) -> dict[str, str]:
    """Return the options of Spark that name the cluster of a connection; a token in them holds for a day."""
    made = of_remote(remote, reads_only=False)
    found = {"cluster": ",".join(made), "token": made.token, "tls_ca": made.ca_file}
    return {name: value for name, value in found.items() if value is not None}


def _read(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the token_file {file} cannot be read: {error}") from None
    if not token:
        raise RequestError(f"the token_file {file} is empty: `ebla user add` prints a token")
    return token
