"""Where a cluster keeps its users and its secret: the coordination service.

    access/users      who they are, as hashes of tokens, and what they may do         users.py
    access/secret     what short-lived tokens are signed with: 32 random bytes

Whoever can read the coordination service can sign tokens: it is of the cluster, and for nobody else.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable

from ebla.access.users import Users, decode_users, encode_users
from ebla.coordination.service import CoordinationConflict, CoordinationService, NodeExists
from ebla.errors import Conflict, EblaError, StoreError

__all__ = ["KnownUsers", "UserList"]

USERS = "access/users"
SECRET = "access/secret"
_SECRET_BYTES = 32
_ATTEMPTS = 10
# So long after a change of users at most, all processes go by it.
POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


class UserList:
    """The users of a cluster, to be read and changed."""

    def __init__(self, coordination: CoordinationService) -> None:
        # Set once.
        self._coordination = coordination

    def read(self) -> Users:
        """Return the users; none if nobody has made any."""
        node = self._coordination.read(USERS)
        return Users() if node is None else decode_users(node.value, USERS)

    def change(self, change: Callable[[Users], Users]) -> Users:
        """Replace the users by what `change` makes of them; it may be called again."""
        for _ in range(_ATTEMPTS):
            node = self._coordination.read(USERS)
            users = change(Users() if node is None else decode_users(node.value, USERS))
            try:
                self._coordination.put(USERS, encode_users(users), None if node is None else node.version)
            except CoordinationConflict:
                continue
            return users
        raise Conflict("others change the users at the same time: try again")

    @property
    def are_wanted(self) -> bool:
        """Whether a process of the cluster was started with users once: then all are from there on."""
        return self._coordination.read(SECRET) is not None

    def secret(self) -> bytes:
        """Return the secret of the cluster, which is made when it is first asked for."""
        node = self._coordination.read(SECRET)
        if node is None:
            with contextlib.suppress(NodeExists):  # another process was faster
                self._coordination.create(SECRET, secrets.token_bytes(_SECRET_BYTES))
            node = self._coordination.read(SECRET)
        if node is None or len(node.value) != _SECRET_BYTES:
            raise StoreError(f"the node {SECRET} of the coordination service is no secret: remove it, and start again")
        return node.value


class KnownUsers:
    """The users as a process knows them: read every second. While nobody can be asked, the last ones that were read."""

    def __init__(self, users: UserList, poll_seconds: float = POLL_SECONDS) -> None:
        # Set once.
        self._list = users
        self._poll_seconds = poll_seconds
        self.secret = users.secret()
        # Replaced as a whole by the thread; read by anybody.
        self.users = users.read()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebla-users", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._poll_seconds):
            try:
                found = self._list.read()
            except EblaError as error:
                _log.warning("the users cannot be read, going by what was known: %s", error)
                continue
            if found != self.users:
                self.users = found
