"""The end of a process that serves: nobody is waited for who does not leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import signal, subprocess, sys, time
from ebla.rpc.channel import Channel
from tests.rpc.echo import METHODS, Echo, serve

if sys.argv[1] == "client":
    channel = Channel(METHODS, sys.argv[2])
    channel.call(Echo(b""), timeout_seconds=30)
    print("called", flush=True)
    time.sleep(600)
server = serve()
if sys.argv[1] == "alone":
    channel = Channel(METHODS, server.address)
    assert channel.call(Echo(b"x"), timeout_seconds=30) == b"x"
else:
    command = [sys.executable, __file__, "client", server.address]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    client.stdout.readline()
    client.send_signal(signal.SIGSTOP)
    server.close(grace_seconds=0.1)
print("the end", flush=True)
"""


@pytest.mark.parametrize("how", ["alone", "closed"])
def test_a_process_ends_though_a_client_is_connected_or_stopped(how: str, tmp_path: object) -> None:
    script = f"{tmp_path}/script.py"
    with open(script, "w") as file:
        file.write(SCRIPT.replace('print("the end"', 'print(globals().get("client") and client.pid, "the end"'))
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}  # the script is elsewhere, and uses the tests
    ended = subprocess.run([sys.executable, script, how], capture_output=True, text=True, timeout=60, env=paths)
    pid = ended.stdout.split()[0]
    if pid != "None":
        subprocess.run(["kill", "-9", pid], check=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith("the end\n")
