from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.access.guarded import Guarded, guarded_cluster


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_cluster(tmp_path_factory.mktemp("guarded")) as cluster:
        yield cluster
