"""What travels on a stream: frames, each of them msgpack in the metadata of a Flight message.

    client                                     server
      Hello       in the descriptor             -->    which versions of the protocol, and who asks
                  <--                      Welcome     or Failed, and the end
      Credential  who asks, if that matters     -->    again when it has a newer one
      Call        number, name, body            -->
                  <--          Answered or Failed      by that number, in any order
      Cancel      nobody waits for it any more  -->
      Acked       so many bytes were taken     <->     credits: see `outbox`
      Part        a piece of a longer frame    <->
      Ping        <->                        Pong
                  <--                     Goodbye      no new calls: the server is about to leave

`Hello` keeps its form for ever, so that two versions can tell each other that they do not fit. All others may change
with `PROTOCOL_VERSION`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from ebla.errors import ProtocolError
from ebla.model.schema import encode_hook

__all__ = [
    "PROTOCOL_VERSION",
    "Acked",
    "Answered",
    "Call",
    "Cancel",
    "Credential",
    "Failed",
    "Frame",
    "Goodbye",
    "Hello",
    "Part",
    "Ping",
    "Pong",
    "Welcome",
    "decode_frame",
    "decode_hello",
    "encode_answer",
    "encode_call",
    "encode_frame",
]

PROTOCOL_VERSION: Final = 1
_HELLO_BYTES_MAX = 4_096


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="ebla", gc=False):
    """Who asks, and the oldest and newest version of the protocol that it speaks."""

    oldest: int
    newest: int
    client: str
    software: str


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """The version that both speak from here on, who answers, and at which port processes of the cluster are to ask.

    0: here.
    """

    version: int
    server: str
    peer_port: int = 0


class Call(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A request; `timeout_milliseconds` is how long its answer is waited for."""

    number: int
    name: str
    timeout_milliseconds: int
    body: msgspec.Raw


class Answered(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The reply to a call."""

    number: int
    body: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A call, or with number 0 the stream, came to nothing: see `faults`."""

    number: int
    code: str
    sentence: str
    advice: str
    details: tuple[str | int | None, ...] = ()


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Nobody waits for the answer to a call any more: unless it was begun, it need not be."""

    number: int


class Acked(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """So many more bytes of frames were taken."""

    count: int


class Part(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The next piece of a frame that is too long for one message; a stream has one such frame at a time."""

    total: int
    offset: int
    data: memoryview


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """Is anybody there?"""


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """Yes."""


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """What is under way is still answered; begin nothing new."""


class Credential(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """A token: the calls that follow are of whoever has it."""

    token: str


Frame: TypeAlias = Welcome | Call | Answered | Failed | Cancel | Acked | Part | Ping | Pong | Goodbye | Credential

_encoder = msgspec.msgpack.Encoder()
_values = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_frames: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
_hellos = msgspec.msgpack.Decoder(Hello)

encode_frame = _encoder.encode


def encode_call(number: int, name: str, timeout_milliseconds: int, request: object) -> bytes:
    """Return the frame of a call, with its request in place: what is large is not copied twice."""
    return _values.encode((1, number, name, timeout_milliseconds, request))


def encode_answer(number: int, reply: object) -> bytes:
    """Return the frame of an answer, with its reply in place."""
    return _values.encode((2, number, reply))


def decode_frame(data: bytes | memoryview) -> Frame:
    """Return the frame that these bytes are; `ProtocolError` if they are none."""
    try:
        return _frames.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{len(data)} bytes on a stream are no frame of Ebla's protocol: {error}") from None


def decode_hello(data: bytes) -> Hello:
    """Return what a client says of itself; `ProtocolError` if it is no client of Ebla."""
    if len(data) > _HELLO_BYTES_MAX:
        raise ProtocolError(f"a greeting of {len(data)} bytes is none of Ebla's: it may have {_HELLO_BYTES_MAX}")
    try:
        return _hellos.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"whoever connected does not speak Ebla's protocol: {error}") from None
