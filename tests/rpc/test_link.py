"""A connection ends before its process does."""

from __future__ import annotations

import threading

from ebla.rpc.channel import Channel
from ebla.rpc.link import leave_all
from ebla.rpc.server import RpcServer
from tests.rpc.echo import METHODS, Echo, EchoService


def test_no_thread_reads_from_a_server_once_all_were_left() -> None:
    with RpcServer(METHODS, EchoService().handlers()) as server:
        channel = Channel(METHODS, server.address)
        channel.call(Echo(b"x"), timeout_seconds=5)
        assert [thread for thread in threading.enumerate() if thread.name == f"ebla-rpc {server.address}"]
        leave_all()
        assert not [thread for thread in threading.enumerate() if thread.name == f"ebla-rpc {server.address}"]
