"""Requests for bulk commits in the coordination service: every sender gets its answer, whoever dies on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from ebla.clock import ManualClock
from ebla.coordination.memory import Fault, MemoryCoordination, MemoryStore
from ebla.errors import (
    Closed,
    Conflict,
    Corruption,
    EblaError,
    OutcomeUnknown,
    StoreError,
    TimedOut,
    UnknownTable,
)
from ebla.metadata.values.changes import RequirementFailed
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.service.job_orders import BulkCommit, BulkFragment, BulkResult
from ebla.tablet.jobs import bulk_mail, mail_sender
from ebla.tablet.jobs.bulk_mail import Mailbox
from ebla.tablet.jobs.mail_sender import order_by_mail
from tests.support.simulated_files import SimulatedCrash, SimulatedFiles

COMMIT = BulkCommit("job", "t", 1, (BulkFragment(1, FragmentRef("f", 1, 1, b"a", b"b", 0, 0, 1), (2, 3)),))
BOUND_SECONDS = 30.0


class World:
    """One coordination service; an owner that notes what it is asked to commit, and senders."""

    def __init__(self) -> None:
        self.nodes = MemoryStore()
        self.files = SimulatedFiles()
        self.clock = ManualClock()
        self.asked: list[BulkCommit] = []
        self.applied: dict[str, int] = {}
        self.error: BaseException | None = None
        self.boxes: list[Mailbox] = []

    def client(self, faults: Callable[[str, tuple[str, ...]], Fault | None] | None = None) -> MemoryCoordination:
        return MemoryCoordination(self.nodes, self.clock, faults=faults)

    def commit(self, commit: BulkCommit) -> BulkResult:
        self.asked.append(commit)
        if self.error is not None:
            raise self.error
        repeated = commit.job in self.applied
        return BulkResult(self.applied.setdefault(commit.job, 100 + len(self.applied)), repeated)

    def owner(self, faults: Callable[[str, tuple[str, ...]], Fault | None] | None = None) -> Mailbox:
        box = Mailbox(self.client(faults), self.files, self.clock, self.commit)
        self.boxes.append(box)
        box.open()
        return box

    def send(
        self,
        commit: BulkCommit = COMMIT,
        timeout_seconds: float = 60.0,
        on_silence: Callable[[], None] = lambda: None,
        client: MemoryCoordination | None = None,
    ) -> BulkResult:
        return order_by_mail(
            client or self.client(),
            self.files,
            self.clock,
            commit,
            timeout_seconds=timeout_seconds,
            on_silence=on_silence,
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(mail_sender, "PATIENCE_SECONDS", 0.05)
    made = World()
    yield made
    for box in made.boxes:
        box.close()


def test_the_owner_answers_and_nothing_stays_behind(world: World) -> None:
    world.owner()
    assert world.send() == BulkResult(100, repeated=False)
    assert world.send() == BulkResult(100, repeated=True)
    assert world.asked == [COMMIT, COMMIT]
    assert world.nodes.nodes == {}


def test_a_request_left_before_is_found_by_the_next_owner(world: World) -> None:
    results: list[BulkResult] = []
    sender = threading.Thread(target=lambda: results.append(world.send(on_silence=lambda: silent.set())))
    silent = threading.Event()
    sender.start()
    assert silent.wait(BOUND_SECONDS)
    assert "bulk/job" in world.nodes.nodes
    world.owner()
    sender.join(BOUND_SECONDS)
    assert results == [BulkResult(100, repeated=False)]


def test_a_sender_that_finds_no_owner_may_become_one(world: World) -> None:
    assert world.send(on_silence=lambda: None if world.boxes else (world.owner(), None)[1]) == BulkResult(100, False)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (UnknownTable("there is none"), UnknownTable),
        (RequirementFailed("schema_version", "another version"), Conflict),
        (OutcomeUnknown("who knows"), OutcomeUnknown),
        (Corruption("f", "torn", 3), StoreError),
        (ZeroDivisionError("a bug"), StoreError),
    ],
)
def test_errors_come_through_with_their_kind_and_message(
    world: World, raised: Exception, told: type[EblaError]
) -> None:
    world.owner()
    world.error = raised
    with pytest.raises(told) as caught:
        world.send()
    assert str(raised) in str(caught.value)
    assert isinstance(caught.value, EblaError)
    assert world.nodes.nodes == {}
    world.error = None
    assert not world.send().repeated


def test_large_requests_go_by_a_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_sender, "VALUE_BYTES_MAX", 100)
    world.owner()
    assert world.send() == BulkResult(100, repeated=False)
    assert world.asked == [COMMIT]
    assert world.files.list("bulk") == []
    assert any(operation.path.startswith("bulk/job-") for operation in world.files.record())


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_sender_that_cannot_look_any_more_does_not_take_its_request_for_undone(
    world: World, comes_back: bool
) -> None:
    sent = threading.Event()
    silences: list[int] = []

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        if name == "Create":
            sent.set()
        is_away = sent.is_set() and not (comes_back and len(silences) > 2)
        return Fault.FAIL_BEFORE if name == "read" and is_away else None

    def silence() -> None:
        silences.append(1)
        world.clock.advance(1)
        if len(silences) == 1:
            world.owner()

    if comes_back:
        assert world.send(on_silence=silence, client=world.client(faults)) == BulkResult(100, repeated=False)
    else:
        with pytest.raises(OutcomeUnknown, match="under the same job id"):
            world.send(timeout_seconds=3, on_silence=silence, client=world.client(faults))
        assert world.asked == [COMMIT], "it was carried out"
    assert world.send() == BulkResult(100, repeated=True)


def test_an_answer_that_is_too_large_is_refused_and_not_tried_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_mail, "ANSWER_BYTES_MAX", 10)
    world.owner()
    with pytest.raises(StoreError, match="too large"):
        world.send()
    assert world.asked == [COMMIT]


def test_a_damaged_file_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_sender, "VALUE_BYTES_MAX", 100)

    def damage() -> None:
        (info,) = world.files.list("bulk")
        world.files.put(info.path, world.files.read(info.path)[:-1] + b"?")
        world.owner()

    with pytest.raises(StoreError, match="checksum"):
        world.send(on_silence=lambda: None if world.boxes else damage())
    assert world.asked == []


def test_a_request_that_nobody_takes_is_taken_back(world: World) -> None:
    with pytest.raises(TimedOut, match="nothing was changed"):
        world.send(timeout_seconds=5, on_silence=lambda: world.clock.advance(3))
    assert world.nodes.nodes == {}
    world.owner()
    assert world.asked == []


def test_an_owner_that_dies_after_taking_leaves_the_outcome_unknown(world: World) -> None:
    world.error = Closed("the owner is going")
    world.owner()
    with pytest.raises(OutcomeUnknown, match="same job id"):
        world.send(timeout_seconds=5, on_silence=lambda: world.clock.advance(3))
    world.boxes.pop().close()
    world.error = None
    world.owner()  # which finds the request, and carries it out
    assert world.send() == BulkResult(100, repeated=True)


def test_the_next_owner_carries_out_what_a_dead_one_had_taken(world: World) -> None:
    world.error = Closed("the owner is going")
    world.owner()

    def take_over() -> None:
        if len(world.boxes) == 1 and world.asked:
            world.error = None
            world.owner()

    assert world.send(on_silence=take_over) == BulkResult(100, repeated=False)
    assert len(world.asked) == 2


def test_two_senders_of_one_job_both_get_an_answer(world: World) -> None:
    results: list[BulkResult] = []
    senders = [threading.Thread(target=lambda: results.append(world.send())) for _ in range(4)]
    for sender in senders:
        sender.start()
    world.owner()
    for sender in senders:
        sender.join(BOUND_SECONDS)
    assert {result.txn for result in results} == {100}
    assert len(results) == 4
    assert sum(not result.repeated for result in results) == 1


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.DELAY])
def test_lost_messages_of_sender_and_owner_are_survived(world: World, fault: Fault) -> None:
    for loser in ("sender", "owner"):
        for number in range(3):
            count = iter(range(10_000))

            def faults(
                name: str, paths: tuple[str, ...], at: int = number, count: Iterator[int] = count
            ) -> Fault | None:
                return fault if name not in ("read", "list", "watch") and next(count) == at else None

            box = world.owner(faults if loser == "owner" else None)
            sender = world.client(faults if loser == "sender" else None)
            job = f"job-{loser}-{number}"
            result = world.send(
                BulkCommit(job, "t", 1, ()), client=sender, on_silence=lambda: world.nodes.deliver() and None
            )
            assert result.txn == world.applied[job]
            box.close()
    assert len(set(world.applied.values())) == 6


def test_the_answer_about_another_table_or_stream_is_no_answer(world: World) -> None:
    looks = iter(range(10_000))

    def die_at_second_look(name: str, paths: tuple[str, ...]) -> None:
        if name == "read" and next(looks):
            raise SimulatedCrash

    world.owner()
    with pytest.raises(SimulatedCrash):
        world.send(client=world.client(die_at_second_look))
    others = [BulkCommit("job", "another", 1, ()), BulkCommit("job", "t", 1, (), app="stream", batch=1)]
    for other in others:
        world.send(other)
    assert world.asked == [COMMIT, *others]


def test_a_store_that_cannot_be_opened_leaves_the_outcome_of_a_request_unknown(world: World) -> None:
    def cannot_open() -> None:
        raise StoreError("the disk is full")

    with pytest.raises(OutcomeUnknown, match="the disk is full"):
        world.send(on_silence=cannot_open)
    world.owner()  # which finds the request, and carries it out
    assert world.send() == BulkResult(100, repeated=True)


def test_answers_that_nobody_came_for_are_removed_after_a_while(world: World) -> None:
    looks = iter(range(10_000))

    def die_at_second_look(name: str, paths: tuple[str, ...]) -> None:
        if name == "read" and next(looks):
            raise SimulatedCrash

    world.owner()
    with pytest.raises(SimulatedCrash):
        world.send(client=world.client(die_at_second_look))
    world.send(BulkCommit("job2", "t", 1, ()))  # answered after the first one
    assert list(world.nodes.nodes) == ["bulk/job"]
    world.owner()
    assert list(world.nodes.nodes) == ["bulk/job"]
    world.clock.advance(7_200)
    world.owner()
    assert world.nodes.nodes == {}
