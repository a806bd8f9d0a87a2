"""Where a store keeps METADATA besides its own directory: further directories, best on other disks.

    node `metadata` in the coordination service     the directories, in order; the store's own comes before them
    <directory>/ebla-metadata                        whose it is and which of them: cluster, number

A directory without its mark is not used: it is an empty mount point, or a disk that was replaced. Naming it again when
the store is opened for writing makes it one of the store's, and it is filled from the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ebla.coordination.service import CoordinationConflict, CoordinationService
from ebla.errors import Corruption, RequestError, StoreError, TooManyFiles, Unavailable
from ebla.metadata.server.copies import MetadataCopies
from ebla.metadata.server.metadata_store import MetadataStore
from ebla.retry import RACES
from ebla.storage.files.files import Files
from ebla.storage.files.local_files import LocalFiles

__all__ = ["copy_names", "record_places", "recorded_places", "stores_at"]

NODE = "metadata"
MARK = "ebla-metadata"

_log = logging.getLogger(__name__)


class _Mark(msgspec.Struct, frozen=True):
    cluster: str
    number: int


def recorded_places(coordination: CoordinationService) -> tuple[str, ...]:
    """Return the further directories of a store; none if METADATA is in its own alone."""
    node = coordination.read(NODE)
    if node is None:
        return ()
    try:
        return msgspec.json.decode(node.value, type=tuple[str, ...])
    except msgspec.MsgspecError as error:
        raise Corruption(NODE, f"the directories of METADATA cannot be read: {error}") from error


def record_places(coordination: CoordinationService, cluster: str, given: Sequence[str | Path]) -> None:
    """Let a store keep METADATA in these directories from now on, which are made and marked as its own.

    They may be others than before, and more; `RequestError` if they are fewer or belong to another store.
    """
    places = tuple(str(Path(place).absolute()) for place in given)
    if len(set(places)) != len(places):
        raise RequestError("each directory of METADATA is named once")
    for _ in RACES:
        known = recorded_places(coordination)
        if len(places) < len(known):
            raise RequestError(f"METADATA is kept in {len(known)} further directories: name as many, or more")
        for number, place in enumerate(places, 2):
            _mark(LocalFiles(place), _Mark(cluster, number))
        if places == known:
            return
        value = msgspec.json.encode(places)
        node = coordination.read(NODE)
        try:
            coordination.put(NODE, value, None if node is None else node.version)
        except CoordinationConflict:
            continue
        return
    raise Unavailable("the directories of METADATA could not be recorded: try again")


def _mark(files: LocalFiles, mark: _Mark) -> None:
    try:
        if files.exists(MARK):
            found = _read_mark(files)
            if found != mark:
                raise RequestError(
                    f"{files.root} is a METADATA directory of another store, or another one of this: name those of "
                    "this store, in the order in which they were named first"
                )
            return
        with files.create(MARK) as file:
            file.write(msgspec.json.encode(mark))
            file.sync()
        files.sync_directory("")
    except TooManyFiles:
        raise
    except OSError as error:
        raise StoreError(f"{files.root} cannot be written: {error}: choose another directory for METADATA") from error


def _read_mark(files: LocalFiles) -> _Mark:
    try:
        return msgspec.json.decode(files.read(MARK), type=_Mark)
    except msgspec.MsgspecError as error:
        raise Corruption(f"{files.root}/{MARK}", f"it does not say whose directory it is: {error}") from error


def copy_names(own: str, places: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all metadata servers: that of the store's own directory, then those of the further ones."""
    return (own, *(f"copy-{number}" for number in range(2, len(places) + 2)))


def stores_at(
    coordination: CoordinationService, files: Files, cluster: str, own: str, snapshot_every: int = 32
) -> MetadataStore:
    """Return METADATA of a store from wherever it is kept: a `MetadataCopies` if there are several directories."""
    places = recorded_places(coordination)
    if not places:
        return MetadataStore(files, snapshot_every)
    names = copy_names(own, places)
    stores = {own: MetadataStore(files, snapshot_every)}
    for number, (name, place) in enumerate(zip(names[1:], places, strict=True), 2):
        further = LocalFiles(place)
        try:
            if _read_mark(further) == _Mark(cluster, number):
                stores[name] = MetadataStore(further, snapshot_every)
                continue
            reason = "it belongs to another store"
        except TooManyFiles:
            raise
        except (OSError, Corruption) as error:
            reason = str(error)
        _log.warning("METADATA is not kept in %s now: %s: mount it, or see docs/operations.md", place, reason)
    return MetadataCopies(stores, len(names), snapshot_every)
