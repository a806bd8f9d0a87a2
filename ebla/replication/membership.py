"""Which replicas are in sync: a leader puts them in, and takes them out.

    learner --level: on disk up to the commit index--> asked for --METADATA--> in sync
    in sync --nothing acknowledged for a while, and `needed` remain without it--> asked for --METADATA--> learner
    in sync, dead, and just `needed` are left --another is level--> both at once, a swap

One change is under way at a time. **Until METADATA shows what became of it, an index commits only with all of both
sets**, the one before and the one asked for: either may be the one that the next leader is chosen from.
"""

from __future__ import annotations

from collections.abc import Iterable

from ebla.metadata.values.tablet_metadata import Replica
from ebla.replication.changes import ChangeInSync
from ebla.replication.configuration import Configuration
from ebla.replication.progress import Progress
from ebla.replication.settings import ReplicationSettings

__all__ = ["Membership"]


class Membership:
    """The in-sync set of a tablet, and the change of it that is under way."""

    __slots__ = ("_asked", "_settings", "configuration", "pending", "to_go")

    def __init__(self, configuration: Configuration, settings: ReplicationSettings) -> None:
        self.configuration = configuration
        self._settings = settings
        self.pending: ChangeInSync | None = None
        self._asked: tuple[Replica, ...] = ()  # the in-sync set that was asked for
        self.to_go: set[Replica] = set()  # a master wants these out

    def learn(self, configuration: Configuration) -> None:
        """Take in a newer configuration. A number above the one that was named tells what became of the change."""
        self.configuration = configuration
        if self.pending is not None and configuration.number > self.pending.number:
            self.pending = None
            self._asked = ()

    def commit_index(self, own: int, progress: dict[str, Progress], leader: str) -> int:
        """Return up to which index every replica that counts has everything on disk; 0 if too few count."""
        configuration = self.configuration
        sets = [configuration.in_sync]
        if self.pending is not None:
            sets.append(self._asked)
        found = own
        for members in sets:
            if len(members) < configuration.needed:
                return 0
            found = min(found, self._all_have(members, own, progress, leader))
        return found

    def _all_have(self, members: Iterable[Replica], own: int, progress: dict[str, Progress], leader: str) -> int:
        return min(own if member.server == leader else progress[member.server].acked_as(member) for member in members)

    def ask(self, change: ChangeInSync) -> ChangeInSync:
        """Begin a change; from now on both sets count."""
        self.pending = change
        out, put = change.out, change.put
        kept = [
            member
            for member in self.configuration.in_sync
            if (out is None or member.server != out.server) and (put is None or member.server != put.server)
        ]
        self._asked = (*kept, put) if put is not None else tuple(kept)
        return change

    def choose(self, progress: dict[str, Progress], level_index: int, now: float, epoch: int) -> ChangeInSync | None:
        """Return the change that should be asked for now, if any."""
        configuration = self.configuration
        level = self._level(progress, level_index, now)
        lagging = self._lagging(progress, now)
        can_take_out = self._can_take_out(configuration)
        put = level[0] if level else None
        out = lagging[0] if lagging else None
        if put is None and (out is None or not can_take_out):
            return None
        if put is not None and out is not None and not can_take_out and not self._is_new_log(put):
            return self._change(epoch, progress, put, out)
        if put is not None:
            return self._change(epoch, progress, put, None)
        return self._change(epoch, progress, None, out)

    def _can_take_out(self, configuration: Configuration) -> bool:
        return len(configuration.in_sync) - 1 >= configuration.needed

    def _is_new_log(self, put: Replica) -> bool:
        return any(member.server == put.server for member in self.configuration.in_sync)

    def _change(
        self, epoch: int, progress: dict[str, Progress], put: Replica | None, out: Replica | None
    ) -> ChangeInSync:
        configuration = self.configuration
        return ChangeInSync(
            configuration.tablet,
            epoch,
            configuration.number,
            put,
            progress[put.server].start if put is not None else 0,
            Replica(out.server, out.assignment_id) if out is not None else None,
        )

    def _level(self, progress: dict[str, Progress], level_index: int, now: float) -> list[Replica]:
        """Return members that are not in sync, or are so by another log than they have, and have what is committed."""
        found = []
        for member in self.configuration.replicas:
            one = progress.get(member.server)
            if one is None or not one.log_id or (member.is_in_sync and one.log_id == member.log_id):
                continue
            if not member.is_in_sync and Replica(member.server, member.assignment_id) in self.to_go:
                continue
            if self._is_level(one, level_index) and now - one.heard_at < self._settings.replica_timeout_seconds:
                found.append(Replica(member.server, member.assignment_id, one.log_id, True))
        return found

    def _is_level(self, one: Progress, level_index: int) -> bool:
        return one.acked >= level_index

    def _lagging(self, progress: dict[str, Progress], now: float) -> list[Replica]:
        """Return in-sync members that do not answer, answer from another log, or are to go."""
        found = []
        for member in self.configuration.in_sync:
            one = progress.get(member.server)
            if one is None:
                continue  # the leader itself
            is_late = now - one.heard_at > self._settings.replica_timeout_seconds
            has_other_log = one.log_id not in ("", member.log_id)
            if is_late or has_other_log or Replica(member.server, member.assignment_id) in self.to_go:
                found.append(member)
        return found
