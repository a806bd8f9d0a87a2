"""Calls over a real connection, in one process or to another one that is killed or stopped."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from ebla.errors import (
    Closed,
    Conflict,
    Corruption,
    IncompatibleVersion,
    OutcomeUnknown,
    ProtocolError,
    RequestError,
    TimedOut,
    Unavailable,
)
from ebla.rpc.channel import Channel
from ebla.rpc.frames import Call, Hello, decode_frame, encode_frame
from ebla.rpc.limits import Limits
from ebla.rpc.methods import Asks, Method, Methods, encode_body
from ebla.rpc.server import RpcServer
from tests.rpc.echo import METHODS, Add, Echo, EchoService, Fail, Nap, Sleep, Think, serve

LONG = 30.0  # longer than any test takes: a call that runs into it has failed


@pytest.fixture
def service() -> Any:
    return EchoService()


@pytest.fixture
def server(service: EchoService) -> Any:
    with serve(service) as server:
        yield server
        service.go_on.set()


@pytest.fixture
def channel(server: RpcServer) -> Any:
    with Channel(METHODS, server.address) as channel:
        yield channel


@contextmanager
def other_process() -> Any:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rpc.echo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait()


def test_a_request_is_answered_with_its_reply(channel: Channel) -> None:
    assert channel.call(Echo(b"hello"), timeout_seconds=LONG) == b"hello"


def test_messages_of_many_windows_pass_both_ways(channel: Channel) -> None:
    data = os.urandom(5_000_000)
    assert channel.call(Echo(data), timeout_seconds=LONG) == data


def test_many_threads_share_a_stream_and_each_gets_its_own_answer(channel: Channel, server: RpcServer) -> None:
    with ThreadPoolExecutor(16) as pool:
        sent = [str(i).encode() * (1 + i % 7 * 20_000) for i in range(400)]
        assert list(pool.map(lambda data: channel.call(Echo(data), timeout_seconds=LONG), sent)) == sent
    assert server.streams_open == 1


def test_a_slow_request_holds_up_no_quick_one(channel: Channel, service: EchoService) -> None:
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(channel.call, Sleep(LONG), timeout_seconds=LONG) for _ in range(4)]
        for _ in slow:
            assert service.begun.acquire(timeout=LONG)
        assert channel.call(Echo(b"quick"), timeout_seconds=LONG) == b"quick"
        assert not any(one.done() for one in slow)
        service.go_on.set()
        assert all(one.result() for one in slow)


def test_a_quick_handler_that_would_wait_is_carried_out_by_the_pool(channel: Channel) -> None:
    assert channel.call(Think(), timeout_seconds=LONG).startswith("ebla-rpc_")


def test_after_a_quick_request_that_was_slow_the_pool_takes_the_next_ones(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebla.rpc.server_stream.UNHURRIED_SECONDS", 600.0)
    assert not channel.call(Nap(), timeout_seconds=LONG).startswith("ebla-rpc_"), "the thread that reads"
    channel.call(Nap(0.05), timeout_seconds=LONG)
    assert channel.call(Nap(), timeout_seconds=LONG).startswith("ebla-rpc_")


def test_an_error_of_the_tree_arrives_as_the_same_class_and_sentence(channel: Channel) -> None:
    with pytest.raises(Conflict, match=r"^the row changed$"):
        channel.call(Fail("conflict"), timeout_seconds=LONG)
    with pytest.raises(Corruption) as found:
        channel.call(Fail("corruption"), timeout_seconds=LONG)
    assert (found.value.file, found.value.reason, found.value.offset) == ("f.parquet", "bad sum", 17)


def test_an_unforeseen_error_arrives_without_its_traceback(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OutcomeUnknown, match="incident") as found:
        channel.call(Fail("otherwise"), timeout_seconds=LONG)
    assert "secret" not in str(found.value)
    assert "a secret of the server" in caplog.text  # the server's log has it


def test_a_repeatable_call_times_out_and_the_stream_goes_on(channel: Channel, service: EchoService) -> None:
    with pytest.raises(TimedOut, match="did not answer within"):
        channel.call(Sleep(LONG), timeout_seconds=0.05)
    assert channel.call(Echo(b"x"), timeout_seconds=LONG) == b"x"


def test_a_call_that_changes_something_and_times_out_has_an_unknown_outcome(
    channel: Channel, service: EchoService
) -> None:
    with pytest.raises(OutcomeUnknown, match="Add may or may not have happened"):
        channel.call(Add(1, pause_seconds=0.5), timeout_seconds=0.05)


def test_a_call_whose_time_is_over_before_its_turn_is_never_begun(service: EchoService) -> None:
    with serve(service, threads_max=1) as server, Channel(METHODS, server.address) as channel:
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(channel.call, Sleep(LONG), timeout_seconds=LONG)
            assert service.begun.acquire(timeout=LONG)
            with pytest.raises(OutcomeUnknown):
                channel.call(Add(5), timeout_seconds=0.05)
            service.go_on.set()
            slow.result()
        assert channel.call(Add(1), timeout_seconds=LONG) == 1


def test_a_request_that_is_too_large_is_refused_and_the_stream_goes_on(service: EchoService) -> None:
    limits = Limits(message_bytes_max=1_000_000)
    with serve(service, limits=limits) as server, Channel(METHODS, server.address, limits=limits) as channel:
        with pytest.raises(ProtocolError, match="send at most 1000000"):
            channel.call(Echo(bytes(2_000_000)), timeout_seconds=LONG)
        assert channel.call(Echo(b"x"), timeout_seconds=LONG) == b"x"


def test_a_client_that_ignores_the_bound_on_sizes_is_cut_off(service: EchoService) -> None:
    with serve(service, limits=Limits(message_bytes_max=1_000_000)) as server:
        with Channel(METHODS, server.address) as careless, pytest.raises(ProtocolError, match="too large"):
            careless.call(Echo(bytes(2_000_000)), timeout_seconds=LONG)
        with Channel(METHODS, server.address) as channel:
            assert channel.call(Echo(b"x"), timeout_seconds=LONG) == b"x"


def test_a_client_of_another_version_is_told_both_versions(server: RpcServer) -> None:
    wanted = pytest.raises(IncompatibleVersion, match=r"version 1 .* versions 99 to 99")
    with Channel(METHODS, server.address, version=99) as channel, wanted:
        channel.call(Echo(b""), timeout_seconds=LONG)


def test_a_server_of_another_version_refuses_as_well(service: EchoService) -> None:
    wanted = pytest.raises(IncompatibleVersion, match="version 2")
    with serve(service, version=2) as server, Channel(METHODS, server.address) as channel, wanted:
        channel.call(Echo(b""), timeout_seconds=LONG)


class Later(Echo, frozen=True):
    """A request that only a later version has; and one with a field that only a later version has."""

    more: int = 1


def test_a_request_that_the_server_does_not_know_is_refused_by_name(server: RpcServer) -> None:
    wanted = pytest.raises(ProtocolError, match="'Later' is no request")
    with Channel(Methods([Method(Later)]), server.address) as channel, wanted:
        channel.call(Later(b""), timeout_seconds=LONG)


def test_a_request_with_an_unknown_field_is_refused_by_the_name_of_the_field(server: RpcServer) -> None:
    methods = Methods([Method(type("Echo", (Later,), {"__orig_bases__": (Asks[bytes],)}, frozen=True))])
    with Channel(methods, server.address) as channel, pytest.raises(ProtocolError, match="unknown field `more`"):
        channel.call(next(iter(methods)).request(b""), timeout_seconds=LONG)  # type: ignore[call-arg]


def test_a_request_outside_the_channels_methods_is_not_sent(channel: Channel) -> None:
    with pytest.raises(RequestError, match="Later is not among"):
        channel.call(Later(b""), timeout_seconds=LONG)


@contextmanager
def raw_stream(address: str, command: bytes) -> Any:
    client = flight.connect(f"grpc://{address}")
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(command))
    try:
        yield writer, reader
    finally:
        reader.cancel()
        client.close()


def answer(reader: Any) -> Any:
    return decode_frame(memoryview(reader.read_chunk().app_metadata))


HELLO = encode_frame(Hello(1, 1, "raw", "test"))


@pytest.mark.parametrize("command", [b"", b"\xc1", b"GET / HTTP/1.1", HELLO[:-3], bytes(10_000), b"\x91" * 2_000])
def test_a_greeting_that_is_none_is_refused_with_a_code(server: RpcServer, command: bytes) -> None:
    with raw_stream(server.address, command) as (_, reader):
        assert answer(reader).code == "protocol_error"
        with pytest.raises(StopIteration):
            reader.read_chunk()


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        os.urandom(64),
        b"\x91" * 5_000,
        bytes(1_000_000),
        encode_frame(Hello(1, 1, "again", "")),
        b"\x92\x05\xcd\xff\xff",  # acknowledges what was never sent
        b"\x92\x00\x01",
    ],
    ids=["no code of msgpack", "random", "nested", "long", "hello", "acknowledged", "short"],
)
def test_bytes_that_are_no_frame_end_the_stream_with_a_code(server: RpcServer, data: bytes) -> None:
    with raw_stream(server.address, HELLO) as (writer, reader):
        answer(reader)  # the welcome
        writer.write_metadata(pa.py_buffer(data))
        assert answer(reader).code == "protocol_error"
        with pytest.raises(StopIteration):
            reader.read_chunk()


def test_a_body_that_is_no_request_fails_the_call_and_not_the_stream(server: RpcServer) -> None:
    with raw_stream(server.address, HELLO) as (writer, reader):
        answer(reader)
        for number, body in enumerate([b"\xc1", b"\x90", encode_body({"data": 7})], start=1):
            call = encode_frame(Call(number, "Echo", 1_000, encode_body(Echo(b""))))
            writer.write_metadata(pa.py_buffer(call[: -len(encode_body(Echo(b"")))] + body))
            failure = answer(reader)
            if body == b"\xc1":
                assert failure.code == "protocol_error"
                return
            assert (failure.number, failure.code) == (number, "protocol_error")


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: list(client.do_action(flight.Action("x", b""))),
        lambda client: client.do_get(flight.Ticket(b"x")).read_all(),
        lambda client: client.get_flight_info(flight.FlightDescriptor.for_command(b"x")),
        lambda client: list(client.list_flights()),
        lambda client: list(client.list_actions()),
        lambda client: client.do_put(flight.FlightDescriptor.for_path("x"), pa.schema([]))[0].close(),
    ],
)
def test_other_verbs_of_flight_are_refused_without_a_traceback(server: RpcServer, ask: Any) -> None:
    client = flight.connect(f"grpc://{server.address}")
    with pytest.raises(flight.FlightServerError, match="nothing but its own protocol") as found:
        ask(client)
    assert "Traceback" not in str(found.value)
    client.close()


def test_too_many_calls_at_once_are_refused_and_nothing_happens(service: EchoService) -> None:
    limits = Limits(calls_max=2)
    with (
        serve(service, limits=limits) as server,
        Channel(METHODS, server.address, limits=limits) as channel,
        ThreadPoolExecutor(2) as pool,
    ):
        slow = [pool.submit(channel.call, Sleep(LONG), timeout_seconds=LONG) for _ in range(2)]
        for _ in slow:
            assert service.begun.acquire(timeout=LONG)
        with pytest.raises(Unavailable, match="2 calls"):
            channel.call(Add(1), timeout_seconds=LONG)
        service.go_on.set()
    assert service.total == 0


def test_more_streams_than_a_server_takes_are_refused(service: EchoService) -> None:
    with (
        serve(service, limits=Limits(streams_max=1)) as server,
        Channel(METHODS, server.address) as first,
        Channel(METHODS, server.address) as second,
    ):
        first.call(Echo(b""), timeout_seconds=LONG)
        with pytest.raises(Unavailable, match="connected already"):
            second.call(Echo(b""), timeout_seconds=LONG)


def test_nobody_at_the_address_is_unavailable(server: RpcServer) -> None:
    server.close()
    with (
        Channel(METHODS, server.address) as channel,
        pytest.raises(Unavailable, match=rf"^{server.address} cannot be reached: nobody answers there; is it up, and"),
    ):
        channel.call(Echo(b""), timeout_seconds=LONG)


def test_a_port_that_is_taken_is_told(server: RpcServer) -> None:
    with pytest.raises(Unavailable, match="choose another port"):
        serve(port=int(server.address.partition(":")[2]))


def test_a_server_that_leaves_answers_what_is_under_way_and_clients_come_to_the_next(service: EchoService) -> None:
    server = serve(service)
    port = int(server.address.partition(":")[2])
    with Channel(METHODS, server.address) as channel, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(channel.call, Sleep(LONG), timeout_seconds=LONG)
        assert service.begun.acquire(timeout=LONG)
        leaving = pool.submit(server.close)
        while channel._link.is_usable:  # until the goodbye is there
            time.sleep(0.001)
        service.go_on.set()
        assert slow.result().startswith("ebla-rpc_")
        leaving.result()
        with serve(service, port=port):
            assert channel.call(Echo(b"again"), timeout_seconds=LONG) == b"again"


def test_a_closed_channel_says_so(channel: Channel) -> None:
    channel.call(Echo(b""), timeout_seconds=LONG)
    channel.close()
    with pytest.raises(Closed):
        channel.call(Echo(b""), timeout_seconds=LONG)


def test_calls_to_a_server_that_is_killed_fail_at_once_by_what_is_known() -> None:
    with other_process() as (process, address), Channel(METHODS, address) as channel, ThreadPoolExecutor(2) as pool:
        channel.call(Echo(b""), timeout_seconds=LONG)
        repeatable = pool.submit(channel.call, Sleep(LONG), timeout_seconds=LONG)
        change = pool.submit(channel.call, Add(1, pause_seconds=LONG), timeout_seconds=LONG)
        while len(channel._link._waiting) < 2:
            time.sleep(0.001)
        process.kill()
        with pytest.raises(Unavailable):
            repeatable.result(timeout=LONG)
        with pytest.raises(OutcomeUnknown):
            change.result(timeout=LONG)
        with pytest.raises(Unavailable):
            channel.call(Add(1), timeout_seconds=LONG)  # nothing was sent, so it is known that nothing happened


def test_calls_to_a_server_that_is_stopped_end_at_their_deadline_however_much_is_sent() -> None:
    limits = Limits(ping_seconds=0.1, silence_seconds=0.5)
    with other_process() as (process, address), Channel(METHODS, address, limits=limits) as channel:
        channel.call(Echo(b""), timeout_seconds=LONG)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises((TimedOut, Unavailable)):
            channel.call(Echo(bytes(20_000_000)), timeout_seconds=0.3)
        with pytest.raises(Unavailable, match="silent"):
            channel.call(Sleep(LONG), timeout_seconds=LONG)
        process.send_signal(signal.SIGCONT)
        assert channel.call(Echo(b"back"), timeout_seconds=LONG) == b"back"


def test_a_server_leaves_also_when_a_client_is_stopped_in_the_middle(service: EchoService) -> None:
    server = serve(service)
    with raw_stream(server.address, HELLO):
        closing = threading.Thread(target=lambda: server.close(grace_seconds=0.2), daemon=True)
        closing.start()
        closing.join(LONG)
        assert not closing.is_alive()


def test_a_client_that_takes_no_answers_is_held_up_and_others_are_not(service: EchoService) -> None:
    limits = Limits(unfinished_bytes_max=2_000_000)
    body = encode_body(Echo(bytes(200_000)))
    with serve(service, limits=limits) as server, raw_stream(server.address, HELLO) as (writer, reader):
        answer(reader)
        for number in range(1, 6):  # a window's worth of requests; none of the answers is acknowledged
            writer.write_metadata(pa.py_buffer(encode_frame(Call(number, "Echo", 60_000, body))))
        with Channel(METHODS, server.address) as channel:
            assert channel.call(Echo(b"other"), timeout_seconds=LONG) == b"other"
        stream = next(iter(server._streams))
        while len(stream._begun):
            time.sleep(0.001)
        assert stream._stream._outbox._unacknowledged_bytes <= limits.window_bytes


def test_handlers_for_requests_that_are_no_methods_are_refused() -> None:
    with pytest.raises(ProtocolError, match="handlers for Later"):
        RpcServer(METHODS, {Later: lambda request, caller: None})
