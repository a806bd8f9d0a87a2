"""The filter language of ``scan(where="...")`` and ``ebla scan --where``: which rows are wanted, as SQL writes it.

    age > 30 and (name like 'A%' or day between 2026-01-01 and 2026-01-31) and not state in (new, 'on hold')

    filter     = all { "or" all }
    all        = single { "and" single }
    single     = "not" single | "(" filter ")" | comparison
    comparison = column ( "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) value
               | column "is" [ "not" ] "null"
               | column [ "not" ] "in" "(" value { "," value } ")"
               | column [ "not" ] "between" value "and" value
               | column [ "not" ] "like" value      % is any text, _ one character or byte, \\ takes the next as it is
    column     = word | `name`                 a word has no blanks, quotes, brackets, commas or comparison signs
    value      = word | 'text' | "text"        a quote inside is doubled

    text --parse_where--> conditions --where.to_expression--> pyarrow expression

This half knows the grammar and no table: which columns there are, and what their values look like, is asked later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from ebla.errors import RequestError

__all__ = ["AllOf", "AnyOf", "Comparison", "Condition", "Not", "Value", "complaint", "parse_where", "place"]

# So deep may brackets stand in each other: more is refused before Python's own stack is full.
DEPTH_MAX = 100

_TOKEN = re.compile(
    r"""
        (?P<sign><=|>=|!=|<>|==|=|<|>)
      | (?P<mark>[(),])
      | '(?P<single>(?:[^']|'')*)'
      | "(?P<double>(?:[^"]|"")*)"
      | `(?P<name>[^`]+)`
      | (?P<word>[^\s<>=!'"`(),]+)
    """,
    re.VERBOSE,
)
_BLANK = re.compile(r"\s*")
_KEYWORDS = frozenset({"and", "or", "not", "in", "like", "between", "is", "null"})
_SIGNS = ("=", "==", "!=", "<>", "<", "<=", ">", ">=")
_EXAMPLE = "write for example \"age > 30 and name = 'Ada'\""


@dataclass(frozen=True, slots=True)
class Value:
    """A value as it was written, and where (counted in characters from 0)."""

    text: str
    at: int
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison: a sign, ``in``, ``between`` or ``like`` with its values, or ``null`` with none."""

    column: str
    sign: str
    values: tuple[Value, ...]
    at: int  # where the column stands
    sign_at: int


@dataclass(frozen=True, slots=True)
class Not:
    """Holds where the condition does not."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class AllOf:
    """Holds where every condition does."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds where one of the conditions does."""

    conditions: tuple[Condition, ...]


Condition = Comparison | Not | AllOf | AnyOf


# --- text -> conditions --------------------------------------------------------------------------


def parse_where(text: str) -> Condition:
    """Return what a filter says; raise `RequestError` with the place where it stops making sense."""
    parser = _Parser(text)
    condition = parser.any_of(0)
    if parser.token.kind != "end":
        parser.complain(f"{parser.token.shown}: expected 'and' or 'or'")
    return condition


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # sign, mark, text, name, word, end
    text: str
    at: int

    @property
    def shown(self) -> str:
        return repr(self.text)

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.lower() == word

    def is_mark(self, mark: str) -> bool:
        return self.kind == "mark" and self.text == mark


class _Parser:
    """Goes through a text from left to right; `token` is the next that nobody has taken."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self.token = self._next()

    def any_of(self, depth: int) -> Condition:
        parts = [self._all_of(depth)]
        while self.token.is_word("or"):
            self._take()
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self, depth: int) -> Condition:
        parts = [self._single(depth)]
        while self.token.is_word("and"):
            self._take()
            parts.append(self._single(depth))
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _single(self, depth: int) -> Condition:
        is_negated = False
        while self.token.is_word("not"):
            self._take()
            is_negated = not is_negated
        if self.token.is_mark("("):
            if depth >= DEPTH_MAX:
                self.complain(f"brackets stand in each other more than {DEPTH_MAX} deep")
            self._take()
            condition = self.any_of(depth + 1)
            if not self.token.is_mark(")"):
                self._unexpected("'and', 'or' or ')'")
            self._take()
        else:
            condition = self._comparison()
        return Not(condition) if is_negated else condition

    def _comparison(self) -> Condition:
        column = self.token
        if column.kind == "word" and column.text.lower() in _KEYWORDS:
            self.complain(
                f"{column.shown} stands where a column should be: one that is called so goes in backquotes, as in "
                f"`{column.text}`"
            )
        if column.kind not in ("word", "name"):
            self._unexpected("a column")
        self._take()
        sign = self.token
        is_negated = sign.is_word("not")
        if is_negated:
            self._take()
            sign = self.token
            if not any(sign.is_word(word) for word in ("in", "like", "between")):
                self._unexpected("'in', 'like' or 'between'")
        values: tuple[Value, ...]
        if sign.kind == "sign":
            self._take()
            values, name = (self._value(),), sign.text
        elif sign.is_word("is"):
            self._take()
            is_negated = self.token.is_word("not")
            if is_negated:
                self._take()
            if not self.token.is_word("null"):
                self._unexpected("'null': only 'is null' and 'is not null' are known")
            self._take()
            values, name = (), "null"
        elif sign.is_word("in"):
            self._take()
            values, name = self._values(), "in"
        elif sign.is_word("between"):
            self._take()
            low = self._value()
            if not self.token.is_word("and"):
                self._unexpected("'and' and the upper end")
            self._take()
            values, name = (low, self._value()), "between"
        elif sign.is_word("like"):
            self._take()
            values, name = (self._value(),), "like"
        else:
            self._unexpected(f"one of {', '.join(_SIGNS)}, is null, in, between, like")
        comparison = Comparison(column.text, name, values, column.at, sign.at)
        return Not(comparison) if is_negated else comparison

    def _values(self) -> tuple[Value, ...]:
        if not self.token.is_mark("("):
            self._unexpected("a list of values, such as (1, 2)")
        self._take()
        values = [self._value()]
        while self.token.is_mark(","):
            self._take()
            values.append(self._value())
        if not self.token.is_mark(")"):
            self._unexpected("',' or ')'")
        self._take()
        return tuple(values)

    def _value(self) -> Value:
        token = self.token
        if token.kind == "word" and token.text.lower() == "null":
            self.complain("nothing is equal to null: write 'is null' or 'is not null'")
        if token.kind not in ("word", "text"):
            self._unexpected("a value")
        self._take()
        return Value(token.text, token.at, token.kind == "text")

    def _take(self) -> None:
        self.token = self._next()

    def _next(self) -> _Token:
        blank = _BLANK.match(self._text, self._end)
        at = self._end if blank is None else blank.end()
        if at == len(self._text):
            return _Token("end", "", at)
        match = _TOKEN.match(self._text, at)
        if match is None or match.lastgroup is None:
            rest = self._text[at:].rstrip()
            open_quote = ": the quote is not closed" if rest[0] in "'\"`" else ""
            raise complaint(self._text, at, f"cannot read {_cut(rest)!r}{open_quote}; {_EXAMPLE}")
        self._end = match.end()
        kind, word = match.lastgroup, match[match.lastgroup]
        if kind in ("single", "double"):
            quote = "'" if kind == "single" else '"'
            return _Token("text", word.replace(quote * 2, quote), at)
        return _Token(kind, word, at)

    def _unexpected(self, expected: str) -> NoReturn:
        if self.token.kind == "end":
            self.complain(f"it ends where {expected} should follow")
        self.complain(f"{self.token.shown} stands where {expected} should be")

    def complain(self, what: str) -> NoReturn:
        raise complaint(self._text, self.token.at, f"{what}; {_EXAMPLE}")


def complaint(text: str, at: int, what: str) -> RequestError:
    """Return the error for a filter that makes no sense at a place."""
    return RequestError(f"{place(text, at)}: {what}")


def place(text: str, at: int) -> str:
    """Say where in a filter something is."""
    return f"the filter {_cut(text, 200)!r}, at character {at + 1}"


def _cut(text: str, length: int = 40) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
