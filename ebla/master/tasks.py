"""What servers still have to be told: one task per server, tablet and operation, repeated until a report ends it.

    ensure(create, t7 on s2)  ...due: sent... due again after 1 s, 2 s, 4 s ...  a report shows t7 on s2: done

The reply to a request ends nothing: the report alone decides, so that there is one way to finish. However often
something asks for a task, there is one, with one clock. What a request says is worked out from the catalog when it is
sent, so that a late retry never carries old orders.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from random import Random

__all__ = ["Tasks"]


class _Task:
    __slots__ = ("assignment_id", "attempts", "due_seconds")

    def __init__(self, due_seconds: float, assignment_id: str) -> None:
        self.due_seconds = due_seconds
        self.attempts = 0
        self.assignment_id = assignment_id


class Tasks:
    """The tasks of a term. They are not durable: full reports of the servers bring them about again."""

    def __init__(self, random: Random, retry_seconds_min: float, retry_seconds_max: float) -> None:
        self._random = random
        self._retry_seconds_min = retry_seconds_min
        self._retry_seconds_max = retry_seconds_max
        self._by_server: dict[str, dict[tuple[str, str], _Task]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_server.values()))

    def of(self, server: str) -> dict[tuple[str, str], _Task]:
        """Return the tasks of a server by tablet and operation; not to be changed."""
        return self._by_server.get(server, {})

    def ensure(self, server: str, tablet: str, operation: str, now: float, assignment_id: str = "") -> None:
        """See to it that there is such a task. One that is there already goes on as it was."""
        tasks = self._by_server.setdefault(server, {})
        task = tasks.get((tablet, operation))
        if task is None or task.assignment_id != assignment_id:
            tasks[(tablet, operation)] = _Task(now, assignment_id)

    def done(self, server: str, tablet: str, operation: str) -> None:
        """End a task, if it is there."""
        tasks = self._by_server.get(server)
        if tasks:
            tasks.pop((tablet, operation), None)

    def done_but(self, server: str, tablet: str, operations: Iterable[str], remaining: Container[str]) -> None:
        """End the tasks of a tablet for these operations, but for those that remain to be done."""
        tasks = self._by_server.get(server)
        if tasks:
            for operation in operations:
                if (tablet, operation) in tasks and operation not in remaining:
                    del tasks[(tablet, operation)]

    def drop_server(self, server: str) -> None:
        """End all tasks of a server, as when it was started again: its next full report says what is to be done."""
        self._by_server.pop(server, None)

    def due(
        self, server: str, now: float, count_max: int, is_wanted: Callable[[str, str, str], bool]
    ) -> list[tuple[str, str, str]]:
        """Return the tablet, operation and assignment of tasks to send now; those no longer wanted end here."""
        tasks = self._by_server.get(server)
        if not tasks:
            return []
        due, unwanted = [], []
        for (tablet, operation), task in tasks.items():
            if task.due_seconds > now:
                continue
            if not is_wanted(tablet, operation, task.assignment_id):
                unwanted.append((tablet, operation))
                continue
            due.append((tablet, operation, task.assignment_id))
            delay = min(self._retry_seconds_min * 2.0 ** min(task.attempts, 30), self._retry_seconds_max)
            # Not all at once: servers that came back together would be told together, for ever.
            task.due_seconds = now + delay * (0.75 + self._random.random() / 2)
            task.attempts += 1
            if len(due) == count_max:
                break
        for key in unwanted:
            del tasks[key]
        return due
