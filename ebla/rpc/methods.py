"""Which requests can be sent, by name, each with the type of its reply: what both ends must agree on.

A request is a `msgspec` struct that says what it asks for: ``class Heartbeat(msgspec.Struct, Asks[HeartbeatReply])``.
Its name on the wire is the name of the class. What comes in is decoded as that type and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

from ebla.access.rights import Needs
from ebla.errors import EblaError, ProtocolError, RequestError
from ebla.model.schema import decode_hook, encode_hook
from ebla.rpc.wire.values import decode_extension

__all__ = ["Asks", "Codec", "Method", "Methods", "decoded", "decoder_of", "encode_body"]

Reply = TypeVar("Reply")


class Asks(Generic[Reply]):
    """A request that is answered with a `Reply`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Method:
    """A request that can be sent.

    `is_repeatable`: carrying it out twice is the same as once, so that a call whose connection broke failed with
    `Unavailable`, not with `OutcomeUnknown`, and may be sent again. `is_quick`: it is answered without waiting for
    disks, locks or others, so the thread that reads the stream carries it out itself, which spares a change of threads.
    `needs`: the rights that a request needs; a server with a guard answers none that does not say.
    """

    request: type[Asks[Any]]
    is_repeatable: bool = False
    is_quick: bool = False
    needs: Needs | None = None

    @property
    def name(self) -> str:
        """The name on the wire."""
        return self.request.__name__

    @property
    def reply(self) -> Any:
        """The type of the reply."""
        for base in getattr(self.request, "__orig_bases__", ()):
            if get_origin(base) is not None and issubclass(get_origin(base), Asks):
                return get_args(base)[0]
        raise TypeError(f"{self.request.__name__} does not say what it asks for: it needs Asks[...] among its bases")


class Codec:
    """How the request and the reply of one method become bytes, and become values again."""

    __slots__ = ("_replies", "_requests", "method")

    def __init__(self, method: Method) -> None:
        self.method = method
        self._requests = decoder_of(method.request)
        self._replies = decoder_of(method.reply)

    def request(self, body: msgspec.Raw) -> Any:
        """Return the request; `ProtocolError` if these bytes are none."""
        return self._decoded(self._requests, body, "request")

    def reply(self, body: msgspec.Raw) -> Any:
        """Return the reply; `ProtocolError` if these bytes are none."""
        return self._decoded(self._replies, body, "reply")

    def _decoded(self, decoder: msgspec.msgpack.Decoder[Any], body: msgspec.Raw, what: str) -> Any:
        return decoded(decoder, body, f"a {what} of {self.method.name}")


def decoder_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return what reads values of a type, with the values of rows and the types of Arrow in them."""
    return msgspec.msgpack.Decoder(kind, dec_hook=decode_hook, ext_hook=decode_extension)


def decoded(decoder: msgspec.msgpack.Decoder[Any], body: msgspec.Raw, what: str) -> Any:
    """Return the value that these bytes are; `ProtocolError` if they are none."""
    try:
        return decoder.decode(body)
    except EblaError:
        raise
    except Exception as error:  # whatever readers of extensions make of bytes that are wrong is the sender's mistake
        raise ProtocolError(f"{what} does not have its form: {error}") from None


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)


def encode_body(value: object) -> msgspec.Raw:
    """Return a request or a reply as it is on the wire."""
    return msgspec.Raw(_encoder.encode(value))


class Methods:
    """A set of methods. Sets that share no name can be joined with `|`."""

    def __init__(self, methods: Iterable[Method]) -> None:
        self._by_name: dict[str, Codec] = {}
        self._by_type: dict[type, Codec] = {}
        for method in methods:
            if method.name in self._by_name:
                raise RequestError(f"two requests have the name {method.name}: names on the wire are unique")
            self._by_name[method.name] = self._by_type[method.request] = Codec(method)

    def __iter__(self) -> Iterator[Method]:
        return (codec.method for codec in self._by_name.values())

    def __or__(self, other: Methods) -> Methods:
        return Methods([*self, *other])

    def named(self, name: str) -> Codec | None:
        """Return the method of that name."""
        return self._by_name.get(name)

    def of(self, request: object) -> Codec:
        """Return the method that a request belongs to."""
        codec = self._by_type.get(type(request))
        if codec is None:
            raise RequestError(f"{type(request).__name__} is not among the requests that this channel sends")
        return codec
