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

from ebla.direct.compacting import Merger
from ebla.direct.files import Files, LocalFiles
from ebla.direct.fragments import unpack_schema
from ebla.errors import Corruption, MissingFile, StoreError, TooManyFiles
from ebla.metadata.values.table_metadata import FragmentRef
from ebla.pipeline.care.compact_plan import PlannedMerge, Section
from ebla.pipeline.spark.failures import plain_errors
from ebla.pipeline.spark.worker import numbers_of
from ebla.service.job_files import new_file

__all__ = ["RESULT_SCHEMA", "CompactTask", "SectionResult", "decode_result"]

RESULT_SCHEMA = "result binary"


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
        merger = Merger(files, self.table_id, unpack_schema(self.schema), self._new_path, self.file_bytes_max)
        results = []
        try:
            for place, section in enumerate(self.portions[portion]):
                one = self.merges[section.merge]
                try:
                    added, records_read = merger.merge(one.merge, one.group, section.share)
                except MissingFile:
                    results.append(SectionResult(portion, place, missing=True))
                except Corruption as error:
                    results.append(SectionResult(portion, place, damaged=(error.file, error.reason)))
                else:
                    results.append(SectionResult(portion, place, added, records_read))
        except BaseException as error:
            merger.abandon()
            if isinstance(error, OSError) and not isinstance(error, TooManyFiles):
                raise StoreError(f"cannot write a fragment: {error}; free space, then run the job again") from error
            raise
        return results

    def _new_path(self) -> str:
        return new_file(self.table_id, self.job)
