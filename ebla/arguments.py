"""Arguments of calls, made plain where a user hands them over, so that nothing strange goes further.

A subclass of `str`, such as `numpy.str_`, compares like text and is encoded by nobody: one in the catalog keeps the
store from writing it. A frame, or pandas' NA, is neither true nor false. What cannot be meant is a `RequestError`
before anything was done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ebla.errors import RequestError, shown

__all__ = [
    "checked_callback",
    "checked_choice",
    "checked_flag",
    "checked_names",
    "checked_path",
    "checked_replicas",
    "plain_text",
    "plain_texts",
]

_FILE_NAME_BYTES_MAX = 255


def plain_text(value: Any) -> Any:
    """Return text as exactly `str`, whatever subclass it is of; anything else as it is."""
    return str.__str__(value) if isinstance(value, str) and type(value) is not str else value


def plain_texts(value: Any) -> Any:
    """Return a list, or a dict by names, with all texts in it plain; anything else as `plain_text` does."""
    if isinstance(value, Mapping):
        return {plain_text(name): plain_texts(inner) for name, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain_texts, value))
    return plain_text(value)


def checked_flag(name: str, value: object) -> bool:
    """Return a flag, which is True or False and not what might stand for one of them."""
    if type(value) is bool:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise RequestError(f"{name} is True or False, not {shown(value)}")


# A table has so many replicas at most: every commit waits for all that are in sync.
REPLICAS_MAX = 9


def checked_replicas(value: object) -> int | None:
    """Return how many replicas there are to be; None if that is not said."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= REPLICAS_MAX:
        raise RequestError(f"replicas is a whole number from 1 to {REPLICAS_MAX}, not {shown(value)}")
    return int(value)


def checked_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless a value is one of a few words."""
    if not isinstance(value, str) or value not in choices:
        words = ", ".join(map(repr, choices[:-1]))
        raise RequestError(f"{name} is {words} or {choices[-1]!r}, not {shown(value)}")


def checked_callback(name: str, value: Any) -> Callable[..., Any] | None:
    """Return a function to call, or None if none is wanted."""
    if value is not None and not callable(value):
        raise RequestError(f"{name} is a function to call, or None, not {shown(value)}")
    return value  # type: ignore[no-any-return]


def checked_names(name: str, value: Any, *, error: type[RequestError] = RequestError) -> tuple[Any, ...]:
    """Return a list of names with the texts in it plain; a text alone is no list."""
    if not isinstance(value, (str, bytes)) and isinstance(value, Iterable):
        try:
            return tuple(map(plain_text, value))
        except TypeError:  # numpy has arrays that say they can be iterated, and cannot
            pass
    raise error(f"{name} is a list of names, such as [{shown(value)}]")


def checked_path(what: str, value: object) -> Path:
    """Return a path of this machine: a string or a Path that a file can be called by, and no address."""
    if not isinstance(value, (str, os.PathLike)):
        raise RequestError(f"{what} is a string or a Path, not {shown(value)}")
    text = plain_text(os.fspath(value))
    if not isinstance(text, str) or "://" in text or not text or not _may_be_a_path(text):
        raise RequestError(
            f"{shown(text)} is not a path of this machine: {what} is one, such as 'data', and what lies elsewhere is "
            "copied from or to it"
        )
    return Path(text)


def _may_be_a_path(text: str) -> bool:
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return False
    # No file system of this machine has longer names.
    return b"\0" not in encoded and all(len(name) <= _FILE_NAME_BYTES_MAX for name in encoded.split(os.sep.encode()))
