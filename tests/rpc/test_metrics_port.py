"""The port for Prometheus: it tells metrics, and nothing else."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebla.errors import StoreError, Unavailable
from ebla.rpc.metrics_port import ADDRESS_FILE, MetricsPort


class Told:
    def __init__(self) -> None:
        self.error: Exception | None = None

    def __call__(self) -> str:
        if self.error is not None:
            raise self.error
        return "ebla_info 1\n"


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def port(told: Told, tmp_path: Path) -> Iterator[MetricsPort]:
    port = MetricsPort("127.0.0.1", 0, told, tmp_path)
    yield port
    port.close()


def asked(port: MetricsPort, path: str, verb: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(port.address, timeout=20)
    connection.request(verb, path)
    reply = connection.getresponse()
    found = reply.status, reply.headers.get("Content-Type", ""), reply.read().decode()
    connection.close()
    return found


def test_metrics_are_told_as_prometheus_wants_them(port: MetricsPort) -> None:
    assert asked(port, "/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", "ebla_info 1\n")
    assert asked(port, "/metrics", "HEAD")[::2] == (200, "")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../etc/passwd", "/metricsx"])
def test_no_other_path_is_answered(port: MetricsPort, path: str) -> None:
    assert asked(port, path)[0] == 404


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_is_done_there(port: MetricsPort, verb: str) -> None:
    assert asked(port, "/metrics", verb)[0] == 501


def test_an_error_tells_no_traceback(port: MetricsPort, told: Told) -> None:
    told.error = StoreError("the disk is full")
    assert asked(port, "/metrics")[::2] == (503, "the disk is full\n")
    told.error = ZeroDivisionError("a secret")
    assert asked(port, "/metrics")[::2] == (500, "see the log of the process\n")


def test_somebody_who_connects_and_says_nothing_keeps_nobody_waiting(port: MetricsPort) -> None:
    host, _, number = port.address.partition(":")
    with socket.create_connection((host, int(number))):
        assert asked(port, "/metrics")[0] == 200


def test_the_address_is_in_a_file_while_it_is_open(told: Told, tmp_path: Path) -> None:
    port = MetricsPort("127.0.0.1", 0, told, tmp_path)
    assert (tmp_path / ADDRESS_FILE).read_text() == f"{port.address}\n"
    port.close()
    assert not (tmp_path / ADDRESS_FILE).exists()


def test_a_port_that_is_taken_is_told(port: MetricsPort, told: Told) -> None:
    with pytest.raises(Unavailable, match="--metrics-port"):
        MetricsPort("127.0.0.1", int(port.address.rpartition(":")[2]), told)
