"""Pruning a directory of backups: what is not wanted any more goes, and nothing that another backup needs.

    wanted    of every table: the newest backup; of the `keep` newest chains all; what is younger than `older_than`
    needed    the backups that have files of a wanted one (its chain)
    doomed    all others

A chain is a full backup with the increments that were made since it. One whose full backup is not there any more begins
with the first that is.

    1. the manifests of the doomed go, the newest first       from here on nobody takes one of them for a backup
    2. is a backup being made? then they come back            it may have chosen one of them to build on
    3. their directories go

Wherever that is cut off, what still has a manifest can be restored, and what has none is what `remove_unfinished`
removes. A backup that begins takes the lock of its directory, and looks for its base after that (`backup`); so one of
the two sees the other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ebla.direct.files import LocalFiles
from ebla.errors import Corruption, RequestError, StoreError, StoreLocked, Unavailable, shown
from ebla.model.declaration import parse_age
from ebla.pipeline.backups.manifest import LOCK_NAME, MANIFEST_NAME, BackupManifest, Backups, list_backups

__all__ = ["PruneReport", "PrunedBackup", "choose", "prune_backups"]

PRUNED_NAME = f"{MANIFEST_NAME}.pruned"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrunedBackup:
    """A backup that goes, and what lies in it."""

    id: str
    kind: str
    time: str
    tables: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What goes, or has gone if `is_applied`; of what stays, `needed` is not wanted itself, but by others."""

    doomed: tuple[PrunedBackup, ...]
    kept: tuple[str, ...]
    needed: tuple[str, ...]
    files: int
    bytes: int
    is_applied: bool


def prune_backups(
    path: str | os.PathLike[str],
    *,
    keep: int | None = None,
    older_than: str | timedelta | datetime | None = None,
    even_last: bool = False,
    dry_run: bool = True,
) -> PruneReport:
    """Remove backups below `path` that are no longer wanted; with `dry_run`, only say which.

    `keep` full backups of every table stay, the newest, with all increments since; so does what is not `older_than` an
    age such as ``"30d"`` or a time. With both, a backup stays if either says so. The newest backup of a table always
    stays; with `even_last`, a table that only old backups have is no reason to keep them. Whatever one that stays needs
    to be restored stays too. Raises `RequestError` if neither is given, `Corruption` if a manifest cannot be read, for
    nobody knows what it needs, and `Unavailable` while a backup is being made: then nothing was changed.
    """
    oldest = _oldest_time(older_than)
    if isinstance(keep, bool) or not (keep is None or isinstance(keep, int)) or (keep is not None and keep < 1):
        raise RequestError(f"keep cannot be {keep!r}: give the number of full backups that stay, 1 or more")
    if keep is None and oldest is None:
        raise RequestError(
            "say what stays: --keep N for the newest full backups, --older-than 30d for what is younger, or both"
        )
    root = Path(path)
    found = list_backups(root)
    if found.damaged:
        name, reason = min(found.damaged.items())
        raise Corruption(
            str(root / name / MANIFEST_NAME),
            f"{reason}; nobody knows which backups it needs: bring it back, or remove {root / name} yourself",
        )
    wanted = choose(found.complete, keep, oldest, even_last=even_last)
    needed = {name for one in found.complete if one.id in wanted for name in _needs(one)} - wanted
    doomed = [one for one in found.complete if one.id not in wanted | needed]
    if doomed and not dry_run:
        _remove(root, found, doomed)
    return PruneReport(
        doomed=tuple(_told(one) for one in doomed),
        kept=tuple(one.id for one in found.complete if one.id in wanted | needed),
        needed=tuple(one.id for one in found.complete if one.id in needed),
        files=sum(len(one.own_files()) for one in doomed),
        bytes=sum(file.bytes for one in doomed for file in one.own_files()),
        is_applied=bool(doomed) and not dry_run,
    )


def choose(
    backups: Sequence[BackupManifest], keep: int | None, oldest: datetime | None, *, even_last: bool = False
) -> set[str]:
    """Return the ids of the backups that are wanted for themselves; `backups` are in the order of their txns."""
    by_id = {one.id: one for one in backups}
    places = {one.id: at for at, one in enumerate(backups)}
    heads: dict[str, str] = {}
    for one in backups:  # a base is never later than what builds on it
        heads[one.id] = heads.get(one.base, one.id) if one.base in by_id and one.base is not None else one.id
    by_table: dict[tuple[str, str], list[BackupManifest]] = defaultdict(list)
    for one in backups:
        names = ["" if even_last else table.name for table in one.tables] or [""]
        for name in dict.fromkeys(names):
            by_table[one.store, name].append(one)
    wanted: set[str] = set()
    for members in by_table.values():
        wanted.add(members[-1].id)
        if keep is not None:
            newest = sorted({heads[one.id] for one in members}, key=places.__getitem__)[-keep:]
            wanted.update(one.id for one in members if heads[one.id] in newest)
        if oldest is not None:
            wanted.update(one.id for one in members if datetime.fromisoformat(one.time) >= oldest)
    return wanted


def _needs(one: BackupManifest) -> set[str]:
    return {*one.chain, *(file.backup for file in one.files)}


def _oldest_time(older_than: str | timedelta | datetime | None) -> datetime | None:
    if older_than is None:
        return None
    if isinstance(older_than, str):
        with contextlib.suppress(ValueError):
            older_than = datetime.fromisoformat(older_than)
    if isinstance(older_than, datetime):
        return older_than if older_than.tzinfo is not None else older_than.replace(tzinfo=UTC)
    if not isinstance(older_than, (str, timedelta)):
        raise RequestError(f"a backup is not older than {shown(older_than)}: give an age such as '30d', or a time")
    try:
        age = timedelta(microseconds=min(parse_age(older_than), timedelta.max // timedelta(microseconds=1)))
    except RequestError:
        raise RequestError(
            f"a backup is not older than {shown(older_than)}: give an age such as 30d or 12h, or a time such as "
            "2026-01-31"
        ) from None
    now = datetime.now(UTC)
    return now - min(age, now - datetime.min.replace(tzinfo=UTC))


def _told(one: BackupManifest) -> PrunedBackup:
    own = one.own_files()
    tables = tuple(table.name for table in one.tables)
    return PrunedBackup(one.id, one.kind, one.time, tables, len(own), sum(file.bytes for file in own))


# --- removing ------------------------------------------------------------------------------------


def _remove(root: Path, found: Backups, doomed: Sequence[BackupManifest]) -> None:
    """Remove backups, what builds on others before these. Whatever fails leaves each of them whole or none."""
    hidden: list[str] = []
    try:
        for one in reversed(doomed):
            _rename(root / one.id, MANIFEST_NAME, PRUNED_NAME)
            hidden.append(one.id)
        _check_none_is_made(root, {*found.unfinished, *list_backups(root).unfinished} - {one.id for one in doomed})
    except BaseException:
        for name in reversed(hidden):  # what is built on comes back first
            with contextlib.suppress(StoreError):
                _rename(root / name, PRUNED_NAME, MANIFEST_NAME)
        raise
    for one in reversed(doomed):
        try:
            shutil.rmtree(root / one.id)
        except OSError as error:
            raise StoreError(
                f"{root / one.id} cannot be removed: {error}: it is no backup any more, and what is left of it goes "
                "with `ebla backups --clean`"
            ) from error
        _log.info("removed backup %s of %s from %s", one.id, one.time, root)


def _rename(directory: Path, name: str, new: str) -> None:
    files = LocalFiles(directory)
    try:
        files.replace(name, new)
        files.sync_directory("")
    except OSError as error:
        raise StoreError(
            f"{directory} cannot be changed: {error}: nothing was removed, mend the cause, then retry"
        ) from error


def _check_none_is_made(root: Path, unfinished: set[str]) -> None:
    for name in sorted(unfinished):
        if not (root / name / LOCK_NAME).exists():
            continue
        try:
            LocalFiles(root / name).lock(LOCK_NAME).release()
        except StoreLocked:
            raise Unavailable(
                f"backup {name} is being made, and may build on one that would go: nothing was removed, retry when it "
                "is done"
            ) from None
