"""Why METADATA refused a change, as words that can go over a wire, and as the error that they stand for.

RequirementFailed("stale_epoch", ...)  <-->  "requirement:stale_epoch" and a sentence
"""

from __future__ import annotations

from ebla.errors import Conflict, EblaError, RequestError, SchemaError, UnknownTable
from ebla.metadata.values.requirements import RequirementFailed
from ebla.metadata.values.tablet_metadata import InvalidMetadata

__all__ = ["GONE", "error_of", "refusal_of"]

GONE = "gone"  # there is no such table
_REQUIREMENT = "requirement:"
_KINDS: dict[str, type[EblaError]] = {
    GONE: UnknownTable,
    "invalid": InvalidMetadata,
    "schema": SchemaError,
    "request": RequestError,
}


def refusal_of(error: EblaError) -> str:
    """Return of what kind a refusal is, in words."""
    if isinstance(error, RequirementFailed):
        return f"{_REQUIREMENT}{error.code}"
    return next((kind for kind, error_type in _KINDS.items() if isinstance(error, error_type)), "")


def error_of(kind: str, reason: str) -> EblaError:
    """Return the error that a refusal stands for; a `Conflict` if its kind is not known here."""
    if kind.startswith(_REQUIREMENT):
        return RequirementFailed(kind.removeprefix(_REQUIREMENT), reason)
    return _KINDS.get(kind, Conflict)(reason)
