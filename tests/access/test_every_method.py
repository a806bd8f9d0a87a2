"""Every request that processes of a cluster answer: with no credential, a wrong, an expired, an insufficient one."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

import ebla
from ebla.access.credentials import Credentials
from ebla.access.rights import ServersOnly
from ebla.access.tokens import Claim, signed
from ebla.errors import Denied, EblaError
from ebla.model.schema_change import Alteration
from ebla.rpc.channel import Channel
from ebla.rpc.methods import Asks, Method, Methods
from ebla.rpc.server import RpcServer
from ebla.rpc.serving.service_rights import SERVICE_NEEDS
from ebla.rpc.wire.forms import _kinds, encode_request
from ebla.rpc.wire.messages import SERVICE_METHODS, CarryOut
from ebla.service.requests import AlterTable, CreateTable
from tests.access.guarded import Guarded, every_method, requests_of

METHODS = every_method()


def served(guarded: Guarded) -> list[tuple[str, str, Method]]:
    """Return every method that a real process answers: the process, its address, the method."""
    processes = (("master", guarded.master._server), ("server", guarded.server.server._rpc))
    return [
        (who, rpc.address, method)
        for who, rpc in processes
        for method in rpc._methods
        if method.request in rpc._handlers
    ]


def answer_of(address: str, method: Method, request: object, token: str | None) -> EblaError | None:
    credentials = Credentials() if token is None else Credentials(lambda: token)
    with Channel(Methods([method]), address, credentials=credentials) as channel:
        try:
            channel.call(request, timeout_seconds=20)
        except EblaError as error:
            return error
    return None


def test_every_method_of_the_package_says_which_right_it_needs_and_is_tried_here(guarded: Guarded) -> None:
    assert [name for name, method in METHODS.items() if method.needs is None] == []
    samples = requests_of(guarded.table)
    assert {method.request for method in METHODS.values()} == set(samples)
    # Whoever declares a method serves it, or is about to; nothing else is served.
    assert {method.name for _, _, method in served(guarded)} <= set(METHODS)
    assert {"master", "server"} == {who for who, _, _ in served(guarded)}


def test_every_request_to_a_table_or_a_store_says_which_right_it_needs() -> None:
    assert set(SERVICE_NEEDS) == set(_kinds().values())


@pytest.mark.parametrize("credential", ["none", "wrong", "of another cluster", "expired", "expired of a server"])
def test_no_method_is_answered_to_somebody_who_is_not_known(guarded: Guarded, credential: str) -> None:
    past = time.time() - 1
    token = {
        "none": lambda: None,
        "wrong": lambda: guarded.admin[:-1] + ("A" if guarded.admin[-1] != "A" else "B"),
        "of another cluster": lambda: signed(Claim("server", "somebody", time.time() + 60), b"x" * 32),
        "expired": lambda: guarded.user("late", past, **{"*": "admin"}),
        "expired of a server": lambda: guarded.server_token("somebody", seconds=-1),
    }[credential]()
    samples = requests_of(guarded.table)
    let_in = [
        f"{who}: {method.name}: {found!r}"
        for who, address, method in served(guarded)
        if not isinstance(found := answer_of(address, method, samples[method.request], token), Denied)
    ]
    assert let_in == []


def test_no_method_is_answered_to_a_user_without_the_right(guarded: Guarded) -> None:
    nobody = guarded.user("nobody")
    reader = guarded.user("reader", words="read")
    foreign = guarded.user("foreign", other="admin")
    samples = requests_of(guarded.table)
    let_in = []
    for who, address, method in served(guarded):
        request = samples[method.request]
        needs = method.needs(request)
        # Whoever has no right at all; and where more is needed than any right, one who has too little, or elsewhere.
        tried = [nobody]
        if isinstance(needs[0], ServersOnly):
            tried.append(guarded.admin)
        elif not needs[0].is_anywhere:
            tried.append(foreign)
            if needs[0].right.name != "READ" or needs[0].name is needs[0].table is None:
                tried.append(reader)
        for token in tried:
            found = answer_of(address, method, request, token)
            if not isinstance(found, Denied):
                let_in.append(f"{who}: {method.name}: {found!r}")
    assert let_in == []


@pytest.mark.parametrize("name", sorted(_kinds()))
def test_no_request_to_a_table_or_a_store_is_carried_out_without_the_right(guarded: Guarded, name: str) -> None:
    needs = SERVICE_NEEDS[_kinds()[name]]
    body = body_of(_kinds()[name], guarded.table)
    table = guarded.table if not callable(needs) else None
    request = CarryOut(("lane", 9), table, name, body)
    carry_out = next(method for method in SERVICE_METHODS if method.request is CarryOut)
    nobody, foreign = guarded.user("nobody"), guarded.user("foreign", other="admin")
    for address in (guarded.master.address, guarded.server.address):
        assert isinstance(answer_of(address, carry_out, request, None), Denied)
        assert isinstance(answer_of(address, carry_out, request, nobody), Denied)
        if name in ANYBODY:
            continue
        # Of another table, this one may ask for everything.
        assert isinstance(answer_of(address, carry_out, request, foreign), Denied)


# Whoever may read any table may ask for these: they tell nothing of tables.
ANYBODY = {"Sync", "HoldNewest", "LetGo", "ListHeld", "PassTxn", "HoldForJob"}


SCHEMA = ebla.Schema(key={"word": "string"}, columns={"n": "int64"}).number()


def body_of(kind: type, table_id: str) -> msgspec.Raw:
    """Return a request of a kind, about the table `words` wherever it names one."""
    if kind is CreateTable:
        return encode_request(CreateTable("words", SCHEMA))
    if kind is AlterTable:
        return encode_request(AlterTable("words", Alteration(drop_columns=("n",))))
    values = {str: "words", int: 1, float: 1.0, bool: False, bytes: b""}
    fields = {one.name: values.get(one.type, ()) for one in msgspec.structs.fields(kind) if one.required}
    if "table_id" in fields:
        fields["table_id"] = table_id
    return msgspec.Raw(msgspec.msgpack.encode(fields))


def test_a_new_method_without_a_right_is_answered_to_nobody(guarded: Guarded) -> None:
    class Ask(msgspec.Struct, Asks[int], frozen=True):
        pass

    methods = Methods([Method(Ask)])
    guard = guarded.master._server._guard
    with RpcServer(methods, {Ask: lambda request, caller: 1}, guard=guard) as rpc:
        found = answer_of(rpc.address, next(iter(methods)), Ask(), guarded.admin)
    assert isinstance(found, Denied)
    assert "does not say which right it needs" in str(found)


def test_the_same_requests_are_answered_to_whoever_has_the_right(guarded: Guarded) -> None:
    samples = requests_of(guarded.table)
    servers: Callable[[str], str] = guarded.server_token
    denied = [
        f"{who}: {method.name}: {found}"
        for who, address, method in served(guarded)
        if isinstance(
            found := answer_of(
                address,
                method,
                samples[method.request],
                servers("somebody")
                if isinstance(method.needs(samples[method.request])[0], ServersOnly)
                else guarded.admin,
            ),
            Denied,
        )
    ]
    assert denied == []


def test_a_server_that_speaks_for_another_is_denied(guarded: Guarded) -> None:
    samples = requests_of(guarded.table)
    said = [
        (who, address, method)
        for who, address, method in served(guarded)
        if any(isinstance(need, ServersOnly) and need.sender for need in method.needs(samples[method.request]))
    ]
    named = {method.name for _, _, method in said}
    assert named >= {"SendHeartbeat", "Tell", "AskMetadata"}
    # A request that tells who sends it has that compared.
    assert named >= {
        name for name, method in METHODS.items() if "sender" in getattr(method.request, "__struct_fields__", ())
    }
    for _, address, method in said:
        found = answer_of(address, method, samples[method.request], guarded.server_token("another"))
        assert isinstance(found, Denied)
        assert "somebody else" in str(found)
