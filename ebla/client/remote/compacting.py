"""A compaction that a job carries out, of a table that several servers have: each is asked for its own tablets.

    PrepareCompaction   all flush; a group's history is kept as far back as any of them needs it
    BeginCompaction     all leave the files alone
    CompactCommit       each replaces what was merged of the tablets that it leads

What a server does not lead any more it refuses, by tablet, as it refuses what was changed: the job plans that anew.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ebla.client.remote.working import carried_out
from ebla.errors import EblaError, StaleRoute, UnknownTable
from ebla.rpc.channel import Channel
from ebla.rpc.methods import Asks
from ebla.rpc.wire.messages import Outcome
from ebla.service.job_orders import (
    BeginCompaction,
    CompactCommit,
    CompactionTerms,
    CompactResult,
    GroupTerms,
    PrepareCompaction,
)

if TYPE_CHECKING:
    from ebla.client.remote.remote_service import RemoteService
    from ebla.client.remote.remote_table import RemoteTable

__all__ = ["COMPACTING", "Compacting"]

Step: TypeAlias = PrepareCompaction | BeginCompaction | CompactCommit
COMPACTING = (PrepareCompaction, BeginCompaction, CompactCommit)

# What a server that leads a tablet no more would say of it.
MOVED = "stale_epoch"


class Compacting:
    """Asks the servers of a table to do their part in a compaction. Safe to use from several threads."""

    def __init__(self, service: RemoteService) -> None:
        self._service = service

    def carry_out(self, step: Step) -> Any:
        """Have all servers of the table do their part, and put their answers together."""
        table = self._service.table_by_id(step.table_id)
        if isinstance(step, CompactCommit):
            return self._committed(table, step)
        answers = table.ask_by_route(
            lambda route, left_seconds: self._service.together(
                [partial(self._ask, server, step) for server in route.distinct_servers]
            )
        )
        return _agreed(answers) if isinstance(step, PrepareCompaction) else answers[0]

    def _committed(self, table: RemoteTable, commit: CompactCommit) -> CompactResult:
        route = table.locate()
        places = {tablet.id: server for tablet, server in zip(route.location.tablets, route.servers, strict=True)}
        refused: dict[int, str] = {}
        by_server: dict[Channel, list[int]] = defaultdict(list)
        for number, one in enumerate(commit.replacements):
            server = places.get(one.tablet.tablet)
            if server is None:
                refused[number] = "unknown_tablet"
            else:
                by_server[server].append(number)
        calls = [partial(self._commit_at, server, commit, numbers) for server, numbers in by_server.items()]
        for told in self._service.together(calls) if calls else ():
            refused |= told
        return CompactResult(tuple(sorted(refused.items())))

    def _commit_at(self, server: Channel, commit: CompactCommit, numbers: list[int]) -> dict[int, str]:
        part = msgspec.structs.replace(commit, replacements=tuple(commit.replacements[number] for number in numbers))
        try:
            answer: CompactResult = self._ask(server, part)
        except (StaleRoute, UnknownTable):
            return dict.fromkeys(numbers, MOVED)
        return {numbers[at]: reason for at, reason in answer.refused}

    def _ask(self, server: Channel, step: Step) -> Any:
        def ask(request: Asks[Outcome], *, may_repeat: bool) -> Outcome:
            return self._service.ask_server(lambda: server, request, _give_up_on_stale, may_repeat=may_repeat)

        return carried_out(self._service.lanes, ask, None, step, None)


def _give_up_on_stale(error: EblaError, left_seconds: float) -> None:
    if isinstance(error, StaleRoute):
        raise error


def _agreed(answers: list[CompactionTerms]) -> CompactionTerms:
    """Return the terms that all servers agree to: nothing goes that one of them needs."""
    groups: dict[int, GroupTerms] = {}
    for answer in answers:
        for one in answer.groups:
            known = groups.get(one.group, one)
            groups[one.group] = GroupTerms(
                one.group, min(known.horizon, one.horizon), min(known.unflushed, one.unflushed)
            )
    return CompactionTerms(tuple(groups.values()), answers[0].strategy)
