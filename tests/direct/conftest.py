"""Stores for the tests of direct access: those of the pipeline."""

from __future__ import annotations

from tests.pipeline.conftest import db, root

__all__ = ["db", "root"]
