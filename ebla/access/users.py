"""The users of a cluster: their tokens, as hashes, and their rights. Values; `user_list` keeps them.

{"format": 1, "users": {"ada": {"tokens": [{"id": ..., "sha256": ..., "expires": null}],
                                "grants": {"words": "write", "*": "read"}}}}
"""

from __future__ import annotations

import re

import msgspec

from ebla.access.rights import right_of
from ebla.access.tokens import StoredToken
from ebla.errors import Corruption, FormatTooNew, RequestError, shown

__all__ = ["User", "Users", "decode_users", "encode_users"]

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_\-]{1,64}")


class User(msgspec.Struct, frozen=True):
    """A user: the tokens by which it is known, its right by table."""

    tokens: tuple[StoredToken, ...] = ()
    grants: dict[str, str] = {}


class Users(msgspec.Struct, frozen=True):
    """All users, by name. Every method returns another value."""

    users: dict[str, User] = {}
    format: int = FORMAT

    def with_token(self, name: str, token: StoredToken) -> Users:
        """Give a user, who may be new, one more token."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError(f"a user's name has letters, digits, '_' and '-', at most 64, not {shown(name)}")
        user = self.users.get(name, User())
        return self._with(name, User((*user.tokens, token), user.grants))

    def without(self, name: str, token_id: str | None = None) -> Users:
        """Take away a token of a user, or the user."""
        user = self._user(name)
        if token_id is None:
            return Users({other: one for other, one in self.users.items() if other != name})
        tokens = tuple(token for token in user.tokens if token.id != token_id)
        if len(tokens) == len(user.tokens):
            raise RequestError(f"{name} has no token {shown(token_id)}: `ebla user list` names them")
        return self._with(name, User(tokens, user.grants))

    def granted(self, name: str, table: str, right: str | None) -> Users:
        """Give a user a right on a table, instead of the one it had; None takes it away."""
        user = self._user(name)
        grants = {one: had for one, had in user.grants.items() if one != table}
        if right is not None:
            right_of(right)
            grants[table] = right
        elif table not in user.grants:
            raise RequestError(f"{name} has no right on {shown(table)}: `ebla user list` tells what it has")
        return self._with(name, User(user.tokens, grants))

    def _user(self, name: str) -> User:
        user = self.users.get(name)
        if user is None:
            raise RequestError(f"there is no user {shown(name)}: `ebla user add` makes one")
        return user

    def _with(self, name: str, user: User) -> Users:
        return Users({**self.users, name: user})


def encode_users(users: Users) -> bytes:
    """Return the users as they are kept."""
    return msgspec.json.encode(users)


def decode_users(value: bytes, place: str) -> Users:
    """Return the users that were kept; `Corruption` if these are none, `FormatTooNew` if a later version wrote them."""
    try:
        users = msgspec.json.decode(value, type=Users)
        for user in users.users.values():
            for right in user.grants.values():
                right_of(right)
    except (msgspec.MsgspecError, RequestError) as error:
        raise Corruption(place, f"it does not say who the users are: {error}") from error
    if users.format > FORMAT:
        raise FormatTooNew(f"{place} has format {users.format}, and this version knows {FORMAT}: use a later one")
    return users
