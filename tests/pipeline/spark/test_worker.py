"""Workers of Spark: a task acknowledges what it was told, and gets all of its numbers."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from ebla.pipeline.spark import worker
from ebla.pipeline.spark.worker import acknowledge, numbers_of, settle_worker, start_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

needs_linux = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="elsewhere there is nothing to set")


def _is_quick(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


@needs_linux
def test_every_connection_is_told_to_acknowledge_at_once_and_stays_as_it_was() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as asked,
        server.accept()[0] as answered,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    ):
        for connection in (asked, answered):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            assert not _is_quick(connection)
        asked.setblocking(False)
        open_before = set(os.listdir("/proc/self/fd"))
        acknowledge()
        assert _is_quick(asked)
        assert _is_quick(answered)
        assert (os.get_blocking(asked.fileno()), os.get_blocking(answered.fileno())) == (False, True)
        assert set(os.listdir("/proc/self/fd")) == open_before


def test_a_task_gets_all_numbers_and_settles_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(worker, "acknowledge", lambda: done.append("acknowledged"))
    monkeypatch.setattr(worker, "settle_worker", lambda: done.append("settled"))
    for number in numbers_of(pa.record_batch({"id": [n, n + 1]}) for n in (0, 2)):
        done.append(number)
    assert done == ["acknowledged", 0, 1, 2, 3, "settled"]


def test_a_worker_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(worker, "_settled", set())
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(1))
    settle_worker()
    settle_worker()
    assert frozen == [1]


def test_python_is_started_beside_the_caller_once_for_all_sessions(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_started", set())
    started = start_workers(spark)
    assert started is not None
    started.join()
    assert start_workers(spark) is None
    assert start_workers(spark.newSession()) is None
