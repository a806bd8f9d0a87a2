"""The forms in which rows go in and out, by the names that options take."""

from __future__ import annotations

from enum import StrEnum


class FileFormat(StrEnum):
    """What a file of rows holds."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


class RowFormat(StrEnum):
    """How rows are printed."""

    table = "table"
    jsonl = "jsonl"
    csv = "csv"
