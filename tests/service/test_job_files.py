"""The names of files that jobs write."""

from __future__ import annotations

import uuid

import pytest

from ebla.errors import RequestError
from ebla.service.job_files import check_job, job_of, new_file


def test_a_job_is_not_taken_for_one_whose_id_begins_like_its_own() -> None:
    for job in ("a", "a-b", f"a-{uuid.uuid4()}", "x.y_z"):
        assert job_of(new_file("t", job)) == job
    assert job_of(f"fragments/t/{uuid.uuid4()}.parquet") is None


@pytest.mark.parametrize("job", ["", "a/b", "-a", ".a", "a b", "é", "x" * 129, None, "~"])
def test_ids_that_cannot_be_part_of_a_file_name_are_refused(job: str) -> None:
    with pytest.raises(RequestError, match="cannot be the id of a job"):
        check_job(job)
