"""What Spark does of an export: it writes a DataFrame, in words that the format has, and counts the rows."""

from __future__ import annotations

import warnings
from pathlib import Path

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.types import ArrayType, BinaryType, DataType, DayTimeIntervalType, MapType, StructType

from ebla.pipeline.scanning.export_task import ExportFormat
from ebla.pipeline.scanning.scan import frame_of
from ebla.pipeline.scanning.sections import SectionPlan

__all__ = ["JSON_OPTIONS", "write_with_spark"]

_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_LOCAL_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_TEXT_OPTIONS = {"timestampFormat": _MOMENT, "timestampNTZFormat": _LOCAL_MOMENT, "timeZone": "UTC"}
JSON_OPTIONS = {**_TEXT_OPTIONS, "ignoreNullFields": "false"}
_OPTIONS: dict[str, dict[str, str]] = {
    "parquet": {},
    "csv": {
        **_TEXT_OPTIONS,
        "header": "true",
        "escape": '"',
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
    "json": JSON_OPTIONS,
}
# Spark's default is a type that Parquet gave up long ago.
_TIMESTAMP_SETTING = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def write_with_spark(planned: SectionPlan, spark: SparkSession, staging: Path, format: ExportFormat) -> int:
    """Have Spark write the rows of a planned scan; return how many there were."""
    with warnings.catch_warnings():
        # PySpark warns that pandas 3 is new to it. Only Arrow is moved here.
        warnings.simplefilter("ignore", FutureWarning)
        rows = _in_words(frame_of(planned, spark), format)
    return _write(rows, staging, format, spark)


def _in_words(rows: DataFrame, format: ExportFormat) -> DataFrame:
    """Return rows of which the format can write every column."""
    if format == "parquet":
        return rows
    columns = [_word(field.name, field.dataType, format) for field in rows.schema.fields]
    return rows.select(columns)


def _word(name: str, kind: DataType, format: ExportFormat) -> Column:
    quoted = f"`{name.replace('`', '``')}`"
    value = F.col(quoted)
    if isinstance(kind, DayTimeIntervalType):
        value = F.expr(f"{quoted} div interval '0.000001' second")
    elif format == "csv" and isinstance(kind, BinaryType):
        value = F.base64(value)
    elif format == "csv" and isinstance(kind, (ArrayType, MapType, StructType)):
        value = F.to_json(value, JSON_OPTIONS)
    return value.alias(name)


def _write(rows: DataFrame, staging: Path, format: ExportFormat, spark: SparkSession) -> int:
    """Have Spark write the rows; return how many there were."""
    counted = Observation()
    name, value = _TIMESTAMP_SETTING
    before = spark.conf.get(name) or value
    spark.conf.set(name, value)
    try:
        observed = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
        observed.write.format(format).options(**_OPTIONS[format]).mode("append").save(f"file://{staging}")
    finally:
        spark.conf.set(name, before)
    for entry in staging.iterdir():  # Hadoop's checksums and its mark of success: the manifest has both
        if not entry.name.startswith("part-"):
            entry.unlink()
    return int(counted.get["rows"])
