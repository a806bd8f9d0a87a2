"""Connections of which one end is gone, and the other was not told."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ebla.errors import EblaError, Unavailable
from ebla.rpc.channel import Channel
from ebla.rpc.limits import Limits
from tests.rpc.echo import METHODS, Echo, serve
from tests.support.proxy import Proxy

LIMITS = Limits(ping_seconds=0.05, silence_seconds=0.2, streams_max=1)


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.01)


def asked(channel: Channel) -> object:
    try:
        return channel.call(Echo(b"x"), timeout_seconds=20)
    except EblaError as error:
        return error


def test_a_server_gives_up_a_client_that_is_gone_and_lets_the_next_one_in() -> None:
    with serve(limits=LIMITS) as server:
        proxy = Proxy(int(server.address.rpartition(":")[2]))
        gone = Channel(METHODS, proxy.address, limits=LIMITS)
        try:
            assert asked(gone) == b"x"
            proxy.requests.close()
            proxy.replies.close()
            # Nobody has closed anything: to the server, the connection is as it was.
            wait_until(lambda: server.streams_open == 0)
            with Channel(METHODS, server.address, limits=LIMITS) as channel:
                assert channel.call(Echo(b"y"), timeout_seconds=20) == b"y"
        finally:
            gone.close()
            proxy.close()


def test_a_client_gives_up_a_server_that_is_gone_and_connects_again_when_it_is_back() -> None:
    with serve(limits=LIMITS) as server:
        proxy = Proxy(int(server.address.rpartition(":")[2]))
        try:
            with Channel(METHODS, proxy.address, limits=LIMITS) as channel:
                assert asked(channel) == b"x"
                proxy.requests.close()
                proxy.replies.close()
                with pytest.raises(Unavailable, match="silent"):
                    channel.call(Echo(b"y"), timeout_seconds=20)
                proxy.cut()
                proxy.requests.open()
                proxy.replies.open()
                wait_until(lambda: asked(channel) == b"x")
        finally:
            proxy.close()
