"""What a cluster did between two looks at its metrics."""

from __future__ import annotations

import pytest

from ebla.cli import main
from ebla.local_cluster.activity import Reading, activity, read_all
from ebla.rpc.call_counts import CallCounts
from ebla.rpc.metrics_port import MetricsPort
from ebla.service.prometheus import parsed

INFO = 'ebla_info{role="tablet-server",uuid="7c9e6679-7425"} 1\n'


def reading(at_seconds: float, counts: CallCounts, text: str = "") -> Reading:
    return Reading("127.0.0.1:9100", at_seconds, parsed(INFO + text + "\n".join(counts.lines(1))))


def test_rates_are_those_between_the_looks() -> None:
    counts = CallCounts()
    counts.note("GetRow", 0.5, 1, 1, is_failed=True)
    before = reading(10.0, counts, "ebla_commits_total 100\n")
    for _ in range(10):
        counts.note("GetRow", 0.001, 512, 1_024, is_failed=False)
    counts.note("WriteRows", 0.3, 0, 0, is_failed=True)
    counts.note("NextEvents", 20.0, 0, 0, is_failed=False)
    after = reading(12.0, counts, "ebla_commits_total 150\nebla_memory_bytes 1048576\n")
    found = activity([before], [after])
    (row,) = found.processes
    assert (row["process"], row["uuid"]) == ("tablet-server", "7c9e6679")
    assert (row["requests/s"], row["failed/s"], row["slow/s"]) == (6.0, 0.5, 0.5)
    assert (row["in KiB/s"], row["out KiB/s"], row["commits/s"], row["memory MiB"]) == (2.5, 5.0, 25.0, 1.0)
    assert [(one["method"], one["requests/s"], one["slow/s"], one["mean ms"]) for one in found.methods] == [
        ("GetRow", 5.0, 0.0, 1.0),
        ("NextEvents", 0.5, 0.0, 20_000.0),
        ("WriteRows", 0.5, 0.5, 300.0),
    ]


def test_a_process_that_was_started_again_counts_from_nothing() -> None:
    counts, fresh = CallCounts(), CallCounts()
    for _ in range(5):
        counts.note("GetRow", 0.001, 1, 1, is_failed=False)
    fresh.note("GetRow", 0.001, 1, 1, is_failed=False)
    (row,) = activity([reading(0.0, counts)], [reading(1.0, fresh)]).processes
    assert row["requests/s"] == 1.0


def test_one_that_does_not_answer_says_so() -> None:
    away = read_all(["127.0.0.1:1"])
    assert activity(away, away).processes[0]["process"] == "does not answer"


def test_tables_are_summed_over_servers() -> None:
    text = 'ebla_table_tablets{table="t"} 2\nebla_table_fragment_bytes{table="t",group="a"} 1048576\n'
    readings = [reading(1.0, CallCounts(), text)] * 2
    assert activity(readings, readings).tables == [
        {"table": "t", "tablets": 4, "memory MiB": 0.0, "files": 0, "files MiB": 2.0}
    ]


def test_top_shows_it_once_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    port = MetricsPort("127.0.0.1", 0, lambda: INFO)
    try:
        with pytest.raises(SystemExit) as left:
            main(["top", "--at", port.address, "--once", "--seconds", "0.05"])
    finally:
        port.close()
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert "7c9e6679" in told
    assert "\x1b" not in told


@pytest.mark.parametrize("arguments", [[], ["--at", "nowhere"], ["--at", "127.0.0.1:1", "--data", "x"]])
def test_top_refuses_what_cannot_be_meant(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["top", "--once", *arguments])
    assert left.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
