"""Leases made of nodes, the same for every coordination service.

The node at the lease's path keeps who holds it, until when, and the epoch; it stays when the lease is released, so
that the epoch goes on growing.

    free --take (epoch + 1)--> held --renew--> held --release--> free
                                 `-- time passes --> expired --take (epoch + 1)--> held by the next

The end of a lease is written by a clock that all takers share: the time of day of the one host, or that of the service
itself where there are several hosts. The holder trusts only its own steady clock, read before the shared one, so that
it stops first. Should the shared clock jump, two may believe that they hold the lease; that is why there is an epoch,
to be checked where data is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from ebla.clock import Clock
from ebla.coordination.service import (
    CoordinationConflict,
    CoordinationService,
    InvalidNode,
    LeaseHeld,
    LeaseLost,
    NodeExists,
    NodeMissing,
    VersionConflict,
    check_path,
)
from ebla.errors import Corruption, OutcomeUnknown
from ebla.retry import RACES

__all__ = ["LeaseRecord", "NodeLease", "decode_lease", "encode_lease", "take_lease"]


class LeaseRecord(msgspec.Struct, frozen=True):
    """What the node of a lease holds; no owner means that it is free."""

    owner: str
    epoch: int
    expires_microseconds: int


_decoder = msgspec.json.Decoder(LeaseRecord)


def encode_lease(record: LeaseRecord) -> bytes:
    """Return the value of the node of a lease."""
    return msgspec.json.encode(record)


def decode_lease(path: str, value: bytes) -> LeaseRecord:
    """Return what the node of a lease holds; `Corruption` if it holds something else."""
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise Corruption(path, f"not the record of a lease: {error}") from error


def take_lease(
    service: CoordinationService,
    clock: Clock,
    path: str,
    owner: str,
    ttl_seconds: float,
    shared_microseconds: Callable[[], int] | None = None,
) -> NodeLease:
    """Take the lease at `path`, as `CoordinationService.lease` says.

    `shared_microseconds` reads the clock that all takers share; it is the time of day of `clock` if it is not
    given.
    """
    check_path(path)
    if not owner or ttl_seconds <= 0:
        raise InvalidNode(f"{path}: a lease needs an owner and a time longer than zero")
    shared = shared_microseconds or clock.microseconds
    unknown: OutcomeUnknown | None = None
    for _ in RACES:
        deadline = clock.monotonic_seconds() + ttl_seconds
        now = shared()
        node = service.read(path)
        former = LeaseRecord("", 0, 0) if node is None else decode_lease(path, node.value)
        if former.owner not in ("", owner) and now < former.expires_microseconds:
            raise LeaseHeld(path, former.owner)
        record = LeaseRecord(owner, former.epoch + 1, now + int(ttl_seconds * 1_000_000))
        value = encode_lease(record)
        try:
            version = service.put(path, value, None if node is None else node.version)
        except (NodeExists, NodeMissing, VersionConflict):
            continue  # somebody was faster; if that was a renewal or another taker, the next look says so
        except OutcomeUnknown as error:
            unknown = error
            continue  # the owner may be us by now: taking it again settles it
        return NodeLease(service, clock, shared, path, record, version, ttl_seconds, deadline)
    if unknown is not None:
        raise OutcomeUnknown(f"{path}: it is not known whether the lease was taken: ask again") from unknown
    raise LeaseHeld(path, "others who keep taking it")


class NodeLease:
    """A lease kept in a node."""

    def __init__(
        self,
        service: CoordinationService,
        clock: Clock,
        shared_microseconds: Callable[[], int],
        path: str,
        record: LeaseRecord,
        version: int,
        ttl_seconds: float,
        deadline_seconds: float,
    ) -> None:
        self._service = service
        self._clock = clock
        self._shared_microseconds = shared_microseconds
        self._path = path
        self._ttl_seconds = ttl_seconds
        self._lock = threading.Lock()
        # Guarded by _lock; `is_held` reads without it, each of them being replaced as a whole.
        self._record = record
        self._version = version
        self._deadline_seconds = deadline_seconds
        self._lost = False

    @property
    def path(self) -> str:
        """Where the lease is."""
        return self._path

    @property
    def epoch(self) -> int:
        """The number of this holding of the lease."""
        return self._record.epoch

    @property
    def is_held(self) -> bool:
        """Whether it has not run out by the steady clock."""
        if not self._lost and self._clock.monotonic_seconds() >= self._deadline_seconds:
            self._lost = True
        return not self._lost

    @property
    def left_seconds(self) -> float:
        """How long it is still held, by the steady clock; 0 once it is lost."""
        return max(0.0, self._deadline_seconds - self._clock.monotonic_seconds()) if self.is_held else 0.0

    def renew(self) -> None:
        """Hold it for another ttl from now."""
        with self._lock:
            unknown: OutcomeUnknown | None = None
            for _ in RACES:
                if not self.is_held:
                    raise LeaseLost(self._path, "the lease ran out before it was renewed: take it again")
                deadline = self._clock.monotonic_seconds() + self._ttl_seconds
                expires = self._shared_microseconds() + int(self._ttl_seconds * 1_000_000)
                try:
                    self._write(LeaseRecord(self._record.owner, self._record.epoch, expires))
                except OutcomeUnknown as error:
                    unknown = error
                    continue
                self._deadline_seconds = deadline
                return
            raise OutcomeUnknown(f"{self._path}: it is not known whether the lease was renewed") from unknown

    def release(self) -> None:
        """Give it up. If the outcome stays unknown the lease runs out by itself."""
        with self._lock:
            if self._lost:
                return
            try:
                self._write(LeaseRecord("", self._record.epoch, 0))
            except (LeaseLost, OutcomeUnknown):
                pass
            finally:
                self._lost = True

    def _write(self, record: LeaseRecord) -> None:
        """Set the node to `record`; `LeaseLost` if it is no longer this holding's."""
        value = encode_lease(record)
        try:
            self._version = self._service.compare_and_set(self._path, value, self._version)
        except CoordinationConflict:
            # An earlier write of ours, whose outcome was unknown, may have moved the version on.
            node = self._service.read(self._path)
            there = None if node is None else decode_lease(self._path, node.value)
            if node is None or there is None or (there.owner, there.epoch) != (self._record.owner, self.epoch):
                self._lost = True
                raise LeaseLost(self._path, "somebody else holds the lease, or has held it since") from None
            try:
                self._version = self._service.compare_and_set(self._path, value, node.version)
            except CoordinationConflict:
                self._lost = True
                raise LeaseLost(self._path, "somebody else took the lease") from None
        self._record = record if record.owner else self._record
