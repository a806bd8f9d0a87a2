"""The process that is killed: ``python -m tests.recovery.writer <path> <first operation of each thread>...``

Writes for as long as it lives, and tells on its standard output what was acknowledged, one line each, in one write:

    open                    the store is open
    <thread> <number> <txn>

When its standard input is closed, it closes the store and ends.
"""

from __future__ import annotations

import os
import sys
import threading

import ebla
from tests.recovery.work import SMALL, TABLE, Work


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main(path: str, begins: list[int]) -> None:
    with ebla.open(path, settings=SMALL) as db:
        table = db.table(TABLE)
        tell("open")
        stop = threading.Event()

        def write(thread: int, begin: int) -> None:
            work = Work(thread)
            number = begin
            while not stop.is_set():
                txn = work.act(number, table)
                tell(f"{thread} {number} {txn}")
                number += 1
                if thread == 0 and number % 40 == 0:
                    table.flush()

        threads = [threading.Thread(target=write, args=one) for one in enumerate(begins)]
        for one in threads:
            one.start()
        sys.stdin.read()
        stop.set()
        for one in threads:
            one.join()


if __name__ == "__main__":
    main(sys.argv[1], [int(begin) for begin in sys.argv[2:]])
