"""Credits and parts, by themselves."""

import os
import random
from typing import Any

import pytest

from ebla.errors import ProtocolError
from ebla.rpc.frames import Answered, Part, Ping, decode_frame, encode_frame
from ebla.rpc.limits import Limits
from ebla.rpc.methods import encode_body
from ebla.rpc.outbox import Inbox, Outbox

LIMITS = Limits(window_bytes=4_000, part_bytes=1_000, message_bytes_max=50_000)


def frame(number: int, size: int) -> Any:
    return encode_frame(Answered(number, encode_body(bytes(size))))


def all_of(outbox: Outbox) -> Any:
    return list(iter(outbox.take, None))


def test_no_more_leaves_than_the_window_has_room_for() -> None:
    outbox = Outbox(LIMITS)
    for number in range(10):
        outbox.push(frame(number, 900))
    sent = all_of(outbox)
    assert 3_000 < sum(map(len, sent)) <= 4_000
    outbox.acknowledge(len(sent[0]))
    assert len(all_of(outbox)) == 1


def test_pings_and_acknowledgements_leave_without_credit_and_first() -> None:
    outbox = Outbox(LIMITS)
    for number in range(10):
        outbox.push(frame(number, 900))
    all_of(outbox)
    outbox.push_free(encode_frame(Ping()))
    assert all_of(outbox) == [encode_frame(Ping())]


def test_short_frames_pass_a_long_one() -> None:
    outbox = Outbox(LIMITS)
    outbox.push(frame(1, 20_000))
    outbox.push(frame(2, 10))
    kinds = [type(decode_frame(data)) for data in all_of(outbox)]
    assert kinds[:2] in ([Answered, Part], [Part, Answered])


def test_acknowledging_what_was_not_sent_is_refused() -> None:
    outbox = Outbox(LIMITS)
    with pytest.raises(ProtocolError, match="acknowledged"):
        outbox.acknowledge(1)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_pushed_arrives_whole_and_within_the_window(seed: int) -> None:
    dice = random.Random(seed)
    outbox, inbox = Outbox(LIMITS), Inbox(LIMITS)
    waiting = [
        encode_frame(Answered(n, encode_body(os.urandom(dice.choice([5, 990, 1_000, 9_999]))))) for n in range(30)
    ]
    expected, arrived, wire = set(waiting), [], []
    while len(arrived) < 30:
        if waiting and dice.random() < 0.5:
            outbox.push(waiting.pop())
        while (data := outbox.take()) is not None:
            wire.append(data)
            assert sum(map(len, wire)) <= LIMITS.window_bytes
        if wire:
            data = wire.pop(0)
            got = inbox.take(data)
            outbox.acknowledge(len(data))
            if got is not None:
                arrived.append(encode_frame(got))
    assert set(arrived) == expected
    assert outbox.queued_bytes == 0


@pytest.mark.parametrize(
    "parts",
    [
        [Part(10, 5, memoryview(b"12345"))],
        [Part(10, 0, memoryview(b"12345")), Part(11, 5, memoryview(b"12345"))],
        [Part(10, 0, memoryview(b"12345")), Part(10, 0, memoryview(b"12345"))],
        [Part(3, 0, memoryview(b"12345"))],
        [Part(10, 0, memoryview(b""))],
        [Part(60_000, 0, memoryview(b"12345"))],
        [Part(-1, 0, memoryview(b"12345"))],
    ],
)
def test_parts_that_do_not_fit_together_are_refused(parts: list[Part]) -> None:
    inbox = Inbox(LIMITS)
    for part in parts[:-1]:
        assert inbox.take(encode_frame(part)) is None
    with pytest.raises(ProtocolError):
        inbox.take(encode_frame(parts[-1]))


def test_parts_inside_parts_are_refused() -> None:
    inner = encode_frame(Part(10, 0, memoryview(b"12345")))
    with pytest.raises(ProtocolError, match="another part"):
        Inbox(LIMITS).take(encode_frame(Part(len(inner), 0, memoryview(inner))))
