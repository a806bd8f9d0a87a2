"""The life of a tablet on a server, as a state machine: state + event -> state + actions. No I/O, no time.

         load            config loaded       log replayed        config saved
    0 ----------> 1 -----------------> 2 ---------------> 3 ---------------> 4 <-----------.
    ^             |                    |                  |                  | fragments   | idle
    |             `------- failed -----+------------------'                  v loaded      |
    |<--------------------------------'                                      5 ------------'
    |                                                                        |
    |   final config saved          flushed                      unload      |
    `---------------------- 7 <---------------- 6 <--------------------------+-- (from 4, too)
                            |                   `---- failed ----> 4 <---- failed ---- 7
                            `---- load (after an outcome that is not known) ----> 1

    state                       reads      writes    (what is deferred waits for the next state, or for a failure)
    0 unknown                   refused    refused
    1 config loading            deferred   deferred
    2 log replaying             deferred   deferred  no write before the log is replayed: nothing comes out of order
    3 config saving             deferred   deferred
    4 fragments loading         deferred   served    a tablet nobody reads stays here: its fragments are loaded lazily
    5 active                    served     served
    6 read-only, flushing       served     refused
    7 final config saving       refused    refused

A tablet that is split or joined away ends at 0, from 4 or 5. Above the tablets, a **table** is unknown (0), its schema
is loading (1), or it is active (2); a tablet has a state other than 0 only while its table has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Literal, TypeAlias

__all__ = ["Action", "IllegalStep", "LifeEvent", "Step", "TableStage", "TabletStage", "Verdict", "admits", "step"]

Verdict: TypeAlias = Literal["serve", "defer", "refuse"]


class TabletStage(IntEnum):
    """What a server knows and does of a tablet."""

    UNKNOWN = 0
    CONFIG_LOADING = 1
    LOG_REPLAYING = 2
    CONFIG_SAVING = 3
    FRAGMENTS_LOADING = 4
    ACTIVE = 5
    READ_ONLY = 6
    FINAL_SAVING = 7


class TableStage(IntEnum):
    """What a server knows of a table."""

    UNKNOWN = 0
    SCHEMA_LOADING = 1
    ACTIVE = 2


class LifeEvent(Enum):
    """What happens to a tablet."""

    LOAD = "load"
    CONFIG_LOADED = "config loaded"
    LOG_REPLAYED = "log replayed"
    CONFIG_SAVED = "config saved"
    FRAGMENTS_LOADED = "fragments loaded"
    IDLE = "idle"
    UNLOAD = "unload"
    FLUSHED = "flushed"
    FINAL_SAVED = "final config saved"
    FAILED = "failed"
    RETIRED = "split or joined"


class Action(Enum):
    """What is to be done on the way into a state."""

    READ_CONFIG = "read and check METADATA"
    REPLAY_LOG = "replay the log"
    SAVE_CONFIG = "save that this server has the tablet"
    RELEASE_WRITES = "let deferred writes go on"
    RELEASE_READS = "let deferred reads go on"
    FAIL_REQUESTS = "fail deferred requests"
    DROP_FRAGMENTS = "let go of footers and blocks"
    FLUSH = "write what is in memory to fragments"
    SAVE_FINAL_CONFIG = "save that no server has the tablet"
    FORGET = "let go of everything"


class IllegalStep(AssertionError):
    """An event that cannot happen in a state: a mistake of ours."""


@dataclass(frozen=True, slots=True)
class Step:
    """The state after an event, and what has to be done."""

    state: TabletStage
    actions: tuple[Action, ...] = ()


_S, _E, _A = TabletStage, LifeEvent, Action
_STEPS: dict[tuple[TabletStage, LifeEvent], Step] = {
    (_S.UNKNOWN, _E.LOAD): Step(_S.CONFIG_LOADING, (_A.READ_CONFIG,)),
    (_S.CONFIG_LOADING, _E.CONFIG_LOADED): Step(_S.LOG_REPLAYING, (_A.REPLAY_LOG,)),
    (_S.LOG_REPLAYING, _E.LOG_REPLAYED): Step(_S.CONFIG_SAVING, (_A.SAVE_CONFIG,)),
    (_S.CONFIG_SAVING, _E.CONFIG_SAVED): Step(_S.FRAGMENTS_LOADING, (_A.RELEASE_WRITES,)),
    (_S.FRAGMENTS_LOADING, _E.FRAGMENTS_LOADED): Step(_S.ACTIVE, (_A.RELEASE_READS,)),
    (_S.ACTIVE, _E.IDLE): Step(_S.FRAGMENTS_LOADING, (_A.DROP_FRAGMENTS,)),
    (_S.FRAGMENTS_LOADING, _E.UNLOAD): Step(_S.READ_ONLY, (_A.FLUSH,)),
    (_S.ACTIVE, _E.UNLOAD): Step(_S.READ_ONLY, (_A.FLUSH,)),
    (_S.READ_ONLY, _E.FLUSHED): Step(_S.FINAL_SAVING, (_A.DROP_FRAGMENTS, _A.SAVE_FINAL_CONFIG)),
    (_S.FINAL_SAVING, _E.FINAL_SAVED): Step(_S.UNKNOWN, (_A.FORGET,)),
    # A load that fails leaves nothing behind. Fragments that cannot be loaded fail the reads that asked for them.
    (_S.CONFIG_LOADING, _E.FAILED): Step(_S.UNKNOWN, (_A.FAIL_REQUESTS, _A.FORGET)),
    (_S.LOG_REPLAYING, _E.FAILED): Step(_S.UNKNOWN, (_A.FAIL_REQUESTS, _A.FORGET)),
    (_S.CONFIG_SAVING, _E.FAILED): Step(_S.UNKNOWN, (_A.FAIL_REQUESTS, _A.FORGET)),
    (_S.FRAGMENTS_LOADING, _E.FAILED): Step(_S.FRAGMENTS_LOADING, (_A.FAIL_REQUESTS,)),
    # An unload that fails leaves the tablet served. If it may have happened, it stays where it is until it is loaded.
    (_S.READ_ONLY, _E.FAILED): Step(_S.FRAGMENTS_LOADING, (_A.RELEASE_WRITES,)),
    (_S.FINAL_SAVING, _E.FAILED): Step(_S.FRAGMENTS_LOADING, (_A.RELEASE_WRITES,)),
    (_S.FINAL_SAVING, _E.LOAD): Step(_S.CONFIG_LOADING, (_A.READ_CONFIG,)),
    (_S.FRAGMENTS_LOADING, _E.RETIRED): Step(_S.UNKNOWN, (_A.FORGET,)),
    (_S.ACTIVE, _E.RETIRED): Step(_S.UNKNOWN, (_A.FORGET,)),
    (_S.READ_ONLY, _E.RETIRED): Step(_S.UNKNOWN, (_A.FORGET,)),
}

_READS: dict[TabletStage, Verdict] = {
    _S.UNKNOWN: "refuse",
    _S.CONFIG_LOADING: "defer",
    _S.LOG_REPLAYING: "defer",
    _S.CONFIG_SAVING: "defer",
    _S.FRAGMENTS_LOADING: "defer",
    _S.ACTIVE: "serve",
    _S.READ_ONLY: "serve",
    _S.FINAL_SAVING: "refuse",
}
_WRITES: dict[TabletStage, Verdict] = {
    **_READS,
    _S.FRAGMENTS_LOADING: "serve",
    _S.READ_ONLY: "refuse",
}


def step(state: TabletStage, event: LifeEvent) -> Step:
    """Return what an event makes of a state; `IllegalStep` if it cannot happen there."""
    found = _STEPS.get((state, event))
    if found is None:
        raise IllegalStep(f"a tablet in state {state} ({state.name}) cannot be told: {event.value}")
    return found


def admits(state: TabletStage, kind: Literal["read", "write"]) -> Verdict:
    """Tell what becomes of a request to a tablet in a state."""
    return (_READS if kind == "read" else _WRITES)[state]
