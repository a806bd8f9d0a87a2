"""The door of a table: it knows the state of every tablet, and lets requests pass, wait, or not in.

While every tablet is active the door is open, and asking costs a look at one flag.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Literal

from ebla.errors import TableUnloaded
from ebla.metadata.values.table_metadata import TabletMetadata
from ebla.tablet.tables.tablet_stages import Action, LifeEvent, TableStage, TabletStage, admits, step

__all__ = ["Door"]


class Door:
    """The states of the tablets of one table. Safe to use from several threads."""

    def __init__(self, table: str, state: TabletStage = TabletStage.ACTIVE, *, is_watched: bool = False) -> None:
        """`is_watched`: every request is looked at, also while all tablets are active."""
        self.table = table  # its name, for messages
        self._is_watched = is_watched
        self._changed = threading.Condition()
        # Guarded by _changed; `is_open` is read by anybody.
        self._states: dict[str, TabletStage] = {}  # of the tablets that have another one than the rest
        self._rest = state
        self._being_loaded: dict[str, object] = {}  # who loads which tablet
        self._reason = "load it with load_table"
        self.is_open = state is TabletStage.ACTIVE and not is_watched
        """Whether all tablets are active."""

    def state_of(self, tablet: str) -> TabletStage:
        """Return the state of a tablet; one that has come by a split or join has that of most."""
        return self._states.get(tablet, self._rest)

    @property
    def common(self) -> TabletStage:
        """The state of all tablets that have no other."""
        return self._rest

    @property
    def stage(self) -> TableStage:
        """What is known of the table as a whole."""
        if self._rest is TabletStage.UNKNOWN:
            return TableStage.UNKNOWN
        return TableStage.SCHEMA_LOADING if self._rest is TabletStage.CONFIG_LOADING else TableStage.ACTIVE

    def move(
        self, tablets: Iterable[str], event: LifeEvent, only_in: Collection[TabletStage] | None = None
    ) -> list[str]:
        """Tell tablets of an event, or those of them that are in some states at this moment; return which."""
        moved = []
        with self._changed:
            for tablet in tablets:
                state = self.state_of(tablet)
                if only_in is None or state in only_in:
                    self._set(tablet, step(state, event).state)
                    moved.append(tablet)
            self._settle()
        return moved

    def move_all(self, event: LifeEvent, reason: str | None = None) -> list[Action]:
        """Tell all tablets of an event. `reason` is what those hear who are not let in from now on."""
        actions: dict[Action, None] = {}
        with self._changed:
            if reason is not None:
                self._reason = reason
            before = {self._rest, *self._states.values()}
            after = {state: step(state, event) for state in before}
            for done in after.values():
                actions.update(dict.fromkeys(done.actions))
            self._rest = after[self._rest].state
            self._states = {tablet: after[state].state for tablet, state in self._states.items()}
            self._settle()
        return list(actions)

    def _set(self, tablet: str, state: TabletStage) -> None:
        if state is self._rest or state is TabletStage.UNKNOWN:
            self._states.pop(tablet, None)  # a tablet that is gone has no state
        else:
            self._states[tablet] = state

    def _settle(self) -> None:
        self._states = {tablet: state for tablet, state in self._states.items() if state is not self._rest}
        self.is_open = self._rest is TabletStage.ACTIVE and not self._states and not self._is_watched
        self._changed.notify_all()

    def begin(self, tablets: Iterable[str]) -> None:
        """Begin to serve a table lazily: what is not read yet waits to be loaded, what comes later is active."""
        with self._changed:
            for tablet in tablets:
                self._states[tablet] = self._rest
            self._rest = TabletStage.ACTIVE
            self._settle()

    # --- requests ---

    def admit(
        self,
        tablets: Iterable[TabletMetadata],
        kind: Literal["read", "write"],
        load: Callable[[TabletMetadata], None],
    ) -> None:
        """Return when all these tablets take a request; raise `TableUnloaded` if one does not, or what `load` raises.

        `load` loads the fragments of a tablet. It is called by one of those who want to read it; the others wait.
        """
        for tablet in tablets:
            if self.state_of(tablet.id) is TabletStage.ACTIVE:
                continue  # the usual case, without the lock
            own = object()
            try:
                while not self._may_pass(tablet, kind, own):
                    load(tablet)
                    self._loaded(tablet.id, LifeEvent.FRAGMENTS_LOADED, own)
            except BaseException:
                self._loaded(tablet.id, LifeEvent.FAILED, own)
                raise

    def _may_pass(self, tablet: TabletMetadata, kind: Literal["read", "write"], own: object) -> bool:
        """Wait for the state to let a request pass; False if the caller is to load the fragments first."""
        with self._changed:
            while True:
                state = self.state_of(tablet.id)
                verdict = admits(state, kind)
                if verdict == "serve":
                    return True
                if verdict == "refuse":
                    raise TableUnloaded(f"the table {self.table!r} is not loaded: {self._reason}, then retry")
                if state is TabletStage.FRAGMENTS_LOADING and tablet.id not in self._being_loaded:
                    self._being_loaded[tablet.id] = own
                    return False
                self._changed.wait()

    def _loaded(self, tablet: str, event: LifeEvent, own: object) -> None:
        """Say what became of the load of a tablet, if it was this caller's."""
        with self._changed:
            if self._being_loaded.get(tablet) is not own:
                return
            del self._being_loaded[tablet]
            # It may have been unloaded, or have gone, meanwhile.
            if self.state_of(tablet) is TabletStage.FRAGMENTS_LOADING:
                self._set(tablet, step(TabletStage.FRAGMENTS_LOADING, event).state)
            self._settle()
