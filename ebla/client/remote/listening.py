"""Listeners of a client: events come from whoever serves, in order, and are handed on here."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import msgspec

from ebla.errors import EblaError, ProtocolError, RequestError
from ebla.rpc.methods import decoded, decoder_of
from ebla.rpc.wire.messages import NextEvents
from ebla.service.listener import Event, FragmentsChanged, RangeChanged, TabletListener, Unloaded, tell

if TYPE_CHECKING:
    from ebla.client.remote.remote_service import RemoteService

__all__ = ["Listening"]

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.5

_DECODERS = {kind.__name__: decoder_of(kind) for kind in (FragmentsChanged, RangeChanged, Unloaded)}


def _event_of(kind: str, body: msgspec.Raw) -> Event:
    if kind not in _DECODERS:
        raise ProtocolError(f"{kind!r} is no event that is known here")
    event: Event = decoded(_DECODERS[kind], body, kind)
    return event


class Listening:
    """The listeners of one client. Safe to use from several threads."""

    def __init__(self, service: RemoteService) -> None:
        # Set once.
        self._service = service
        self._lock = threading.Lock()
        self._delivering = threading.RLock()  # held while events are handed on, so that they come in order
        self._stopping = threading.Event()
        # Guarded by _lock.
        self._listeners: list[tuple[TabletListener, str | None]] = []
        self._number: int | None = None
        self._thread: threading.Thread | None = None

    def add(self, listener: TabletListener, tablet: str | None) -> None:
        """Tell a listener of one tablet, or of all, from now on."""
        with self._delivering:
            if self._number is None:
                self._number = self._service.ask_master(NextEvents(None)).next
            with self._lock:
                self._listeners.append((listener, tablet))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="ebla-remote-events", daemon=True)
                    self._thread.start()

    def remove(self, listener: TabletListener, tablet: str | None) -> None:
        """Undo one `add` with the same arguments."""
        with self._lock:
            for at, (one, of) in enumerate(self._listeners):
                if one is listener and of == tablet:
                    del self._listeners[at]
                    return
        raise RequestError("that listener was not added, or not for that tablet")

    def close(self) -> None:
        """Hear of nothing any more."""
        self._stopping.set()

    def deliver(self) -> None:
        """Hand on what has happened by now."""
        if not self._listeners:
            return
        with self._delivering:
            if self._number is None or self._stopping.is_set():
                return
            told = self._service.ask_master(NextEvents(self._number))
            self._number = told.next
            for kind, body in told.events:
                self._hand_on(_event_of(kind, body))

    def _hand_on(self, event: Event) -> None:
        with self._lock:
            wanted = [one for one, tablet in self._listeners if tablet is None or tablet == event.tablet]
        for listener in wanted:
            tell(listener, event)

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            try:
                self.deliver()
            except EblaError as error:
                _log.debug("no events could be had: %s", error)
