"""Thousands of schedules of the METADATA protocol, and proof that the rules that they check can be broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ebla.metadata.consensus.catching_up import CatchingUp
from ebla.metadata.consensus.coordinator import Coordinator
from ebla.metadata.consensus.history import History
from ebla.metadata.consensus.keeping import Keeping
from ebla.metadata.consensus.membership import Membership
from ebla.metadata.consensus.peer import MetadataPeer
from ebla.metadata.consensus.protocol import Reply, Stored
from tests.metadata.consensus.simulation import Violation, simulate

SCHEDULES = 10_000
PARTS = 8
# Every planted mistake is found within so many schedules.
SCHEDULES_TO_FIND = 2_000


def simulate_all(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_rule(part: int) -> None:
    """A failure names its seed: `python tests/metadata/consensus/simulation.py SEED` replays it."""
    simulate_all(range(part, SCHEDULES, PARTS))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_no_schedule_of_many_breaks_a_rule(part: int) -> None:
    simulate_all(range(1_000_000 + part * 20_000, 1_000_000 + (part + 1) * 20_000))


def test_the_schedules_reach_what_they_are_meant_to(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: dict[str, int] = {}

    def count(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: object, **options: object) -> object:
            reached[name] = reached.get(name, 0) + 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    for name in ("_rebase", "_settle", "_stay_unsure", "_give_up", "_turn_away"):
        count(Coordinator, name)
    count(CatchingUp, "fetched")
    count(Membership, "_switch")
    count(MetadataPeer, "damaged")
    outcomes: dict[str, int] = {}
    batches = 0
    for seed in range(400):
        simulation = simulate(seed)
        batches += len(simulation.done) > len(simulation.committed) - 1
        for request in simulation.requests.values():
            outcomes[str(request.outcome)] = outcomes.get(str(request.outcome), 0) + 1
    assert min(reached.values()) >= 10, reached
    assert len(reached) == 8, reached
    assert min(outcomes.get(name, 0) for name in ("committed", "refused", "given up")) >= 10, outcomes
    assert batches >= 10


# --- mistakes, planted ---------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def switch_before_a_majority(patch: pytest.MonkeyPatch) -> None:
    def too_early(self: Coordinator, proposal: Any) -> bool:
        return (
            self._peer.server in proposal.stored and len(proposal.stored) >= len(proposal.config.metadata_servers) // 2
        )

    patch.setattr(Coordinator, "_is_stored", too_early)


def say_stored_before_it_is_saved(patch: pytest.MonkeyPatch) -> None:
    original = Keeping.save

    def hasty(self: Keeping, record: Any, outcome: Any, waiting: str | None, content: bytes | None = None) -> None:
        original(self, record, outcome, waiting, content)
        if waiting is not None and waiting != self._peer.server:
            self._peer.send(waiting, Stored(record.txnid))

    patch.setattr(Keeping, "save", hasty)


def store_without_what_it_builds_on(patch: pytest.MonkeyPatch) -> None:
    original = Keeping.store

    def careless(self: Keeping, sender: str, message: Any) -> None:
        history = self._peer.history
        if message.base not in history and message.txnid not in history:
            self._peer.send(sender, Stored(message.txnid))
        else:
            original(self, sender, message)

    patch.setattr(Keeping, "store", careless)


def drop_when_the_outcome_is_unknown(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: Coordinator, proposal: Any) -> None:
        original(self, proposal)
        then = self._peer._switches[self._peer._tag]

        def taking_unknown_for_no(outcome: str, version: int) -> None:
            then("refused" if outcome == "unknown" else outcome, version)

        self._peer._switches[self._peer._tag] = taking_unknown_for_no

    original = Coordinator._switch
    patch.setattr(Coordinator, "_switch", give_up)


def do_not_look_among_the_ancestors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_settle", lambda self, proposal: self._rebase(proposal))


def look_at_the_current_one_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "is_ancestor", lambda self, metadata, current: metadata.txnid == current)


def serve_while_behind(patch: pytest.MonkeyPatch) -> None:
    original = MetadataPeer._on_read

    def hasty(self: MetadataPeer, sender: str, message: Any) -> None:
        if self.current is not None:
            txnid = self.current.txnid
            self.send(sender, Reply(message.request_id, "read", txnid, contents=self.contents_since(txnid, None)))
        else:
            original(self, sender, message)

    _handle(patch, "_on_read", hasty)


def do_a_repeated_request_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "find_request", lambda self, current, base, request: None)


def refuse_on_old_news(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_is_certain", lambda self, waiting: True)


def leave_without_asking(patch: pytest.MonkeyPatch) -> None:
    def leave(self: Membership, rest: tuple[str, ...]) -> None:
        if rest:
            self._switch(rest)

    patch.setattr(Membership, "_leave", leave)


def join_without_fetching(patch: pytest.MonkeyPatch) -> None:
    original = Membership.go_on

    def go_on(self: Membership) -> None:
        if self.wish == "joining" and not self._is_switching and not self._is_paused and self._peer.config:
            if not self._peer.is_member:
                self._switch((*self._peer.config.metadata_servers, self._peer.server))
        else:
            original(self)

    patch.setattr(Membership, "go_on", go_on)


def switch_at_whatever_version(patch: pytest.MonkeyPatch) -> None:
    original = MetadataPeer.ask_switch

    def blind(self: MetadataPeer, config: Any, version: int, then: Any) -> None:
        original(self, config, self.version, then)

    patch.setattr(MetadataPeer, "ask_switch", blind)


def prune_what_is_beyond_a_gap(patch: pytest.MonkeyPatch) -> None:
    def prunable(self: History, current: Any) -> list[str]:
        kept = {record.txnid for record in self.walk(current.txnid)}
        return [t for t, r in self._records.items() if t not in kept and r.sequence <= current.sequence]

    patch.setattr(History, "prunable", prunable)


def prune_by_one_snapshot_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ebla.metadata.consensus.history.SNAPSHOTS_KEPT", 1)


def _handle(patch: pytest.MonkeyPatch, name: str, handler: Callable[..., None]) -> None:
    from ebla.metadata.consensus import peer

    original = getattr(MetadataPeer, name)
    (message,) = [kind for kind, found in peer._HANDLERS.items() if found is original]
    patch.setitem(peer._HANDLERS, message, handler)


MISTAKES: list[Plant] = [
    switch_before_a_majority,
    say_stored_before_it_is_saved,
    store_without_what_it_builds_on,
    drop_when_the_outcome_is_unknown,
    do_not_look_among_the_ancestors,
    look_at_the_current_one_only,
    serve_while_behind,
    do_a_repeated_request_again,
    refuse_on_old_news,
    leave_without_asking,
    join_without_fetching,
    switch_at_whatever_version,
    prune_what_is_beyond_a_gap,
    prune_by_one_snapshot_only,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_found(mistake: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with pytest.raises(Violation):
        simulate_all(range(SCHEDULES_TO_FIND))
