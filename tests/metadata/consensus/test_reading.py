"""What a metadata server answers can go over a wire: words instead of exceptions, and records instead of tables."""

from __future__ import annotations

import itertools
from typing import get_type_hints

import msgspec
import pytest

from ebla.errors import Conflict, Corruption, EblaError, SchemaError, UnknownTable
from ebla.metadata.consensus.peer import MetadataPeer
from ebla.metadata.consensus.protocol import AskConfig, AskSwitch, ChangeRequest, ReadRequest, Reply, Save, Send
from ebla.metadata.consensus.reading import metadata_after
from ebla.metadata.consensus.refusals import error_of, refusal_of
from ebla.metadata.values.changes import RecordJob, RequirementFailed, RequireSchema
from ebla.metadata.values.table_config import TableConfig
from ebla.metadata.values.table_metadata import InvalidMetadata, initial_metadata
from ebla.metadata.values.transaction_file import decode, make_record
from tests.metadata.metadata_world import SCHEMA


class OnePeer:
    """A single server of a table, with everything done at once."""

    def __init__(self) -> None:
        first = initial_metadata("t", SCHEMA, ["x"]).with_txnid("first", 1)
        self.config, self.version = TableConfig("t", "running", "first", ("s",)), 1
        numbers = itertools.count()
        record = make_record(None, first, (), snapshot=True)
        self.peer = MetadataPeer("s", "t", [record], new_id=lambda: f"x{next(numbers)}")
        self.replies: list[Reply] = []
        self.do(self.peer.config_changed())

    def do(self, actions: list[object]) -> None:
        for action in actions:
            match action:
                case Send("", Reply() as reply):
                    self.replies.append(reply)
                case Save(txnid, _):
                    self.do(self.peer.saved(txnid))
                case AskConfig(tag):
                    self.do(self.peer.config_read(tag, self.config, self.version))
                case AskSwitch(tag, config, _):
                    self.config, self.version = config, self.version + 1
                    self.do(self.peer.switch_done(tag, self.version))

    def ask(self, message: ChangeRequest | ReadRequest) -> Reply:
        self.do(self.peer.receive("", message))
        reply = self.replies.pop()
        return msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Reply)


def test_no_field_of_a_reply_is_an_exception_or_a_table() -> None:
    for kind in get_type_hints(Reply).values():
        assert "Exception" not in str(kind)
        assert "TableMetadata" not in str(kind)


def test_a_change_is_answered_with_the_records_since_what_the_requester_had_seen() -> None:
    server = OnePeer()
    known = metadata_after("t", server.ask(ReadRequest("r0")).contents, None)
    for number in range(3):
        server.ask(ChangeRequest(f"c{number}", "first", (RecordJob(f"job{number}", number + 1),)))
    reply = server.ask(ChangeRequest("mine", known.txnid, (RecordJob("mine", 9),)))
    assert reply.outcome == "committed"
    assert len(reply.contents) == 4, "those of others, which came between, and its own"
    after = metadata_after("t", reply.contents, known)
    assert [job for job, _ in after.jobs] == ["job0", "job1", "job2", "mine"]
    assert after.txnid == reply.txnid


def test_a_repeated_request_is_answered_the_same() -> None:
    server = OnePeer()
    asked = ChangeRequest("mine", "first", (RecordJob("mine", 9),))
    first = server.ask(asked)
    assert server.ask(asked) == first


def test_a_read_brings_only_what_is_new() -> None:
    server = OnePeer()
    whole = server.ask(ReadRequest("r1"))
    server.ask(ChangeRequest("c", "first", (RecordJob("job", 1),)))
    assert len(whole.contents) == 1
    newer = server.ask(ReadRequest("r2", known="first"))
    assert [decode(content, "").txnid for content in newer.contents] == [newer.txnid]
    assert server.ask(ReadRequest("r3", known=newer.txnid)).contents == ()


def test_a_refusal_says_which_requirement_failed() -> None:
    reply = OnePeer().ask(ChangeRequest("c", "first", (RequireSchema(7),)))
    assert reply.outcome == "refused"
    error = error_of(reply.refusal, reply.reason)
    assert isinstance(error, RequirementFailed)
    assert error.code == "schema_version"
    assert "version" in str(error)


@pytest.mark.parametrize(
    "error", [RequirementFailed("busy", "why"), InvalidMetadata("why"), SchemaError("why"), UnknownTable("why")]
)
def test_errors_become_words_and_errors_again(error: EblaError) -> None:
    again = error_of(refusal_of(error), "why")
    assert (type(again), str(again)) == (type(error), "why")
    assert type(error_of("of a later version", "why")) is Conflict


def test_records_that_do_not_fit_are_not_taken() -> None:
    server = OnePeer()
    whole = server.ask(ReadRequest("r"))
    change = server.ask(ChangeRequest("c", "first", (RecordJob("job", 1),)))
    for contents in ((), change.contents, (whole.contents[0][:-1],)):
        with pytest.raises(Corruption):
            metadata_after("t", contents, None)
    with pytest.raises(Corruption):
        metadata_after("another", whole.contents, None)
