"""What a process shows to those it calls: a token, and how it is got again when it is old; a certificate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ebla.access.tls import Tls
from ebla.access.tokens import TOKEN_CHARS_MAX, Claim, signed
from ebla.errors import RequestError, shown

__all__ = ["NOTHING", "Credentials", "server_credentials", "user_credentials"]

SERVER_TOKEN_SECONDS = 3_600.0
# A token that is made anew is shown again this often, well before it expires.
RENEW_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """`token` returns what to show now; None: nothing. It is asked again after `renew_seconds`, if that is set.

    With `tls`, connections are encrypted, and servers verified.
    """

    token: Callable[[], str] | None = None
    renew_seconds: float | None = None
    tls: Tls | None = None


NOTHING = Credentials()


def user_credentials(token: str | Callable[[], str] | None, tls: Tls | None = None) -> Credentials:
    """Return what a client shows: a token, or what a function returns that is asked for it from time to time."""
    if token is None:
        return Credentials(tls=tls)
    if callable(token):
        return Credentials(lambda: _checked(token()), RENEW_SECONDS, tls)
    text = _checked(token)
    return Credentials(lambda: text, tls=tls)


def server_credentials(
    name: Callable[[], str], secret: bytes, now: Callable[[], float] = time.time, tls: Tls | None = None
) -> Credentials:
    """Return what a process of a cluster shows: it signs for itself."""
    return Credentials(
        lambda: signed(Claim("server", name(), now() + SERVER_TOKEN_SECONDS), secret), RENEW_SECONDS, tls
    )


def _checked(token: object) -> str:
    if not isinstance(token, str) or not 0 < len(token) <= TOKEN_CHARS_MAX:
        what = shown(token) if not isinstance(token, (str, bytes)) else "one of another length"
        raise RequestError(f"a token is text, as `ebla user add` prints it, not {what}")
    return token
