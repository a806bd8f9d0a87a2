"""Messages between metadata servers, and with those who ask them, as bytes: the name of the message, and its fields."""

from __future__ import annotations

from typing import get_args

import msgspec

from ebla.errors import ProtocolError
from ebla.metadata.consensus.protocol import Message
from ebla.model.schema import decode_hook, encode_hook

__all__ = ["decode_message", "encode_message"]

_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_outer = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_decoders = {kind.__name__: msgspec.msgpack.Decoder(kind, dec_hook=decode_hook) for kind in get_args(Message)}


def encode_message(message: Message) -> bytes:
    """Return a message as it goes over a wire."""
    return _encoder.encode((type(message).__name__, message))


def decode_message(content: bytes) -> Message:
    """Return the message of these bytes; `ProtocolError` if they are none."""
    try:
        name, body = _outer.decode(content)
        decoder = _decoders.get(name)
        if decoder is None:
            raise ProtocolError(f"{name[:80]!r} is no message of metadata servers")
        message: Message = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError, OverflowError) as error:
        raise ProtocolError(f"these bytes are no message of metadata servers: {error}") from None
    return message
