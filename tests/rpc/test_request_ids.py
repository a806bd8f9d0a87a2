"""A request has one id, which the logs of both ends name; as text, or as lines of JSON."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from ebla.cli.shared.log_options import LogFormat, show, shown_only_inside
from ebla.errors import EblaError, TimedOut
from ebla.rpc.channel import Channel
from ebla.rpc.request_ids import current_request
from tests.rpc.echo import METHODS, Echo, EchoService, Fail, Sleep, serve


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Any:
    """What is in the log, as lines of JSON, of what is done inside."""

    def told(form: LogFormat = LogFormat.json) -> list[Any]:
        written = capsys.readouterr().err.splitlines()
        return [json.loads(line) for line in written if line[:1] == "{"] if form is LogFormat.json else written

    with shown_only_inside():
        yield told


def test_the_logs_of_client_and_server_name_the_same_request(lines: Any) -> None:
    show(logging.DEBUG, LogFormat.json)
    with serve() as server, Channel(METHODS, server.address, client="ada") as channel:
        channel.call(Echo(b"x"), timeout_seconds=20)
        channel.call(Echo(b"y"), timeout_seconds=20)
    told = [line for line in lines() if "request" in line]
    of = {name: [line["request"] for line in told if line["logger"] == f"ebla.rpc.{name}"] for name in LOGGERS}
    assert of["link"] == of["server_stream"]
    assert len(set(of["link"])) == 2
    assert all(re.fullmatch(r"ada:\d+", one) for one in of["link"])
    assert {frozenset(line) for line in told} == {
        frozenset({"at", "level", "logger", "message", "pid", "thread", "request"})
    }


LOGGERS = ("link", "server_stream")


def test_calls_over_different_connections_have_different_numbers(lines: Any) -> None:
    show(logging.DEBUG, LogFormat.json)
    with serve() as one, serve() as two:
        for address in (one.address, two.address):
            with Channel(METHODS, address, client="ada") as channel:
                channel.call(Echo(b"x"), timeout_seconds=20)
    told = [line["request"] for line in lines() if line["logger"] == "ebla.rpc.link" and "request" in line]
    assert len(set(told)) == 2


def test_a_fault_of_the_server_is_in_its_log_with_the_request_and_the_exception(lines: Any) -> None:
    show(logging.WARNING, LogFormat.json)
    with (
        serve() as server,
        Channel(METHODS, server.address, client="ada") as channel,
        pytest.raises(EblaError, match="incident"),
    ):
        channel.call(Fail("otherwise"), timeout_seconds=20)
    (line,) = [line for line in lines() if line["level"] == "error"]
    assert line["request"].startswith("ada:")
    assert "ZeroDivisionError" in line["exception"]


def test_a_call_that_was_given_up_is_in_the_log_of_the_client(lines: Any) -> None:
    show(logging.INFO, LogFormat.text)
    service = EchoService()
    with serve(service) as server, Channel(METHODS, server.address, client="ada") as channel:
        with pytest.raises(TimedOut):
            channel.call(Sleep(60), timeout_seconds=0.05)
        service.go_on.set()
    assert any(re.search(r"Sleep of .* did not answer .*\[request ada:\d+\]$", line) for line in lines(LogFormat.text))


def test_outside_of_requests_lines_name_none(lines: Any) -> None:
    show(logging.INFO, LogFormat.json)
    logging.getLogger("ebla.test").info("a %s\nof two lines", "message")
    (line,) = lines()
    assert "request" not in line
    assert line["message"] == "a message\nof two lines"
    assert current_request.get() == ""
