"""Filters as Spark tells them to sources of rows, objects of its JVM, as conditions that this process understands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from ebla.pipeline.scanning.key_filters import AllOf, AnyOf, Compared, Condition

__all__ = ["conditions_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOW: dict[str, Any] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "StringStartsWith": "begins",
}
_NAMED_IN_MAX = 1_000
# 1900. Before, Java's older classes for time have other calendars and zones than Spark counts with.
_ALIKE_SINCE_MILLISECONDS = -2_208_988_800_000


def conditions_of(filters: Iterable[Any]) -> list[Condition | None]:
    """Return what filters say; None stands for one that is not understood."""
    return [_condition(one) for one in filters]


def _condition(told: Any) -> Condition | None:
    kind = told.getClass().getSimpleName()
    if kind in ("And", "Or"):
        parts = (_condition(told.left()), _condition(told.right()))
        return AllOf(parts) if kind == "And" else AnyOf(parts)
    if kind == "In":
        given = told.values()
        if len(given) > _NAMED_IN_MAX:
            return None
        values = tuple(map(_value, given))
        return None if None in values else Compared("in", _column(told), values)
    if kind not in _HOW:
        return None
    value = _value(told.value())
    return None if value is None else Compared(_HOW[kind], _column(told), (value,))


def _column(told: Any) -> str:
    """Return the name of a column; Spark quotes those that would mean something to it."""
    name: str = told.attribute()
    return name[1:-1].replace("``", "`") if len(name) > 1 and name[0] == name[-1] == "`" else name


def _value(given: Any) -> object | None:
    """Return a value of Java's as one of Python's; None if there is none for it."""
    if isinstance(given, (int, str, Decimal)) and not isinstance(given, bool):
        return given
    if isinstance(given, (bytes, bytearray)):
        return bytes(given)
    if not hasattr(given, "getClass"):
        return None
    known = _OF_JAVA.get(given.getClass().getName())
    try:
        return None if known is None else known(given)
    except (ValueError, OverflowError):
        return None  # Spark knows years that Python does not


def _of_timestamp(given: Any) -> datetime | None:
    if given.getTime() < _ALIKE_SINCE_MILLISECONDS:
        return None
    return _EPOCH + timedelta(seconds=given.getTime() // 1_000, microseconds=given.getNanos() // 1_000)


def _of_instant(given: Any) -> datetime:
    return _EPOCH + timedelta(seconds=given.getEpochSecond(), microseconds=given.getNano() // 1_000)


def _of_date(given: Any) -> date:
    return date.fromisoformat(given.toString())


_OF_JAVA: dict[str, Callable[[Any], object]] = {
    "java.sql.Date": _of_date,
    "java.time.LocalDate": _of_date,
    "java.sql.Timestamp": _of_timestamp,
    "java.time.Instant": _of_instant,
    "java.time.LocalDateTime": lambda given: datetime.fromisoformat(given.toString()),
    "java.math.BigDecimal": lambda given: Decimal(given.toString()),
}
