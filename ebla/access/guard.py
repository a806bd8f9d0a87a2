"""The guard of a server: every call is looked at before it is carried out.

    Guard.session(peer)          one for each stream; knows what the certificate of the other end says
      .present(token)            what the client shows, at the beginning and whenever it has a newer one
      .access(what)              one for each call; `Denied` unless somebody was shown who is known, and still is
          .check(needs)          its rights on the tables of the request

A token is verified when it is shown. For every call after that it is looked whether it has expired, whether the users
have changed, and which rights there are now: dictionaries, and no arithmetic on bytes.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass

from ebla.access.audit import Audit
from ebla.access.certificates import SERVER_URI
from ebla.access.rights import ALL, Need, Right, ServersOnly, right_anywhere, right_on
from ebla.access.tokens import TOKEN_CHARS_MAX, Claim, hash_of, signed, token_parts, verified
from ebla.access.user_list import KnownUsers
from ebla.access.users import User, Users
from ebla.errors import Denied, EblaError, RequestError, UnknownTable

__all__ = ["Access", "Guard", "Session"]

DERIVED_SECONDS_MAX = 24 * 3_600.0

# What somebody is about to do who needs a right, in the words of users.
_DOING = {Right.READ: "reading", Right.WRITE: "writing to", Right.ADMIN: "making, changing or dropping"}


@dataclass(frozen=True, slots=True)
class _Known:
    """Who was shown: a user by a token of that id, or a process of the cluster."""

    name: str
    is_server: bool
    token: str | None
    expires: float | None
    grants: dict[str, str] | None = None  # if it may do a part only of what the user may

    def __str__(self) -> str:
        return f"{'server' if self.is_server else 'user'} {self.name}"


class Guard:
    """Who may do what at one server. Safe to use from several threads."""

    def __init__(
        self,
        users: KnownUsers | None,
        *,
        needs_certificates: bool = False,
        name_of: Callable[[str], str] | None = None,
        audit: Audit | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Without `users` nobody needs a token: only processes of the cluster are told from others, by certificates.

        `name_of` finds the name of the table of an id; `now` is in seconds since 1970.
        """
        # Set once.
        self.users = users
        self.needs_certificates = needs_certificates
        self.name_of = name_of or _nameless
        self.audit = audit
        self.now = now

    def session(self, identity: str, peer: str) -> Session:
        """Begin to look at a stream: `identity` is what the certificate of the other end says, empty without one."""
        return Session(self, identity, peer)

    def derived(self, claim_of: Claim) -> str:
        """Return a token for a claim; `RequestError` where nobody has tokens."""
        if self.users is None:
            raise RequestError("this cluster has no users (--auth): nobody needs a token")
        return signed(claim_of, self.users.secret)


class Session:
    """One stream, as its guard sees it."""

    def __init__(self, guard: Guard, identity: str, peer: str) -> None:
        # Set once.
        self.guard = guard
        self.peer = peer
        self.server = identity.removeprefix(SERVER_URI) if identity.startswith(SERVER_URI) else None
        # Replaced as a whole by the reading thread; read by others.
        self._known: _Known | Denied = Denied("no token was shown: connect with token=..., see `ebla user add`")
        self._checked: tuple[_Known, Users] | None = None  # who was found last, and among which users

    def present(self, token: str) -> None:
        """Take what the client shows. What is wrong with it is told to every call."""
        users = self.guard.users
        if users is None:
            return
        try:
            self._known = self._verified(token[: TOKEN_CHARS_MAX + 1], users)
        except Denied as error:
            self._known = error

    def _verified(self, token: str, users: KnownUsers) -> _Known:
        if len(token) > TOKEN_CHARS_MAX:
            raise Denied("what was shown is no token of Ebla: it is too long")
        parts = token_parts(token)
        if parts is None:
            claim = verified(token, users.secret)
            if claim.kind == "server" and self.guard.needs_certificates and self.server != claim.name:
                raise Denied("the token is of a process of the cluster, and the certificate is not")
            return _Known(claim.name, claim.kind == "server", claim.token, claim.expires, claim.grants)
        name, token_id = parts
        user = users.users.users.get(name)
        for stored in () if user is None else user.tokens:
            if stored.id == token_id and hmac.compare_digest(stored.sha256, hash_of(token)):
                return _Known(name, False, token_id, stored.expires)
        raise Denied("the token is not known here, or was revoked: get another, see `ebla user add`")

    def access(self, what: str) -> Access:
        """Return what a call may do; `Denied` if nobody knows who asks."""
        users = self.guard.users
        if users is None:
            return Access(self, None, None, what)
        try:
            known = self._known
            if isinstance(known, Denied):
                raise Denied(str(known))
            if known.expires is not None and self.guard.now() >= known.expires:
                raise Denied("the token has expired: get another, see `ebla user add`")
            return Access(self, known, self._user(known, users.users), what)
        except Denied as error:
            self.note(what, "", "denied", str(error))
            raise

    def _user(self, known: _Known, users: Users) -> User | None:
        if known.is_server:
            return None
        user = users.users.get(known.name)
        checked = self._checked
        if checked is None or checked[0] is not known or checked[1] is not users:
            if user is None or all(token.id != known.token for token in user.tokens):
                raise Denied("the token was revoked: get another, see `ebla user add`")
            self._checked = (known, users)
        return user

    @property
    def who(self) -> str:
        """Whom it is taken for."""
        if not isinstance(self._known, Denied):
            return str(self._known)
        return f"server {self.server}" if self.server else "nobody"

    def note(self, what: str, table: str, outcome: str, why: str = "") -> None:
        """Write a line of the audit log."""
        if self.guard.audit is not None:
            self.guard.audit.note(who=self.who, what=what, table=table, outcome=outcome, peer=self.peer, why=why)


class Access:
    """What one call may do."""

    __slots__ = ("_known", "_session", "_user", "audited", "what")

    def __init__(self, session: Session, known: _Known | None, user: User | None, what: str) -> None:
        self._session = session
        self._known = known  # None: nobody needs a token
        self._user = user
        self.what = what
        self.audited: str | None = None  # the table of an admin request

    def check(self, needs: tuple[Need | ServersOnly, ...], what: str | None = None) -> None:
        """Raise `Denied` unless the caller has all of these; `what` is the request, if it is one inside another."""
        self.what = what or self.what
        for need in needs:
            if isinstance(need, ServersOnly):
                self._check_server(need)
            else:
                self._check_right(need)

    @property
    def who(self) -> str:
        """Whom the caller is taken for."""
        return self._session.who

    def may(self, right: Right, name: str) -> bool:
        """Tell whether the caller has a right on the table of a name."""
        return self._right(name) >= right

    def derived(self, seconds: float, grants: dict[str, str] | None) -> str:
        """Return a token for a while, for all rights of the caller or for fewer."""
        known, guard = self._known, self._session.guard
        if not 0 < seconds <= DERIVED_SECONDS_MAX:
            raise RequestError(f"a token that is derived holds for up to {DERIVED_SECONDS_MAX:.0f} s, not {seconds}")
        if known is None:
            raise RequestError("this cluster has no users (--auth): nobody needs a token")
        expires = min(guard.now() + seconds, known.expires or float("inf"))
        if grants is None:
            grants = known.grants
        elif known.grants is not None:
            raise RequestError("the token is for a part of the rights already: derive from the user's own")
        return guard.derived(Claim("server" if known.is_server else "user", known.name, expires, known.token, grants))

    def finished(self, outcome: str, why: str = "") -> None:
        """Say what came of an admin request."""
        if self.audited is not None:
            self._session.note(self.what, self.audited, outcome, why)

    def _check_server(self, need: ServersOnly) -> None:
        session, known = self._session, self._known
        if session.guard.needs_certificates and session.server is None:
            self._deny("", f"{self.what} is for processes of the cluster: its certificate names none")
        if known is not None and not known.is_server:
            self._deny("", f"{self.what} is for processes of the cluster, and not for users")
        names = {name for name in (session.server, known.name if known else None, need.sender) if name is not None}
        if len(names) > 1:
            self._deny("", f"{self.what} says that it is of {need.sender}, and was shown to be of somebody else")

    def _check_right(self, need: Need) -> None:
        if need.is_anywhere:
            if self._anywhere() < need.right:
                self._deny("", f"this needs the right to {need.right.name.lower()} some table: see `ebla grant`")
            return
        name = self._name(need)
        if self._right(name) < need.right:
            right = need.right.name.lower()
            if name == ALL:
                self._deny(name, f"this concerns all tables, and needs the right {right} on '*': see `ebla grant`")
            self._deny(name, f"{_DOING[need.right]} the table {name!r} needs the right {right}: see `ebla grant`")
        if need.right is Right.ADMIN:
            self.audited = name

    def _name(self, need: Need) -> str:
        if need.name is not None:
            return need.name
        if need.table is None:
            return ALL
        try:
            return self._session.guard.name_of(need.table)
        except UnknownTable:
            if self._right(ALL) < need.right:
                # Whoever may not see all tables is not told which there are.
                self._deny("", "this needs a right on that table, or there is none: see `ebla grant`")
            raise

    def _right(self, name: str) -> Right:
        if self._user is None:
            return Right.ADMIN if self._known is None or self._known.is_server else Right.NONE
        right = right_on(self._user.grants, name)
        limits = self._known.grants if self._known is not None else None
        return right if limits is None else min(right, right_on(limits, name))

    def _anywhere(self) -> Right:
        if self._user is None:
            return self._right(ALL)
        right = right_anywhere(self._user.grants)
        limits = self._known.grants if self._known is not None else None
        return right if limits is None else min(right, right_anywhere(limits))

    def _deny(self, table: str, why: str) -> None:
        self._session.note(self.what, table, "denied", why)
        raise Denied(why)


def outcome_of(error: BaseException) -> str:
    """Return what the audit log calls the end of a request that failed."""
    return f"failed: {type(error).__name__}" if isinstance(error, EblaError) else "failed"


def _nameless(table_id: str) -> str:
    raise UnknownTable(f"there is no table of id {table_id}")
