"""The names of files that jobs write: whose a file is can be told from its name."""

from __future__ import annotations

import re
import uuid

from ebla.arguments import plain_text
from ebla.errors import RequestError, shown

__all__ = ["check_job", "job_of", "new_file"]

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# The length of the part behind the job is fixed, so that no job's files are taken for those of "job-something".
_FILE = re.compile(r"(.+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")


def check_job(job: str) -> str:
    """Return `job` if it can be the id of one: it becomes part of file names."""
    job = plain_text(job)
    if not isinstance(job, str) or not _JOB.fullmatch(job):
        raise RequestError(f"{shown(job)} cannot be the id of a job: use up to 128 letters, digits, '_', '-' and '.'")
    return job


def new_file(table_id: str, job: str) -> str:
    """Return the path of another file of a job, a name that was never given out before."""
    return f"fragments/{table_id}/{job}-{uuid.uuid4()}.parquet"


def job_of(path: str) -> str | None:
    """Return the job that a fragment file belongs to by its name; None if it was not written by one."""
    found = _FILE.fullmatch(path.rpartition("/")[2])
    return None if found is None else found[1]
