"""Whoever serves is killed, stopped and started again, under a client that goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import ebla
from tests.support.served_store import ServedStore

SCHEMA = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"n": "int64"}, max_versions="all")])
TIMEOUT_SECONDS = 60.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    served = ServedStore(tmp_path)
    yield served
    served.close()


def test_puts_and_increments_under_way_at_a_kill_happen_once(served: ServedStore) -> None:
    with ebla.connect(served.address, timeout_seconds=TIMEOUT_SECONDS) as db:
        table = db.create_table("t", SCHEMA)
        began = threading.Semaphore(0)
        stop = threading.Event()
        done: dict[int, int] = dict.fromkeys(range(4), 0)
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                while not stop.is_set() or done[number] < 5:
                    table.put({"k": 1_000 * (number + 1) + done[number], "n": 1}, if_absent=True)
                    assert table.increment(number, "n") == done[number] + 1
                    done[number] += 1
                    began.release()
            except BaseException as error:
                failures.append(error)
                began.release()

        threads = [threading.Thread(target=work, args=(number,)) for number in done]
        for thread in threads:
            thread.start()
        for _ in range(2):
            for _ in range(20):
                assert began.acquire(timeout=TIMEOUT_SECONDS)
            served.kill()
            served.start()
        stop.set()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
        assert failures == []
        assert [table.get(number)["n"] for number in done] == list(done.values())
        counts = [table.count(1_000 * (number + 1), 1_000 * (number + 2)) for number in done]
        assert counts == list(done.values())
        versions = table.scan(1_000, versions=9).to_arrow().column("n")
        assert all(len(one) == 1 for one in versions.to_pylist()), "none was written twice"


def test_a_scan_goes_on_after_whoever_served_it_was_killed(served: ServedStore) -> None:
    with ebla.connect(served.address, timeout_seconds=TIMEOUT_SECONDS) as db:
        table = db.create_table("t", SCHEMA)
        table.put(pa.table({"k": range(200_000), "n": range(200_000)}))
        scan = table.scan()
        found: list[int] = []
        for number, batch in enumerate(scan.to_batches()):
            if number == 1:
                table.erase_range()
                served.kill()
                served.start()
            found += batch.column("k").to_pylist()
        assert found == list(range(200_000))


def test_a_request_to_a_stopped_server_ends_in_time_and_the_next_is_answered(served: ServedStore) -> None:
    with ebla.connect(served.address, timeout_seconds=TIMEOUT_SECONDS) as patient:
        patient.create_table("t", SCHEMA)
        with ebla.connect(served.address, timeout_seconds=0.5) as hasty:
            table = hasty.table("t")
            table.put({"k": 1, "n": 1})
            served.stop_for_a_while()
            with pytest.raises(ebla.OutcomeUnknown):
                table.put({"k": 2, "n": 1})
            with pytest.raises((ebla.TimedOut, ebla.Unavailable)):
                table.get(1)
            served.go_on()
        assert patient.table("t").get(1) == {"k": 1, "n": 1}


def test_every_server_down_is_told_and_all_is_there_when_it_returns(served: ServedStore) -> None:
    with ebla.connect(served.address, timeout_seconds=TIMEOUT_SECONDS) as patient:
        table = patient.create_table("t", SCHEMA)
        table.put({"k": 1, "n": 1})
        served.kill()
        with pytest.raises(ebla.Unavailable, match="cannot be reached"):
            ebla.connect(served.address, timeout_seconds=0.3)
        served.start()
        assert table.get(1) == {"k": 1, "n": 1}


def test_an_address_at_which_nobody_listens_is_told_and_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(
        ebla.Unavailable, match=rf"{address}, 127.0.0.1:1 cannot be reached: nobody listens there; is the cluster up"
    ):
        ebla.connect([address, "127.0.0.1:1"], timeout_seconds=3_600.0)
