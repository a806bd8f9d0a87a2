"""What one task of a compaction does: sections of merges in, fragments out, and one line about each.

    section --> Reader on the fragments --> tablet.merging.merge --> files of the job --> SectionResult

Every attempt writes files of its own and names them in its results; what an attempt that failed, or lost, has written
is never named. A fragment that is not there any more was replaced by somebody else: that is no failure, but a merge
that has to be planned anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from ebla.errors import Corruption, MissingFile, StoreError, TooManyFiles
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.model.keys import KeyCodec
from ebla.model.schema import TableSchema, decode_hook
from ebla.pipeline.care.compact_plan import PlannedMerge, Section
from ebla.pipeline.spark.failures import plain_errors
from ebla.pipeline.spark.worker import numbers_of
from ebla.service.job_files import new_file
from ebla.storage.cache.block_cache import BlockCache
from ebla.storage.files.files import Files
from ebla.storage.files.local_files import LocalFiles
from ebla.storage.fragment.fragment_reader import OpenFragments
from ebla.tablet.read.reader import Reader
from ebla.tablet.read.scopes import ScopedOutput
from ebla.tablet.upkeep.merging import merge, merged_references, new_output

__all__ = ["RESULT_SCHEMA", "CompactTask", "SectionResult", "decode_result"]

RESULT_SCHEMA = "result binary"
OPEN_FILES_MAX = 256


class SectionResult(msgspec.Struct, frozen=True):
    """What became of a section, by the number of its portion and its place in it.

    `missing` says that an input is gone, `damaged` which file cannot be read and why.
    """

    portion: int
    place: int
    added: tuple[FragmentRef, ...] = ()
    records_read: int = 0
    missing: bool = False
    damaged: tuple[str, str] | None = None


def decode_result(packed: bytes) -> SectionResult:
    """Return the result that a task sent."""
    return msgspec.msgpack.decode(packed, type=SectionResult)


@dataclass(frozen=True)
class CompactTask:
    """The work of every task of a compaction: plain values, sent to wherever it runs."""

    root: str
    table_id: str
    schema: bytes
    job: str
    file_bytes_max: int
    merges: tuple[PlannedMerge, ...]
    portions: tuple[tuple[Section, ...], ...]

    def attempt(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Carry out the portions whose numbers Spark brings."""
        with plain_errors():
            for number in numbers_of(batches):
                results = self.run(number, LocalFiles(self.root))
                packed = [msgspec.msgpack.encode(result) for result in results]
                yield pa.record_batch({"result": pa.array(packed, pa.binary())})

    def run(self, portion: int, files: Files) -> list[SectionResult]:
        """Merge all sections of a portion."""
        schema = msgspec.msgpack.decode(self.schema, type=TableSchema, dec_hook=decode_hook)
        codec = KeyCodec(schema.key)
        reader = Reader(OpenFragments(files, BlockCache(0), OPEN_FILES_MAX), codec, schema)
        outputs: list[ScopedOutput] = []
        results = []
        try:
            for place, section in enumerate(self.portions[portion]):
                one = self.merges[section.merge]
                group = schema.group_by_id[one.group]
                output = new_output(
                    one.merge, files, self._new_path, self.table_id, schema, group, codec, self.file_bytes_max
                )
                outputs.append(output)
                try:
                    records_read = merge(one.merge, group, section.share, reader, output)
                except MissingFile:
                    output.abandon()
                    results.append(SectionResult(portion, place, missing=True))
                except Corruption as error:
                    output.abandon()
                    results.append(SectionResult(portion, place, damaged=(error.file, error.reason)))
                else:
                    added = merged_references(one.merge, group, schema, output.finish())
                    results.append(SectionResult(portion, place, added, records_read))
        except BaseException as error:
            for output in outputs:
                output.abandon()
            if isinstance(error, OSError) and not isinstance(error, TooManyFiles):
                raise StoreError(f"cannot write a fragment: {error}; free space, then run the job again") from error
            raise
        return results

    def _new_path(self) -> str:
        return new_file(self.table_id, self.job)
