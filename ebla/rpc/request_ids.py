"""Which request a line of a log is about: the same id at the client that asked and at the server that answers.

3f2a9c1e4b...:4711     who asked, as it calls itself, and its number, which no other call of that client has
"""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count
from typing import Final

__all__ = ["current_request", "numbers", "request_id"]

# Of the request that this thread carries out or asks for now; empty: none.
current_request: Final[ContextVar[str]] = ContextVar("ebla_request", default="")

# All calls of a process, to whichever server, have numbers of their own.
numbers: Final = count(1)


def request_id(client: str, number: int) -> str:
    """Return the id of a call."""
    return f"{client}:{number}"
