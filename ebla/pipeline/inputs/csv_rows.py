"""Rows of CSV files as texts: the names of columns, batches, and the types that all texts of a column are of.

Only an empty field without quotes is null; a line with too many or too few values is a row of which nothing but the
line is known (``_corrupt_record``). Files are read a block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from ebla.errors import RequestError
from ebla.pipeline.inputs.input_files import CORRUPT, InputFiles
from ebla.pipeline.inputs.text_parsing import type_of_texts
from ebla.settings import MIB

__all__ = ["csv_batches", "csv_names", "csv_types"]

BLOCK_BYTES = MIB


def csv_names(paths: Sequence[Path], files: InputFiles) -> list[str]:
    """Return the names of the columns: those of the first file, that all must have in the same order."""
    names = _names_of(paths[0], files)
    for path in paths[1:]:
        others = _names_of(path, files)
        if others != names and others:
            raise RequestError(
                f"{path} has the columns {', '.join(others[:20])}, and {paths[0]} has {', '.join(names[:20])}: "
                "load them one after the other"
            )
    return names


def _names_of(path: Path, files: InputFiles) -> list[str]:
    try:
        with _csv_reader(path, files, None, []) as reader:
            return list(reader.schema.names)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return []
        raise


def _csv_reader(
    path: Path, files: InputFiles, names: Sequence[str] | None, skipped: list[str]
) -> pacsv.CSVStreamingReader:
    def skip(row: Any) -> str:
        skipped.append(row.text or "")
        return "skip"

    return pacsv.open_csv(
        pa.input_stream(str(path), compression="detect"),
        read_options=pacsv.ReadOptions(
            column_names=None if names is None else list(names),
            skip_rows_after_names=0,
            skip_rows=1 if names is not None and files.header else 0,
            autogenerate_column_names=names is None and not files.header,
            block_size=BLOCK_BYTES,
            use_threads=False,
        ),
        parse_options=pacsv.ParseOptions(
            delimiter=files.separator, newlines_in_values=files.multiline, invalid_row_handler=skip
        ),
        # Everything is text. Only an empty field without quotes is null: "" is the empty text.
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(names or (), pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def csv_batches(path: Path, files: InputFiles, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows as texts, and lines with too many or too few values as corrupt ones."""
    skipped: list[str] = []
    try:
        reader = _csv_reader(path, files, names, skipped)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        raise
    with reader:
        for batch in reader:
            corrupt = pa.nulls(batch.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, corrupt], names=[*names, CORRUPT])
            yield from _corrupt_lines(skipped, names)
    yield from _corrupt_lines(skipped, names)


def _corrupt_lines(skipped: list[str], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if skipped:
        lines = pa.array(skipped, pa.string())
        skipped.clear()
        nothing = [pa.nulls(len(lines), pa.string()) for _ in names]
        yield pa.RecordBatch.from_arrays([*nothing, lines], names=[*names, CORRUPT])


def csv_types(paths: Sequence[Path], files: InputFiles) -> list[tuple[str, pa.DataType]]:
    """Return the columns, with the narrowest types that all of their texts are of."""
    if not files.header:
        raise RequestError("a new table needs names for its columns: give files with a header")
    names = csv_names(paths, files)
    types: dict[str, pa.DataType | None] = dict.fromkeys(names)
    for path in paths:
        for batch in csv_batches(path, files, names):
            for name in names:
                if types[name] != pa.string():  # which stays one
                    types[name] = _wider(types[name], type_of_texts(batch.column(name)))
    return [(name, types[name] or pa.string()) for name in names]


def _wider(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """Return the type of values of both types, by Spark's rules."""
    if one is None or other is None or one == other:
        return other if one is None else one
    both, moment = {one, other}, pa.timestamp("us", "UTC")
    if both == {pa.date32(), moment}:
        return moment
    numbers = [kind for kind in both if pa.types.is_integer(kind) or pa.types.is_decimal(kind)]
    if len(numbers) == len(both):
        return pa.decimal128(max(20, *(kind.precision for kind in numbers if pa.types.is_decimal(kind))), 0)
    return pa.float64() if all(kind in numbers or kind == pa.float64() for kind in both) else pa.string()
