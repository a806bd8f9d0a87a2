"""A store that another process serves, which tests kill, stop and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import ebla


class ServedStore:
    """A process that serves the store in a directory, always at the same port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.served_store", str(self._directory), str(self._port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop_for_a_while(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until then it may answer

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process.poll() is None:
            self.go_on()
            self._process.kill()
        self._process.wait()


def _main() -> None:
    from ebla.client.database import service_of
    from ebla.rpc.server import RpcServer
    from ebla.rpc.serving.service_handlers import ServiceHandlers
    from ebla.rpc.wire.messages import SERVICE_METHODS

    db = ebla.open(sys.argv[1], settings=ebla.Settings(background_compaction=False, scan_batch_rows=1_024))
    handlers = ServiceHandlers(service_of(db)).by_type()
    server = RpcServer(SERVICE_METHODS, handlers, port=int(sys.argv[2]))
    print(server.address.rpartition(":")[2], flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _main()
