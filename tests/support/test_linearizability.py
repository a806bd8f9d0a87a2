"""The checker itself, on histories that are known to be right or wrong."""

from __future__ import annotations

import random
from math import inf

import pytest

from tests.support.linearizability import Operation, is_linearizable


def write(value: object, began: float, ended: float = inf) -> Operation:
    return Operation("write", value, began, ended)


def read(value: object, began: float, ended: float) -> Operation:
    return Operation("read", value, began, ended)


RIGHT = {
    "nothing happened": [],
    "the first read sees the beginning": [read(None, 0, 1)],
    "one after the other": [write(1, 0, 1), read(1, 2, 3), write(2, 4, 5), read(2, 6, 7)],
    "a read beside a write sees the old value": [write(1, 0, 10), read(None, 1, 2)],
    "a read beside a write sees the new value": [write(1, 0, 10), read(1, 1, 2), read(1, 3, 4)],
    "two writes at the same time in either order": [write(1, 0, 5), write(2, 0, 5), read(1, 6, 7)],
    "a write of unknown outcome never happened": [write(1, 0), read(None, 5, 6)],
    "a write of unknown outcome happened late": [write(1, 0), read(None, 5, 6), read(1, 7, 8)],
    "a read whose answer was lost says nothing": [Operation("read", 7, 0), read(None, 1, 2)],
    "the same value twice": [write(1, 0, 1), write(2, 2, 3), write(1, 4, 5), read(1, 6, 7)],
}
WRONG = {
    "a value that nobody wrote": [write(1, 0, 1), read(2, 2, 3)],
    "a stale read": [write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)],
    "an acknowledged write is lost": [write(1, 0, 1), read(None, 2, 3)],
    "going back after the new value was seen": [write(1, 0, 10), read(1, 1, 2), read(None, 3, 4)],
    "two readers disagree on the order": [
        write(1, 0, 9),
        write(2, 0, 9),
        read(1, 10, 11),
        read(2, 12, 13),
    ],
    "an unknown write comes and goes": [write(1, 0), read(1, 1, 2), read(None, 3, 4)],
    "an unknown write happens twice": [write(1, 0), read(1, 1, 2), write(2, 3, 4), read(2, 5, 6), read(1, 7, 8)],
    "a write takes effect before it began": [read(1, 0, 1), write(1, 2, 3)],
}


@pytest.mark.parametrize("history", RIGHT.values(), ids=RIGHT)
def test_what_can_be_explained_is_accepted(history: list[Operation]) -> None:
    assert is_linearizable(history)


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_what_cannot_be_explained_is_refused(history: list[Operation]) -> None:
    assert not is_linearizable(history)


def simulated(dice: random.Random, clients: int, steps: int) -> list[Operation]:
    """Return the history of a real register: each operation takes effect at one moment between its ends."""
    moments = []
    for client in range(clients):
        now = dice.random()
        for number in range(steps):
            began, at, ended = now, now + dice.random(), now + 1 + dice.random()
            kind = "write" if dice.random() < 0.5 else "read"
            moments.append((at, kind, (client, number), began, inf if dice.random() < 0.1 else ended))
            now = ended + dice.random() / 4
    value: object = None
    history = []
    for _, kind, written, began, ended in sorted(moments):
        if kind == "write":
            value = written
        history.append(Operation(kind, value, began, ended))
    return history


def test_every_history_of_a_register_is_accepted_and_a_read_that_is_bent_is_refused() -> None:
    dice = random.Random(7)
    bent = 0
    for _ in range(200):
        history = simulated(dice, clients=4, steps=10)
        assert is_linearizable(history)
        # A read of what was overwritten before the read began, with an acknowledged write in between.
        for at, one in enumerate(history):
            between = [w for w in history if w.kind == "write" and w.ended < one.began]
            older = [w for w in between if any(w.ended < later.began for later in between)]
            if one.kind == "read" and one.is_certain and older:
                wrong = [*history[:at], Operation("read", older[0].value, one.began, one.ended), *history[at + 1 :]]
                assert not is_linearizable(wrong)
                bent += 1
                break
    assert bent > 100
