"""A small service for tests of the wire, in this process or (`python -m tests.rpc.echo`) in another."""

import sys
import threading
import time
from typing import Any

import msgspec

from ebla.errors import Conflict, Corruption
from ebla.rpc.caller import Caller, NotQuick
from ebla.rpc.limits import DEFAULT, Limits
from ebla.rpc.methods import Asks, Method, Methods
from ebla.rpc.server import RpcServer
from ebla.rpc.server_stream import Handler


class Echo(msgspec.Struct, Asks[bytes], frozen=True, forbid_unknown_fields=True):
    data: bytes


class Add(msgspec.Struct, Asks[int], frozen=True):
    """Not repeatable: each call counts."""

    number: int
    pause_seconds: float = 0.0


class Sleep(msgspec.Struct, Asks[str], frozen=True):
    seconds: float


class Fail(msgspec.Struct, Asks[None], frozen=True):
    how: str


class Think(msgspec.Struct, Asks[str], frozen=True):
    """Quick only by half: the handler says so."""


class Nap(msgspec.Struct, Asks[str], frozen=True):
    """Quick, if it does not sleep."""

    seconds: float = 0.0


METHODS = Methods(
    [
        Method(Nap, is_repeatable=True, is_quick=True),
        Method(Echo, is_repeatable=True, is_quick=True),
        Method(Add),
        Method(Sleep, is_repeatable=True),
        Method(Fail),
        Method(Think, is_repeatable=True, is_quick=True),
    ]
)


class EchoService:
    def __init__(self) -> None:
        self.total = 0
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()

    def handlers(self) -> dict[type, Handler]:
        return {Echo: self.echo, Add: self.add, Sleep: self.sleep, Fail: self.fail, Think: self.think, Nap: self.nap}

    def echo(self, request: Echo, caller: Caller) -> bytes:
        return request.data

    def add(self, request: Add, caller: Caller) -> int:
        self.total += request.number
        self.begun.release()
        time.sleep(request.pause_seconds)
        return self.total

    def sleep(self, request: Sleep, caller: Caller) -> str:
        self.begun.release()
        self.go_on.wait(request.seconds)
        return threading.current_thread().name

    def fail(self, request: Fail, caller: Caller) -> None:
        match request.how:
            case "conflict":
                raise Conflict("the row changed")
            case "corruption":
                raise Corruption("f.parquet", "bad sum", 17)
        raise ZeroDivisionError("a secret of the server")

    def nap(self, request: Nap, caller: Caller) -> str:
        time.sleep(request.seconds)
        return threading.current_thread().name

    def think(self, request: Think, caller: Caller) -> str:
        if caller.is_hurried:
            raise NotQuick
        return threading.current_thread().name


def serve(service: EchoService | None = None, *, limits: Limits = DEFAULT, **options: Any) -> RpcServer:
    return RpcServer(METHODS, (service or EchoService()).handlers(), name="echo", limits=limits, **options)


if __name__ == "__main__":
    server = serve()
    print(server.address, flush=True)
    sys.stdin.read()
    server.close()
