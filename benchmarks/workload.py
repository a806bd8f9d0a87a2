"""What a fresh process is started with: the name of a workload. (It cannot import `__main__`.)"""

from __future__ import annotations

import importlib

from benchmarks.harness import Options
from benchmarks.report import Report


def run_workload(name: str, options: Options) -> Report:
    """Run one workload in this process."""
    report = importlib.import_module(f"benchmarks.{name}").run(options)
    assert isinstance(report, Report)
    return report
