"""What belongs to the process that opened the store: it is not sent to others, and says what to send instead."""

from __future__ import annotations

from typing import NoReturn


class StaysHere:
    """Something that holds on to an open store, and so cannot be pickled."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"an ebla.{type(self).__name__} stays in the process that opened the store: send the path and the name of "
            "the table, and open it there with ebla.open(path, read_only=True)"
        )
