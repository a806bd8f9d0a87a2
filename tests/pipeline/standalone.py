"""A Spark cluster of several processes for soak tests: a master and two workers, from the jars that PySpark brings.

    test process          master (JVM)      worker 127.0.0.1 (JVM)      worker 127.0.0.2 (JVM)
        |                                       executor (JVM)              executor (JVM)
        `-- cluster.run(script) --> driver          Python workers              Python workers

A process has one Spark session, and that of the tests is a local one; so a driver on the cluster is a script in a
process of its own. It is given the URL of the master first, then the arguments, and `SETUP` goes before it:

    cluster.run('''
    spark = standalone_session(sys.argv[1])
    ...
    ''', str(root))

In a task, `kill_executor_once(mark)` kills the executor that the task runs on, the first time that anybody calls it
with that mark, and `at_the_other(mark)` tells whether this attempt is the second to come by. The workers have addresses
of their own, for Spark runs a speculative attempt on another host than the first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import ebla
from ebla.pipeline.spark.java import bundled_java_home, find_java_home, java_home_without_module
from ebla.pipeline.spark.session import session
from tests.support.zookeeper import free_ports

HOSTS = ("127.0.0.1", "127.0.0.2")
START_SECONDS_MAX = 90
RUN_SECONDS_MAX = 500
CODE = Path(ebla.__file__).parent.parent

SETUP = """
import os, sys, time
from pathlib import Path
import ebla
import ebla.pipeline
from tests.pipeline.standalone import at_the_other, kill_executor_once, replaced, standalone_session
"""

_LOGGING = """<Configuration status="OFF"><Appenders><Console name="c" target="SYSTEM_ERR">
<PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
<Loggers><Root level="info"><AppenderRef ref="c"/></Root></Loggers></Configuration>
"""


class Standalone:
    """A running cluster. `url` is what a session takes as its master."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "log4j2.xml").write_text(_LOGGING)
        found = find_java_home(dict(os.environ))
        self._java_home = bundled_java_home() if found is None else java_home_without_module(found / "bin" / "java")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = free_ports(1)[0]
        self.url = f"spark://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the master and the workers, and return once all workers are known to the master."""
        place = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
        self._java("master", "org.apache.spark.deploy.master.Master", *place)
        self._wait("master", "I have been elected leader")
        for host in HOSTS:
            work = ["--work-dir", str(self.directory / f"work-{host}"), "--webui-port", "0"]
            share = ["--host", host, "--cores", "1", "--memory", "1g"]
            self._java(f"worker-{host}", "org.apache.spark.deploy.worker.Worker", *share, *work, self.url)
        for host in HOSTS:
            self._wait(f"worker-{host}", "Successfully registered with master")

    def stop(self) -> None:
        """End all processes; executors go with their workers."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []

    def run(self, script: str, *arguments: str) -> str:
        """Run a driver, which must succeed; return what it printed."""
        file = self.directory / f"driver-{time.monotonic_ns()}.py"
        file.write_text(SETUP + script)
        done = subprocess.run(
            [sys.executable, str(file), self.url, *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS_MAX,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def _environment(self) -> dict[str, str]:
        jars = Path(pyspark.__file__).parent / "jars"
        scala = next(jars.glob("scala-library-*.jar")).stem.removeprefix("scala-library-").rpartition(".")[0]
        own = {
            "SPARK_SCALA_VERSION": scala,
            "JAVA_HOME": str(self._java_home),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(CODE),
        }
        return os.environ | own

    def _java(self, name: str, main: str, *arguments: str) -> None:
        jars = Path(pyspark.__file__).parent / "jars"
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += [f"-Dlog4j2.configurationFile={self.directory}/log4j2.xml"]
        with (self.directory / name).open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    [str(self._java_home / "bin" / "java"), *options, "-cp", f"{jars}/*", main, *arguments],
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    env=self._environment(),
                )
            )

    def _wait(self, name: str, said: str) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while said not in (text := (self.directory / name).read_text()):
            assert all(process.poll() is None for process in self._processes), text[-3000:]
            assert time.monotonic() < deadline, text[-3000:]
            time.sleep(0.1)


@contextlib.contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    """Have a cluster for as long as the block runs."""
    cluster = Standalone(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


# --- in a driver ---------------------------------------------------------------------------------


def standalone_session(url: str, **settings: object) -> SparkSession:
    """Start a session on the cluster: an executor of one core on each worker."""
    given = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        # Both take part from the start, or one would do all the work before the other is there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        **settings,
    }
    return session(url, "ebla soak", log_level="OFF", **given)


@contextlib.contextmanager
def replaced(module: str, name: str, value: object) -> Iterator[None]:
    """Put something else in the place of a name of a module: a task that does what a test wants, and its work."""
    place = sys.modules[module]
    former = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, former)


# --- in a task -----------------------------------------------------------------------------------


def kill_executor_once(mark: str | os.PathLike[str]) -> None:
    """Kill the executor that this Python worker belongs to, as a power cut would; once for every mark."""
    if not _first(Path(mark)):
        return
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)
    time.sleep(60)  # it takes this process along; nothing that comes after this counts


def at_the_other(mark: str | os.PathLike[str]) -> bool:
    """Tell whether another attempt has come by this mark before."""
    return not _first(Path(mark))


def _first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def can_have_two_hosts() -> bool:
    """Tell whether this machine lets somebody listen at the address of the second worker."""
    try:
        socket.create_server((HOSTS[1], 0)).close()
    except OSError:
        return False
    return True
