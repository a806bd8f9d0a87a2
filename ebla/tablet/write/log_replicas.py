"""What the log asks where other servers keep tablets, too: a Protocol. The embedded store has nobody to ask.

drain   parts of tablets with replicas --append--> numbered, pushed to the replicas, records for the own log
        commits of other tablets, and all records, also of tablets that are followed: one write, one sync
        --synced--> acknowledged to whoever leads; of what is led here, committed if every in-sync replica has it
group   shown, and told to whoever waits, when all its marks are committed, in the order of txns
held    a tablet whose marks are not committed for long: others go on without it, and it is read as it was before
lost    a mark whose epoch is over here: another leader decides what becomes of it, and who waits is told just that
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ebla.storage.log.log_entry import LogPart
from ebla.storage.log.replica_entry import ReplicaEntry

__all__ = ["LogReplicas", "Mark"]


class Mark(Protocol):
    """Something that was logged of one tablet, and is to be on other disks, too."""

    @property
    def tablet(self) -> tuple[str, str]:
        """The table and the tablet."""

    @property
    def is_committed(self) -> bool:
        """Whether every replica that counts has it on disk."""

    @property
    def is_lost(self) -> bool:
        """Whether it was not committed while the tablet was led here, and so never will be by this server."""


class LogReplicas(Protocol):
    """The replicas of one server. Safe to use from several threads; takes no lock of the engine."""

    def is_led(self, part: LogPart) -> bool:
        """Tell whether a part is of a tablet that has replicas and is led here."""

    def append(self, parts: Sequence[LogPart]) -> Sequence[Mark]:
        """Push parts to their replicas, and have them among the records for the own log.

        What is of a tablet that is led here no more goes nowhere: its mark is lost.
        """

    @property
    def has_records(self) -> bool:
        """Whether something is to be written to the own log."""

    def take_records(self) -> tuple[ReplicaEntry, int] | None:
        """Return what is to be written to the own log, and the number to be told to `synced`."""

    def synced(self, number: int) -> None:
        """What was taken with this number, and before, is on disk."""
