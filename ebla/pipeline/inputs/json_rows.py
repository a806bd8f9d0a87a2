"""Rows of JSON files: objects whose values are not looked at yet, one a line, or all of a file together.

Numbers keep their text until the type of their column is known, so that no digit of them gets lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ebla.pipeline.inputs.input_files import InputFiles
from ebla.pipeline.inputs.json_types import empty_as_text, merged, type_of
from ebla.settings import MIB

__all__ = ["FAMILY", "NO_CELLS", "cells_of", "json_names", "json_rows", "json_types_of", "json_value"]

BLOCK_BYTES = MIB
PORTION_ROWS = 16_384
# The type of a column that holds the cells of a family.
FAMILY = pa.map_(pa.string(), pa.string())
_ROW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ROWS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
NO_CELLS: dict[str, str] = {}


def json_rows(path: Path, files: InputFiles) -> Iterator[list[tuple[bytes, dict[str, msgspec.Raw] | None]]]:
    """Yield rows by portions, each with its line; None for a line that is no object."""
    rows: list[tuple[bytes, dict[str, msgspec.Raw] | None]] = []
    with pa.input_stream(str(path), compression="detect") as source:
        if files.multiline:
            yield _whole_rows(source.read())
            return
        for line in _lines(source):
            try:
                rows.append((line, _ROW.decode(line)))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                rows.append((line, None))
            if len(rows) == PORTION_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows


def _whole_rows(text: bytes) -> list[tuple[bytes, dict[str, msgspec.Raw] | None]]:
    """Return the rows of a file that is one object, or one array of them."""
    try:
        if text.lstrip().startswith(b"["):
            return [(b"", row) for row in _ROWS.decode(text)]
        return [(text, _ROW.decode(text))]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return [(text, None)]


def _lines(source: Any) -> Iterator[bytes]:
    """Yield the lines that have something in them, of a source that is read a block at a time."""
    left = b""
    is_first = True
    while block := source.read(BLOCK_BYTES):
        if is_first:
            block, is_first = block.removeprefix(b"\xef\xbb\xbf"), False
        *lines, left = (left + block).split(b"\n")
        yield from (line for line in map(bytes.strip, lines) if line)
    if left.strip():
        yield left.strip()


def json_names(path: Path, files: InputFiles) -> Iterator[str]:
    """Yield the names of all values of all rows."""
    for rows in json_rows(path, files):
        for _, row in rows:
            yield from row or ()


def json_types_of(paths: Sequence[Path], files: InputFiles) -> list[tuple[str, pa.DataType]]:
    """Return the columns by their names, with the types that hold all of their values."""
    types: dict[str, pa.DataType] = {}
    for path in paths:
        for rows in json_rows(path, files):
            for _, row in rows:
                for name, raw in (row or {}).items():
                    types[name] = merged(types.get(name, pa.null()), type_of(msgspec.json.decode(raw)))
    return [(name, empty_as_text(types[name])) for name in sorted(types)]


def json_value(raw: bytes, kind: pa.DataType) -> Any:
    """Return a JSON value for a column: text where that is not known better, an object of texts, or what has parts."""
    if raw == b"null":
        return None
    if pa.types.is_map(kind):
        return [(name, json_value(bytes(one), pa.string())) for name, one in _ROW.decode(raw).items()]
    if pa.types.is_nested(kind):
        return pa.scalar(msgspec.json.decode(raw), kind).as_py()
    return msgspec.json.decode(raw) if raw.startswith(b'"') else raw.decode()


def cells_of(text: str | None) -> Any:
    """Return the cells of a family that a text has as a JSON object; None if it is no object."""
    if text is None:
        return NO_CELLS
    try:
        return json_value(text.encode(), FAMILY)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
