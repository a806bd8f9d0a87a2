"""Where the rows of a table are: its tablets by their first rows, and the server of each.

    first rows   b""        b"g"       b"p"
    servers      a          b          a           row b"k" --> b;   rows of a batch --> two groups, one for each server

A `Route` is a value: when a server says that it is out of date, another takes its place. What is not asked about is
not looked up: a cached route costs no request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.model.keys import KeyCodec
from ebla.model.ranges import KeyRange
from ebla.rpc.channel import Channel
from ebla.rpc.wire.messages import TableLocation

__all__ = ["Route", "Share"]


@dataclass(frozen=True)
class Share:
    """Rows of a range that one server has, one after the other."""

    server: Channel
    rows: KeyRange


@dataclass(frozen=True)
class Route:
    """One table as a client knows it: schema, and the servers of its tablets."""

    location: TableLocation
    codec: KeyCodec
    servers: tuple[Channel, ...]  # of each tablet

    @cached_property
    def firsts(self) -> list[bytes]:
        """The first rows of the tablets."""
        return [tablet.first for tablet in self.location.tablets]

    @cached_property
    def only_server(self) -> Channel | None:
        """The server that has all rows; None if there are several."""
        return self.servers[0] if len(set(self.servers)) == 1 else None

    @cached_property
    def distinct_servers(self) -> tuple[Channel, ...]:
        """All servers, each once, in the order of their first tablets."""
        return tuple(dict.fromkeys(self.servers))

    @property
    def places(self) -> list[tuple[str, Channel]]:
        """The tablets, and who has them."""
        return [(tablet.id, server) for tablet, server in zip(self.location.tablets, self.servers, strict=True)]

    def server_of(self, row: bytes) -> Channel:
        """Return the server of a row."""
        return self.only_server or self.servers[bisect_right(self.firsts, row) - 1]

    def tablet_of(self, row: bytes) -> str:
        """Return the id of the tablet of a row."""
        return self.location.tablets[bisect_right(self.firsts, row) - 1].id

    def server_of_tablet(self, tablet: str) -> Channel:
        """Return the server of a tablet by its id; any, if there is none, which will say so."""
        for located, server in zip(self.location.tablets, self.servers, strict=True):
            if located.id == tablet:
                return server
        return self.servers[0]

    def shares(self, rows: KeyRange, *, reverse: bool = False) -> list[Share]:
        """Cut a range where its server changes, in the order in which it is read."""
        ends: list[bytes | None] = [*self.firsts[1:], None]
        found: list[Share] = []
        for first, last, server in zip(self.firsts, ends, self.servers, strict=True):
            share = rows.intersect(KeyRange(first, last))
            if share is None or share.is_empty:
                continue
            if found and found[-1].server is server:
                found[-1] = Share(server, KeyRange(found[-1].rows.first, share.last))
            else:
                found.append(Share(server, share))
        return found[::-1] if reverse else found

    def groups(self, rows: pa.Array) -> Iterator[tuple[Channel, np.ndarray]]:
        """Yield the servers of encoded rows, each with the places of its rows."""
        tablets = np.zeros(len(rows), dtype=np.int64)
        for first in self.firsts[1:]:
            tablets += np.asarray(pc.greater_equal(rows, pa.scalar(first, rows.type)))
        numbers = {server: number for number, server in enumerate(self.distinct_servers)}
        of_tablet = np.array([numbers[server] for server in self.servers])
        of_row = of_tablet[tablets]
        for server, number in numbers.items():
            places = np.flatnonzero(of_row == number)
            if len(places):
                yield server, places
