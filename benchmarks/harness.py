"""The clock: what is timed, how often, and in which order.

    interleave(3, {"ebla": f, "rocksdict": g})      f g | g f | f g   ->  the best seconds of each

A measured function does its own set-up and returns the seconds of the part that counts, taken with `timed`.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. `rows` and `scale` are None where each workload should take its own default."""

    directory: Path
    rows: int | None = None
    quick: bool = False
    scale: float | None = None

    def rows_or(self, full: int, quick: int) -> int:
        """Return the number of rows to measure with: as asked for, or the workload's default."""
        if self.rows is not None:
            return self.rows
        return quick if self.quick else full

    def repeats(self, full: int = 3) -> int:
        """Return how many rounds to run; the best one counts, as the first also warms allocators and file cache."""
        return max(2, full - 1) if self.quick else full


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Run `work` once with the garbage collector off; return its seconds and what it returned."""
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        result = work()
        return time.perf_counter() - begin, result
    finally:
        gc.enable()


def interleave(repeats: int, contenders: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Run every contender `repeats` times, in turns and in alternating order; return the best seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats):
        order = list(contenders) if turn % 2 == 0 else list(contenders)[::-1]
        for name in order:
            say(f"  {name}, round {turn + 1} of {repeats}")
            seconds[name].append(contenders[name]())
    return {name: min(taken) for name, taken in seconds.items()}


def in_threads(work: Callable[[Sequence[Result]], object], shares: Sequence[Sequence[Result]]) -> float:
    """Give each share to a thread of its own, start all at once, return the seconds until the last one is done."""
    barrier = threading.Barrier(len(shares) + 1)
    failures: list[BaseException] = []

    def run(share: Sequence[Result]) -> None:
        barrier.wait()
        try:
            work(share)
        except BaseException as failure:  # reported by the main thread
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()

    def wait() -> None:
        barrier.wait()
        for thread in threads:
            thread.join()

    seconds, _ = timed(wait)
    if failures:
        raise failures[0]
    return seconds


def in_turn(work: Callable[[Result], float], inputs: Iterable[Result]) -> Callable[[], float]:
    """Return a contender that takes the next input every time it runs."""
    todo = iter(inputs)
    return lambda: work(next(todo))


def deal(items: Sequence[Result], hands: int) -> list[Sequence[Result]]:
    """Cut `items` into `hands` runs of nearly equal length."""
    cuts = [len(items) * hand // hands for hand in range(hands + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(cuts)]


@contextmanager
def scratch(options: Options) -> Iterator[Path]:
    """Give a fresh directory on the measured file system and remove it afterwards."""
    path = Path(tempfile.mkdtemp(prefix="ebla-bench-", dir=options.directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def check(found: object, expected: object, what: str) -> None:
    """Stop the run if a store answered wrongly: a wrong answer has no speed."""
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


def say(text: str) -> None:
    """Tell whoever is waiting what is going on, apart from the results."""
    print(text, file=sys.stderr, flush=True)
