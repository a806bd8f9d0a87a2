"""Tokens: what somebody shows to be known.

    eu1.ada.4f1c09aa.<secret>      a user's: the cluster keeps its hash; it may be revoked, and may expire
    es1.<claim>.<signature>        a short-lived one, signed with the secret of the cluster: nothing of it is kept

A claim names a user and, if it is for a part of the user's rights, which; it holds no longer than the token that it was
derived from. Processes of a cluster sign claims for themselves.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Literal

import msgspec

from ebla.errors import Denied

__all__ = [
    "TOKEN_CHARS_MAX",
    "Claim",
    "StoredToken",
    "claim_in",
    "hash_of",
    "is_signed",
    "new_token",
    "signed",
    "token_parts",
    "verified",
]

TOKEN_CHARS_MAX = 4_096

_USER = "eu1"
_SIGNED = "es1"


class StoredToken(msgspec.Struct, frozen=True):
    """What is kept of a token: nobody can make it of this. `expires` is in seconds since 1970."""

    id: str
    sha256: str
    expires: float | None = None


class Claim(msgspec.Struct, frozen=True):
    """Who somebody is, until when; `token` is the id of the token that it was derived from, `grants` what it is for."""

    kind: Literal["server", "user"]
    name: str
    expires: float
    token: str | None = None
    grants: dict[str, str] | None = None


def new_token(user: str, expires: float | None) -> tuple[str, StoredToken]:
    """Return a token for a user, and what is kept of it."""
    token_id = secrets.token_hex(4)
    token = f"{_USER}.{user}.{token_id}.{secrets.token_urlsafe(32)}"
    return token, StoredToken(token_id, hash_of(token), expires)


def hash_of(token: str) -> str:
    """Return what is kept of a token. It is long and random, so that nothing slower is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_parts(token: str) -> tuple[str, str] | None:
    """Return the user and the id of a user's token; None if it is a signed one."""
    parts = token.split(".")
    if parts[0] == _SIGNED:
        return None
    if len(parts) != 4 or parts[0] != _USER:
        raise Denied("what was shown is no token of Ebla: make one with `ebla user add`")
    return parts[1], parts[2]


def is_signed(token: str) -> bool:
    """Tell whether a token is a short-lived one."""
    return token.startswith(f"{_SIGNED}.")


def claim_in(token: str) -> Claim:
    """Return what a signed token says, for whoever has no means to verify it: clients, of their own."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token.split(".")[1]), type=Claim)
    except (IndexError, binascii.Error, ValueError, msgspec.MsgspecError):
        raise Denied("what was given is no short-lived token of Ebla") from None


def signed(claim: Claim, secret: bytes) -> str:
    """Return a token that says what a claim does, for whoever knows the secret."""
    said = f"{_SIGNED}.{_text(msgspec.json.encode(claim))}"
    return f"{said}.{_text(_signature(said, secret))}"


def verified(token: str, secret: bytes) -> Claim:
    """Return the claim of a signed token; `Denied` if another secret signed it, or nobody."""
    said, _, signature = token.rpartition(".")
    try:
        given = base64.urlsafe_b64decode(signature)
        claim = msgspec.json.decode(base64.urlsafe_b64decode(said.partition(".")[2]), type=Claim)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise Denied("what was shown is no token of Ebla") from None
    if not hmac.compare_digest(given, _signature(said, secret)):
        raise Denied("the token was not signed by this cluster: get one of this cluster")
    return claim


def _signature(said: str, secret: bytes) -> bytes:
    return hmac.new(secret, said.encode(), hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()
