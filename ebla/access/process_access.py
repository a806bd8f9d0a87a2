"""What a process of a cluster checks of others, and shows to them: one for each process, made of its options."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ebla.access.audit import AUDIT_FILE, Audit
from ebla.access.credentials import Credentials, server_credentials
from ebla.access.guard import Guard
from ebla.access.tls import Tls
from ebla.access.user_list import KnownUsers, UserList
from ebla.coordination.service import CoordinationService
from ebla.errors import RequestError, Unavailable

__all__ = ["ProcessAccess", "kept_for_a_while"]

# A table that was given another name is known by it everywhere after this.
NAMES_KEPT_SECONDS = 1.0
_NAMES_MAX = 10_000


class ProcessAccess:
    """Where a process is told who may do what. Without `auth`, everybody may do everything."""

    def __init__(
        self,
        coordination: CoordinationService,
        data: Path,
        *,
        auth: bool = False,
        tls: Tls | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`data` is the directory of the process, where its audit log is; `tls` its certificate."""
        # Set once.
        users = UserList(coordination)
        if not auth and users.are_wanted:
            raise RequestError("this cluster has users: start all of its processes with --auth")
        self._users = KnownUsers(users) if auth else None
        self._audit = Audit(data / AUDIT_FILE, now)
        self._now = now
        self.tls = tls

    def guard(self, name_of: Callable[[str], str]) -> Guard | None:
        """Return what looks at the calls to this process; `name_of` tells the name of the table of an id."""
        if self._users is None and self.tls is None:
            return None
        return Guard(
            self._users, needs_certificates=self.tls is not None, name_of=name_of, audit=self._audit, now=self._now
        )

    def credentials(self, name: Callable[[], str]) -> Credentials:
        """Return what this process, which is of that name, shows to others of the cluster."""
        if self._users is None:
            return Credentials(tls=self.tls)
        return server_credentials(name, self._users.secret, self._now, self.tls)

    def metric_lines(self) -> Iterator[str]:
        """Yield what Prometheus is told: when the certificate of this process expires."""
        if self.tls is not None and self.tls.certificate_says is not None:
            ends = self.tls.certificate_says.ends.timestamp()
            meaning = "When the certificate of this process expires."
            yield f"# HELP ebla_certificate_expires_timestamp_seconds {meaning}"
            yield "# TYPE ebla_certificate_expires_timestamp_seconds gauge"
            yield f"ebla_certificate_expires_timestamp_seconds {ends:.0f}"

    def close(self) -> None:
        """Look no more who the users are."""
        if self._users is not None:
            self._users.close()


def kept_for_a_while(name_of: Callable[[str], str]) -> Callable[[str], str]:
    """Return a `name_of` that asks another one at most once a second for a table."""
    kept: dict[str, tuple[float, str]] = {}

    def found(table_id: str) -> str:
        now = time.monotonic()
        known = kept.get(table_id)
        if known is not None and now - known[0] < NAMES_KEPT_SECONDS:
            return known[1]
        try:
            name = name_of(table_id)
        except Unavailable:
            if known is None:
                raise
            name = known[1]  # nobody can be asked: it has the name that it had
        if len(kept) >= _NAMES_MAX:
            kept.clear()
        kept[table_id] = (now, name)
        return name

    return found
