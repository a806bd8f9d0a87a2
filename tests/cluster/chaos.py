"""What can happen to a cluster under load, a step at a time, by dice: to its processes, and to its tables.

    processes   kill, stop for a while, leave; started again
    tables      move, split, join, alter, compact, flush, clone, offline and back

A step to a table that comes to nothing because something else is under way is no failure: it says so, and the next one
is taken. What must hold is what clients were told (checked_load.py).
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable

import ebla
from tests.cluster.processes import RealCluster

__all__ = ["Chaos"]


class Chaos:
    """Does one thing after the other to a cluster. `done` counts what was done, `refused` what came to nothing."""

    def __init__(self, cluster: RealCluster, dice: random.Random, *, pause_seconds_max: float = 6.0) -> None:
        self._cluster = cluster
        self._dice = dice
        self._pause_seconds_max = pause_seconds_max
        self._number = 0
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.tables: dict[str, Callable[[ebla.Table], None]] = {
            "move": self._move,
            "split": lambda table: ignored(self._chains().split()),
            "join": self._join,
            "alter": self._alter,
            "compact": lambda table: table.compact(),
            "flush": lambda table: table.flush(),
            "clone": self._clone,
        }
        self.processes: dict[str, Callable[[str], None]] = {
            "kill": self._kill,
            "stop": self._stop,
            "leave": self._leave,
        }

    def step(self) -> None:
        """Do something, whatever the dice say."""
        if self._dice.random() < 0.4:
            self.to_process(self._dice.choice([*self.processes]))
        else:
            self.to_table(self._dice.choice([*self.tables]))

    # --- tables ---

    def to_table(self, what: str) -> None:
        """Do something to one of the tables that the load uses."""
        db = self._cluster.db
        names = [name for name in db.tables() if name.startswith("load-")]
        try:
            self.tables[what](db.table(self._dice.choice(names)))
        except (ebla.Unavailable, ebla.RequestError, ebla.Conflict, ebla.OutcomeUnknown) as error:
            self.refused[f"{what}: {type(error).__name__}"] += 1
        else:
            self.done[what] += 1

    def _move(self, table: ebla.Table) -> None:
        tablet = self._dice.choice(table.tablets())
        self._cluster.db.move_tablet(table.name, tablet["id"], self._dice.choice(self._cluster.living()))

    def _join(self, table: ebla.Table) -> None:
        chains = self._chains()
        tablets = chains.tablets()
        if len(tablets) < 2:
            raise ebla.CannotJoin("there is one tablet")
        at = self._dice.randrange(len(tablets) - 1)
        chains.join(tablets=(tablets[at]["id"], tablets[at + 1]["id"]))

    def _chains(self) -> ebla.Table:
        """Return the table that has many rows."""
        return self._cluster.db.table("load-chains")

    def _alter(self, table: ebla.Table) -> None:
        self._number += 1
        self._cluster.db.alter_table(table.name, add_columns={f"more{self._number}": "int64"})

    def _clone(self, table: ebla.Table) -> None:
        self._number += 1
        clone = self._cluster.db.clone_table(table.name, f"clone-{self._number}")
        clone.count()
        self._cluster.db.drop_table(clone.name)

    # --- processes ---

    def to_process(self, what: str) -> None:
        """Do something to a process, and wait until all tablets are served again."""
        cluster = self._cluster
        name = self._dice.choice([*cluster.servers, *cluster.servers, *cluster.masters])
        self.processes[what](name)
        self.done[f"{what} {name.partition('-')[0]}"] += 1
        cluster.wait_until(lambda: all(cluster.leaders().values()), 90)

    def _pause(self) -> None:
        time.sleep(self._dice.random() * self._pause_seconds_max)

    def _kill(self, name: str) -> None:
        self._cluster.process(name).kill()
        self._pause()
        self._cluster.start_again(name)

    def _stop(self, name: str) -> None:
        process = self._cluster.process(name)
        process.signal(signal.SIGSTOP)
        self._pause()
        process.signal(signal.SIGCONT)

    def _leave(self, name: str) -> None:
        self._cluster.process(name).stop()
        self._pause()
        self._cluster.start_again(name)


def ignored(answer: object) -> None:
    """Let go of an answer that does not matter."""
