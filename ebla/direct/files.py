"""Files below a root: a store's own, and those of backups, which lie as in a store."""

from __future__ import annotations

from ebla.storage.files.files import FileInfo, Files, parent_of
from ebla.storage.files.local_files import LocalFiles

__all__ = ["FileInfo", "Files", "LocalFiles", "parent_of"]
