"""Errors on the wire: a code, a sentence, and a word of advice. Never a traceback.

A code is the name of a class of `ebla.errors` in small letters with underscores. The other end raises the same class
with the same sentence. A code that it does not know, of a later version, becomes the class that its advice stands for.
"""

from __future__ import annotations

import logging
import re
import uuid
from typing import Final

from ebla import errors
from ebla.errors import (
    Conflict,
    Corruption,
    EblaError,
    OutcomeUnknown,
    RequestError,
    StoreError,
    TooManyFiles,
    Unavailable,
)
from ebla.rpc.frames import Failed

__all__ = ["CODES", "error_of", "failed"]

_log = logging.getLogger(__name__)

_SENTENCE_CHARS_MAX = 4_000


def _code_of(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


CODES: Final[dict[str, type[EblaError]]] = {_code_of(name): getattr(errors, name) for name in errors.__all__}
_NAMES: Final = {kind: code for code, kind in CODES.items()}
_BY_ADVICE: Final[dict[str, type[EblaError]]] = {
    "fix": RequestError,
    "reread": Conflict,
    "retry": Unavailable,
    "check": OutcomeUnknown,
    "stop": StoreError,
}


def failed(number: int, error: BaseException, *, doing: str, is_repeatable: bool) -> Failed:
    """Return what is told of an error. One that is none of ours goes to the log, and its number there is told."""
    if TooManyFiles.is_meant_by(error) and not isinstance(error, EblaError):
        error = TooManyFiles.at(doing)
    if not isinstance(error, EblaError):
        incident = uuid.uuid4().hex[:12]
        _log.error("%s failed (incident %s)", doing, incident, exc_info=error)
        told = f"{doing} failed on the server: its log tells why, under incident {incident}"
        error = StoreError(told) if is_repeatable else OutcomeUnknown(told)
    kind = next(kind for kind in type(error).__mro__ if kind in _NAMES)
    details = (error.file, error.reason, error.offset) if isinstance(error, Corruption) else ()
    return Failed(number, _NAMES[kind], str(error)[:_SENTENCE_CHARS_MAX], error.advice, details)


def error_of(failure: Failed) -> EblaError:
    """Return the error that the other end met."""
    kind = CODES.get(failure.code)
    if kind is None:
        return _BY_ADVICE.get(failure.advice, StoreError)(failure.sentence)
    if kind is Corruption:
        return _corruption_of(failure)
    return kind(failure.sentence)


def _corruption_of(failure: Failed) -> EblaError:
    match failure.details:
        case (str(file), str(reason), int() | None as offset):
            return Corruption(file, reason, offset)
    return StoreError(failure.sentence)
