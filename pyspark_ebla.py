"""Where Spark finds ``format("ebla")`` by itself: in modules whose names begin with ``pyspark_``."""

from ebla.pipeline.spark_format import EblaSource as DefaultSource

__all__ = ["DefaultSource"]
