"""Verifying and repairing a store that may not open any more: by its directory, not by a `Database`.

ebla.verify("data")                   what is wrong; needs no lock, changes nothing
ebla.repair("data")                   what would be done about it
ebla.repair("data", dry_run=False)    does it; the store must be closed

With `accept_lost_log`, a log of which files are gone is given up as far as that: the store opens again, and what was
committed there and not flushed is lost. Nothing else of a repair loses anything.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from ebla.arguments import checked_flag
from ebla.client.embedded.coordination_place import connect_at, is_store, no_store
from ebla.client.embedded.opening import checked_root, new_id
from ebla.client.embedded.owning import owning
from ebla.clock import SystemClock
from ebla.metadata.server.directory import TableDirectory
from ebla.service.reports import VerifyReport
from ebla.storage.files.local_files import LocalFiles
from ebla.tablet.check.verify import Verifier
from ebla.tablet.recovery.open_metadata import open_metadata

__all__ = ["VerifyReport", "repair", "verify"]


def verify(path: str | os.PathLike[str]) -> VerifyReport:
    """Compare METADATA with itself and with every file that it names, and the log with what is on record of it.

    Another process may have the store open.
    """
    return _verify(path, accept_lost_log=False)


def _verify(path: str | os.PathLike[str], *, accept_lost_log: bool) -> VerifyReport:
    root = _root(path)
    clock = SystemClock()
    with connect_at(root, clock, read_only=True) as coordination:
        verifier = Verifier(coordination, LocalFiles(root), TableDirectory(coordination, clock))
        return verifier.verify(accept_lost_log=accept_lost_log)


def repair(path: str | os.PathLike[str], *, dry_run: bool = True, accept_lost_log: bool = False) -> VerifyReport:
    """Mend the METADATA of every table as far as nothing is lost by it, in one transaction for each.

    With `dry_run`, only say so: the findings of `verify` tell what would be done. With `accept_lost_log`, what is
    missing from the log is given up as well, and the findings tell what is lost by that. `StoreLocked` if the store is
    open.
    """
    accept_lost_log = checked_flag("accept_lost_log", accept_lost_log)
    if checked_flag("dry_run", dry_run):
        return _verify(path, accept_lost_log=accept_lost_log)
    with owning(_root(path)) as owned:
        verifier = Verifier(owned.coordination, owned.files, TableDirectory(owned.coordination, owned.clock))
        report = verifier.repair(new_id, accept_lost_log=accept_lost_log)
        if any(finding.kind == "copy" and finding.repair for finding in report.findings):
            open_metadata(owned.coordination, owned.files, owned.clock, new_id)  # its servers fetch what they lack
            report = dataclasses.replace(report, repaired=True)
        return report


def _root(path: str | os.PathLike[str]) -> Path:
    root = checked_root(path)
    if not is_store(root):
        raise no_store(root)
    return root
