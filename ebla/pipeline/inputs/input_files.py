"""The files of a load: which they are, what they hold, and how much there is. Nothing of them is read.

paths, directories, patterns --> files in their order --> csv, json, parquet or orc, by their names
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ebla.errors import RequestError, UnknownColumn
from ebla.model.schema import TableSchema

__all__ = ["CORRUPT", "FORMATS", "FileFormat", "InputFiles", "check_files", "format_of"]

FileFormat = Literal["csv", "json", "parquet", "orc"]

FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)
_SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".orc": "orc",
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".zlib", ".deflate", ".xz")
# What Spark's readers call the column with lines that they could not read, and so does everybody here.
CORRUPT = "_corrupt_record"


class OnlySpark(RequestError):
    """Paths that Spark may be able to read, and this process is not."""


@dataclass(frozen=True)
class InputFiles:
    """Files to load. Without a `format`, their names tell it.

    `header` and `delimiter` are for CSV; without a header, the columns are those of the table in their order. With
    `multiline`, a value of CSV, or a row of JSON, may go over several lines.
    """

    paths: Sequence[str]
    format: FileFormat | None = None
    header: bool = True
    delimiter: str | None = None
    multiline: bool = False

    @property
    def kind(self) -> FileFormat:
        """What the files hold."""
        if self.format is not None and self.format not in FORMATS:
            raise RequestError(f"format is one of {', '.join(FORMATS)}, not {self.format!r}")
        return self.format or format_of(self.paths)

    @property
    def separator(self) -> str:
        """What stands between the values of CSV."""
        return self.delimiter or ("\t" if all(path.endswith(".tsv") for path in self.paths) else ",")

    def bytes(self) -> int | None:
        """Return how many bytes the files have; None if only Spark can tell."""
        if any(is_elsewhere(path) or "{" in path for path in self.paths):
            return None
        try:
            return sum(path.stat().st_size for path in self.files())
        except OnlySpark:
            return None

    def files(self) -> list[Path]:
        """Return the files, in the order of the paths and of their names; `RequestError` if there are none."""
        check_files(self.paths)
        found: list[Path] = []
        for given in self.paths:
            if is_elsewhere(given):
                raise OnlySpark(f"{given} is not a path of this machine: load it with Spark, or fetch it first")
            path = Path(given)
            if path.is_dir():
                found += [inside for inside in sorted(path.rglob("*")) if inside.is_file() and _is_data(inside, path)]
            elif path.exists():
                found.append(path)
            else:
                found += [Path(one) for one in sorted(glob.glob(given, recursive=True)) if Path(one).is_file()]
        if not found:
            raise RequestError(f"there are no files in {', '.join(self.paths)}: check the paths")
        return found


def _is_data(path: Path, directory: Path) -> bool:
    """Tell whether a file in a directory holds rows, and is no mark or draft of whoever wrote it."""
    parts = path.relative_to(directory).parts
    if any("=" in part for part in parts[:-1]):
        raise OnlySpark(f"{path.parent} has a column in its name, which only Spark reads: load it with Spark")
    return not any(part.startswith(("_", ".")) for part in parts)


def check_files(paths: Sequence[str]) -> None:
    """Raise `RequestError` for the first path of this machine that is not there; of other places, Spark knows."""
    if not paths:
        raise RequestError("name at least one file to load")
    for path in paths:
        if not is_elsewhere(path) and not any(char in path for char in "*?[{") and not Path(path).exists():
            raise RequestError(f"there is no file {path}: check the path")


def is_elsewhere(path: str) -> bool:
    """Tell whether a path is not one of this machine's: then only Spark knows what is there."""
    return "://" in path or path.startswith("file:")


def format_of(paths: Sequence[str]) -> FileFormat:
    """Return the format that the names of the files tell; of a directory, the names of the files in it."""
    found = {_format_of_name(name) for path in paths for name in _names(path)} - {None}
    if len(found) == 1:
        return found.pop()  # type: ignore[return-value]
    named = ", ".join(str(one) for one in sorted(map(str, found)))
    said = f"the files have several formats ({named})" if found else "the names of the files do not tell their format"
    raise RequestError(f"{said}: give one of {', '.join(FORMATS)}")


def _names(path: str) -> list[str]:
    if not is_elsewhere(path) and Path(path).is_dir():
        inside = [found.name for found in sorted(Path(path).rglob("*")) if found.is_file()]
        return [name for name in inside if not name.startswith(("_", "."))]
    return [path.rstrip("/").rpartition("/")[2]]


def _format_of_name(name: str) -> FileFormat | None:
    stem = name.lower()
    for suffix in _COMPRESSED:
        stem = stem.removesuffix(suffix)
    return next((kind for suffix, kind in _SUFFIXES.items() if stem.endswith(suffix)), None)


def names_in_order(schema: TableSchema, count: int) -> list[str]:
    """Return the names of so many columns without a header: those of the table, in its order."""
    names = [*schema.key_names, *(column.name for group in schema.groups for column in group.columns)]
    if count > len(names):
        raise RequestError(f"the files have {count} columns and the table {len(names)}: give files with a header")
    return names[:count]


def is_family(name: str, schema: TableSchema) -> bool:
    """Tell whether a column of that name holds whole families of cells, an object each."""
    try:
        target = schema.resolve(name)
    except UnknownColumn:
        return False
    return target.family is not None and target.qualifier is None
