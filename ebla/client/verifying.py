"""Verifying and repairing a store that may not open any more: by its directory, not by a `Database`.

ebla.verify("data")                   what is wrong; needs no lock, changes nothing
ebla.repair("data")                   what would be done about it
ebla.repair("data", dry_run=False)    does it; the store must be closed
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from ebla.arguments import checked_flag
from ebla.client.coordination_place import connect_at, is_store, no_store
from ebla.client.database import checked_root, new_id
from ebla.client.owning import owning
from ebla.clock import SystemClock
from ebla.metadata.directory import TableDirectory
from ebla.storage.files import LocalFiles
from ebla.tablet.open_metadata import open_metadata
from ebla.tablet.verify import Verifier, VerifyReport

__all__ = ["VerifyReport", "repair", "verify"]


def verify(path: str | os.PathLike[str]) -> VerifyReport:
    """Compare METADATA with itself and with every file that it names. Another process may have the store open."""
    root = _root(path)
    clock = SystemClock()
    with connect_at(root, clock, read_only=True) as coordination:
        return Verifier(coordination, LocalFiles(root), TableDirectory(coordination, clock)).verify()


def repair(path: str | os.PathLike[str], *, dry_run: bool = True) -> VerifyReport:
    """Mend the METADATA of every table as far as nothing is lost by it, in one transaction for each.

    With `dry_run`, only say so: the findings of `verify` tell what would be done. `StoreLocked` if the store is open.
    """
    if checked_flag("dry_run", dry_run):
        return verify(path)
    with owning(_root(path)) as owned:
        verifier = Verifier(owned.coordination, owned.files, TableDirectory(owned.coordination, owned.clock))
        report = verifier.repair(new_id)
        if any(finding.kind == "copy" and finding.repair for finding in report.findings):
            open_metadata(owned.coordination, owned.files, owned.clock, new_id)  # its servers fetch what they lack
            report = dataclasses.replace(report, repaired=True)
        return report


def _root(path: str | os.PathLike[str]) -> Path:
    root = checked_root(path)
    if not is_store(root):
        raise no_store(root)
    return root
