"""A cluster of real processes on this host: up, used, hurt, looked at, down, and up again with all that it had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ebla
from ebla.errors import OutcomeUnknown, RequestError, StoreNotFound, Unavailable
from ebla.local_cluster.cluster_file import ClusterFile, ClusterProcess, as_it_runs, is_running, read_cluster
from ebla.local_cluster.local_cluster import describe
from ebla.rpc.trust import is_listened_at
from tests.cluster.checked_load import CheckedLoad

SCHEMA = ebla.Schema(key={"k": "int64"}, groups=[ebla.Group("g", columns={"v": "string"})])


def command(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ebla", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def wait_until(is_so: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.05)


class Running:
    """A cluster in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def file(self) -> ClusterFile:
        return read_cluster(self.directory)

    def leader(self) -> ClusterProcess:
        """The master that leads."""
        from ebla.errors import EblaError
        from ebla.rpc.channel import Channel
        from ebla.rpc.wire.messages import SERVICE_METHODS, ListTables

        for process in self.file.of("master"):
            with Channel(SERVICE_METHODS, process.address) as channel:
                try:
                    channel.call(ListTables(), timeout_seconds=2)
                    return process
                except EblaError:
                    continue
        raise LookupError("no master leads")

    def has_other_leader(self, former: ClusterProcess) -> bool:
        try:
            return self.leader() != former
        except LookupError:
            return False

    def kill(self, process: ClusterProcess) -> None:
        """Kill whatever runs with the directory of a process now."""
        for found in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if f"--data\0{process.data}\0".encode() in found.read_bytes():
                    os.kill(int(found.parent.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue

    def restart(self, process: ClusterProcess) -> None:
        """Start a process that was killed again, with its directory; it is found where it is then."""
        data = Path(process.data)
        arguments = ["--root", self.file.root, "--coordination", self.file.coordination]
        port = process.address.rpartition(":")[2]
        log = (data.parent / f"{data.name}.log").open("ab")
        subprocess.Popen(
            [sys.executable, "-m", "ebla", process.role, "--data", str(data), *arguments, "--port", port],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("local") / "cluster"
    told = command("up", "--servers", "2", "--masters", "3", "--data", str(directory))
    running = Running(directory)
    assert running.file.address in told
    try:
        yield running
    finally:
        for process in running.file.processes:
            running.kill(process)


@pytest.fixture
def db(cluster: Running) -> Iterator[ebla.Database]:
    with ebla.connect(cluster.directory / "cluster.json") as connected:
        yield connected


def test_up_returns_when_the_cluster_serves_and_names_every_process(cluster: Running) -> None:
    file = cluster.file
    assert [process.role for process in file.processes] == ["master"] * 3 + ["tablet-server"] * 2
    assert all(is_running(process) for process in file.processes)
    assert all(Path(process.data).is_dir() for process in file.processes)
    assert len({process.uuid for process in file.processes}) == 5
    assert file.address == file.processes[0].address
    assert describe(file)["problems"] == []


def test_tables_are_made_written_and_read_through_any_way_to_connect(cluster: Running) -> None:
    with ebla.connect(cluster.file.address) as db:
        db.create_table("t", SCHEMA, splits=[50]).put([{"k": k, "v": str(k)} for k in range(100)])
    for address in (cluster.file.masters, cluster.directory, str(cluster.directory / "cluster.json")):
        with ebla.connect(address) as db:
            assert db.table("t").scan().count() == 100
            assert db.table("t").get(77) == {"k": 77, "v": "77"}


def test_a_second_up_in_the_same_directory_is_refused(cluster: Running) -> None:
    command("up", "--data", str(cluster.directory), code=2)


def test_status_tells_of_servers_tables_and_tablets(cluster: Running, db: ebla.Database) -> None:
    told = json.loads(command("status", "--json", "--store", str(cluster.directory)))
    assert told["problems"] == []
    assert sum(server["leads"] for server in told["servers"].values()) >= 2
    assert len(told["tables"]["t"]["tablets"]) == 2
    text = command("status", "--data", str(cluster.directory))
    assert "tablet-server" in text
    assert "nothing is known to be wrong" in text


def test_tablets_of_a_killed_server_are_served_by_the_other_with_all_that_was_acknowledged(
    cluster: Running, db: ebla.Database
) -> None:
    table = db.create_table("killed", SCHEMA, splits=[50])
    table.put([{"k": k, "v": "before"} for k in range(100)])
    victim = cluster.file.of("tablet-server")[0]
    cluster.kill(victim)
    assert table.scan().count() == 100
    table.put([{"k": k, "v": "after"} for k in range(100, 110)])
    assert table.scan().count() == 110
    told = command("status", "--data", str(cluster.directory), code=6)
    assert "does not run" in told
    cluster.restart(victim)
    wait_until(lambda: describe(cluster.file)["problems"] == [])
    assert table.scan().count() == 110


def test_another_master_leads_when_the_leading_one_is_killed(cluster: Running, db: ebla.Database) -> None:
    leader = cluster.leader()
    cluster.kill(leader)
    wait_until(lambda: cluster.has_other_leader(leader))
    db.create_table("made-by-the-next", SCHEMA).put({"k": 1, "v": "x"})
    assert db.table("t").get(7) == {"k": 7, "v": "7"}
    cluster.restart(leader)
    assert db.table("made-by-the-next").scan().count() == 1


def test_what_clients_are_told_holds_while_the_masters_are_killed_one_after_the_other(
    cluster: Running, db: ebla.Database
) -> None:
    wait_until(lambda: describe(cluster.file)["problems"] == [])
    load = CheckedLoad(db, name="masters")
    load.start()
    load.wait_for(50)
    for _ in range(2):
        leader = cluster.leader()
        cluster.kill(leader)
        load.wait_for(50)  # rows need no master
        wait_until(lambda leader=leader: cluster.has_other_leader(leader))  # type: ignore[misc]
        db.alter_table("masters-chains", add_columns={f"more{leader.pid}": "int64"})
        cluster.restart(leader)
        load.wait_for(50)
    load.stop()
    load.check()


def test_without_a_majority_of_masters_rows_are_served_and_nothing_is_changed(cluster: Running) -> None:
    with ebla.connect(cluster.directory / "cluster.json", timeout_seconds=3) as db:
        table = db.table("t")
        for process in cluster.file.of("master")[:2]:
            cluster.kill(process)
        table.put({"k": 7, "v": "7"})
        assert table.get(7) == {"k": 7, "v": "7"}
        with pytest.raises((Unavailable, OutcomeUnknown)):
            db.create_table("never-made", SCHEMA)
    for process in cluster.file.of("master")[:2]:
        cluster.restart(process)
    wait_until(lambda: any(is_listened_at(process.address) for process in cluster.file.of("master")))
    with ebla.connect(cluster.directory / "cluster.json") as db:
        wait_until(lambda: _can_change(db))
        assert "never-made" not in db.tables()


def _can_change(db: ebla.Database) -> bool:
    try:
        db.rename_table("t", "u")
        db.rename_table("u", "t")
    except (Unavailable, OutcomeUnknown):
        return False
    return True


def test_up_starts_what_does_not_run_and_what_was_started_by_hand_is_known(cluster: Running) -> None:
    master, server = cluster.file.of("master")[2], cluster.file.of("tablet-server")[0]
    for process in (master, server):
        cluster.kill(process)
        wait_until(lambda process=process: not is_running(process))  # type: ignore[misc]
    command("up", "--servers", "5", "--data", str(cluster.directory), code=2)
    # Another one that tests have started again may have ended, if its port was taken meanwhile.
    missing = {process.uuid for process in cluster.file.processes if not is_running(as_it_runs(process))}
    assert {master.uuid, server.uuid} <= missing
    told = command("up", "--data", str(cluster.directory))
    assert told.count("started again: ") == len(missing)
    (again,) = (one for one in cluster.file.processes if one.data == server.data)
    assert (again.uuid, again.address) == (server.uuid, server.address)
    assert again.pid != server.pid
    assert all(map(is_running, cluster.file.processes))
    command("up", "--data", str(cluster.directory), code=2)  # all of them run

    cluster.kill(again)
    wait_until(lambda: not is_running(again))
    assert as_it_runs(again) == again
    cluster.restart(again)
    wait_until(lambda: is_running(as_it_runs(again)))
    assert as_it_runs(again).pid != again.pid
    wait_until(lambda: describe(cluster.file)["problems"] == [])
    told = json.loads(command("status", "--data", str(cluster.directory), "--json"))
    assert as_it_runs(again).pid in [process["pid"] for process in told["processes"]]


def test_a_process_that_names_its_directory_from_where_it_is_is_known(tmp_path: Path) -> None:
    (tmp_path / "server-1").mkdir()
    waiting = [sys.executable, "-c", "input()", "--data", "server-1"]
    with subprocess.Popen(waiting, cwd=tmp_path, stdin=subprocess.PIPE) as started:
        found = ClusterProcess("tablet-server", "7c9e", "127.0.0.1:1", str(tmp_path / "server-1"), started.pid)
        wait_until(lambda: is_running(found))
        assert not is_running(ClusterProcess("tablet-server", "51bb", "", str(tmp_path / "server-2"), started.pid))
        started.communicate(b"\n")
    assert not is_running(found)


def test_the_port_is_the_one_of_before(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    place = str(tmp_path / "c")
    command("up", "--data", place, "--port", port)
    command("down", "--data", place)
    try:
        assert f"127.0.0.1:{port}" in command("up", "--data", place)
    finally:
        command("down", "--data", place)


def test_down_stops_all_and_the_next_up_has_everything(cluster: Running, db: ebla.Database) -> None:
    db.create_table("kept", SCHEMA).put([{"k": k, "v": "kept"} for k in range(10)])
    db.close()
    processes = cluster.file.processes
    for process in processes:  # those that were restarted are not those of the file
        if not is_running(process):
            cluster.kill(process)
    assert "down" in command("down", "--data", str(cluster.directory))
    assert not any(is_running(process) for process in processes)
    command("down", "--data", str(cluster.directory), code=4)  # it is down
    command("up", "--masters", "1", "--data", str(cluster.directory), code=2)  # no majority of those that keep METADATA
    command("up", "--data", str(cluster.directory))
    assert len(cluster.file.processes) == 5, "as many as before"
    with ebla.connect(cluster.directory) as again:
        assert again.table("kept").scan().count() == 10
        assert again.table("killed").scan().count() == 110


def test_a_directory_without_a_cluster_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="ebla up"):
        read_cluster(tmp_path)
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(RequestError, match="cannot be read"):
        read_cluster(tmp_path)


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = command("up", "--data", str(tmp_path / "c"), "--port", str(taken.getsockname()[1]), code=6)
    assert told == ""
    assert not (tmp_path / "c" / "cluster.json").exists()


def those_of(directory: Path) -> dict[int, str]:
    """Return the command lines of all processes that name something in a directory, by their numbers."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes()
        except OSError:  # it ended
            continue
        if f"{directory}/".encode() in line:
            found[int(file.parent.name)] = line.replace(b"\0", b" ").decode()
    return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Return a directory for a cluster, of which nothing runs in the end."""
    yield tmp_path / "c"
    for number in those_of(tmp_path / "c"):
        os.kill(number, signal.SIGKILL)


def test_a_cluster_with_zookeeper_comes_up_again_with_its_rows_its_users_and_its_zookeeper(place: Path) -> None:
    command("up", "--data", str(place), "--zookeeper", "--auth")
    first = read_cluster(place)
    assert [process.role for process in first.processes] == ["zookeeper", "master", "tablet-server"]
    assert first.coordination.startswith("zk://")
    token = (place / "admin.token").read_text()
    with ebla.connect(place) as db:
        db.create_table("t", SCHEMA).put([{"k": k, "v": str(k)} for k in range(100)])
    command("down", "--data", str(place))
    assert those_of(place) == {}
    command("user", "list", "--data", str(place), code=4)  # they are in the ZooKeeper, which is down

    command("up", "--data", str(place))
    again = read_cluster(place)
    assert [(one.role, one.uuid) for one in again.processes] == [(one.role, one.uuid) for one in first.processes]
    assert not (place / "root" / "coordination.sqlite").exists()
    assert (place / "admin.token").read_text() == token
    with ebla.connect(place) as db:
        table = db.table("t")
        assert [row["v"] for row in table.scan()] == [str(k) for k in range(100)]
        table.put({"k": 100, "v": "100"})
        assert table.count() == 101
    command("down", "--data", str(place))
    assert those_of(place) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_in_the_foreground_stops_the_whole_cluster_when_it_is_told_to_end(
    place: Path, number: signal.Signals
) -> None:
    arguments = [sys.executable, "-m", "ebla", "up", "--servers", "2", "--data", str(place), "--foreground"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True) as shown:
        try:
            assert shown.stdout is not None
            assert shown.stdout.readline().startswith("up: 1 master(s), 2 tablet server(s)")
            with ebla.connect(place) as db:
                db.create_table("t", SCHEMA).put({"k": 1, "v": "one"})
            os.killpg(shown.pid, number)  # as a terminal does on Ctrl-C: to all that were started in it
            said, _ = shown.communicate(timeout=120)
        finally:
            shown.kill()
    assert (shown.returncode, said) == (0, ""), "nothing had to be killed"
    assert those_of(place) == {}
    command("up", "--data", str(place))
    with ebla.connect(place) as db:
        assert db.table("t").get(1) == {"k": 1, "v": "one"}
    command("down", "--data", str(place))
