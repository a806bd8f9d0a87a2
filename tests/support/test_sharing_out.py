"""Tests that need the same server stay in one process."""

from __future__ import annotations

from tests.support.sharing_out import scope_of


def test_what_needs_a_server_stays_together_and_the_rest_goes_anywhere() -> None:
    assert scope_of("tests/pipeline/loading/test_load.py::test_x[1]") == "spark"
    assert scope_of("tests/cli/upkeep/test_backup_command.py::test_x") == "spark"
    assert scope_of("tests/local_cluster/test_local_cluster.py::test_x") == "cluster"
    assert scope_of("tests/coordination/test_zookeeper_coordination.py::test_x") == "zookeeper"
    assert scope_of("tests/contract/test_coordination_contract.py::test_x[zookeeper]") == "zookeeper"
    assert scope_of("tests/contract/test_coordination_contract.py::test_x[sqlite]").endswith("[sqlite]")
