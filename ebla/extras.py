"""Packages that Ebla does without until somebody asks for what they do, and the extras that bring them.

    pandas, polars    ebla[frames]       frames out of scans
    pyspark           ebla[spark]        bulk work by many tasks
    kazoo             ebla[zookeeper]    a store that several hosts see
    cryptography      ebla[tls]          certificates of the processes of a cluster

Whoever needs one imports it inside `needing`, at the moment of the call: so it is missed by those only who use it, and
they are told what to install. A module that is missing inside a package that is there stays as it was raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ebla.errors import MissingExtra

__all__ = ["EXTRAS", "needing"]

EXTRAS = {"pandas": "frames", "polars": "frames", "pyspark": "spark", "kazoo": "zookeeper", "cryptography": "tls"}


@contextmanager
def needing(package: str, what: str) -> Iterator[None]:
    """Raise `MissingExtra`, which says what to install, if an import inside does not find the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtra) or (error.name or "").partition(".")[0] != package:
            raise
        raise missing(package, what) from error


def missing(package: str, what: str) -> MissingExtra:
    """Return the error for a package that is not installed."""
    return MissingExtra(f'{what} needs {package}, which is not installed: pip install "ebla[{EXTRAS[package]}]"')
