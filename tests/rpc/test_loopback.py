"""Servers are reached from their own machine only, unless what they say is encrypted."""

from __future__ import annotations

import pytest

from ebla.errors import RequestError
from ebla.rpc.server import RpcServer
from tests.rpc.echo import METHODS


@pytest.mark.parametrize("host", ["10.0.0.7", "[2001:db8::1]", "example.org"])
def test_a_server_refuses_an_address_that_other_machines_reach(host: str) -> None:
    with pytest.raises(RequestError, match="nothing would be encrypted"):
        RpcServer(METHODS, {}, host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_listens_on_its_own_machine(host: str) -> None:
    with RpcServer(METHODS, {}, host=host) as server:
        assert server.address.startswith(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_a_server_has_one_address_by_which_others_find_it(host: str) -> None:
    with pytest.raises(RequestError, match="not on all"):
        RpcServer(METHODS, {}, host=host)
