"""Calls that are counted, as Prometheus reads them."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ebla.errors import Conflict
from ebla.rpc.call_counts import CallCounts
from ebla.rpc.channel import Channel
from ebla.service.prometheus import family, parsed
from tests.rpc.echo import METHODS, Echo, Fail, serve


def test_calls_are_a_histogram_by_method() -> None:
    counts = CallCounts()
    for seconds in (0.0005, 0.05, 0.05, 30.0):
        counts.note("GetRow", seconds, 10, 100, is_failed=seconds > 1)
    told = {one.name: one for one in text_string_to_metric_families("\n".join(counts.lines(3)) + "\n")}
    assert told["ebla_rpc_seconds"].type == "histogram"
    samples = {(one.name, one.labels.get("le")): one.value for one in told["ebla_rpc_seconds"].samples}
    assert samples["ebla_rpc_seconds_bucket", "0.001"] == 1
    assert samples["ebla_rpc_seconds_bucket", "0.1"] == 3
    assert samples["ebla_rpc_seconds_bucket", "+Inf"] == samples["ebla_rpc_seconds_count", None] == 4
    assert [one.value for one in told["ebla_rpc_failed"].samples] == [1]
    assert [one.value for one in told["ebla_rpc_told_bytes"].samples] == [400]
    assert [one.value for one in told["ebla_rpc_streams_open"].samples] == [3]


def test_a_server_counts_what_it_answers_and_what_it_refuses() -> None:
    with serve() as server, Channel(METHODS, server.address) as channel:
        channel.call(Echo(b"x" * 1_000), timeout_seconds=20)
        with pytest.raises(Conflict):
            channel.call(Fail("conflict"), timeout_seconds=20)
        found = parsed("\n".join(server.metric_lines()))
    assert found["ebla_rpc_seconds_count"] == {(("method", "Echo"),): 1, (("method", "Fail"),): 1}
    assert found["ebla_rpc_failed_total"] == {(("method", "Echo"),): 0, (("method", "Fail"),): 1}
    assert found["ebla_rpc_asked_bytes_total"][("method", "Echo"),] > 1_000
    assert found["ebla_rpc_streams_open"] == {(): 1}


def test_what_is_written_is_read_again_whatever_names_tables_have() -> None:
    names = ['a"b', "a\\b", "a\nb", "a{b}", "ü"]
    text = "\n".join(family("table_tablets", "Tablets.", (({"table": name, "group": "g"}, 2.5) for name in names)))
    assert parsed(text) == {"ebla_table_tablets": {(("table", name), ("group", "g")): 2.5 for name in names}}
    assert parsed("nonsense\nebla_x y\n") == {}
