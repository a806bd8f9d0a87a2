"""METADATA transactions: nothing committed is lost, nothing is committed twice, and unknown is not failed."""

from __future__ import annotations

import errno
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ebla.clock import SystemClock
from ebla.coordination.memory import Fault
from ebla.coordination.sqlite import FILE_NAME, SqliteCoordination
from ebla.errors import (
    Corruption,
    EblaError,
    MissingFile,
    OutcomeUnknown,
    SchemaError,
    TableExists,
    Unavailable,
    UnknownTable,
)
from ebla.metadata.server.metadata_store import MetadataNotSaved, MetadataStore
from ebla.metadata.values.changes import RecordJob, RequirementFailed
from ebla.metadata.values.table_config import TableEntry
from ebla.metadata.values.table_metadata import InvalidMetadata, initial_metadata
from ebla.retry import Retries
from ebla.storage.files.local_files import LocalFiles
from tests.metadata.metadata_world import (
    EVENTS,
    PROFILE,
    SCHEMA,
    TABLE,
    ServerOfTests,
    SimulatedCrash,
    World,
    files_of,
    flush,
    table,
)
from tests.support.simulated_files import FaultPlan


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def server(world: World) -> ServerOfTests:
    server = world.server()
    server.create_table("users", TABLE, table())
    return server


class Script:
    """Faults for the coming writes to the coordination service, one after the other."""

    def __init__(self, *faults: Fault | None) -> None:
        self.faults = list(faults)

    def __call__(self, name: str, paths: tuple[str, ...]) -> Fault | None:
        if name in ("read", "list", "watch"):
            return None
        return self.faults.pop(0) if self.faults else None


def stored(world: World) -> set[str]:
    return {info.path.rpartition("/")[2].removesuffix(".meta") for info in world.files.list(f"metadata/{TABLE}")}


# --- the plain way -------------------------------------------------------------------------------


def test_a_created_table_is_found_by_name_and_read_by_others(world: World, server: ServerOfTests) -> None:
    other = world.server()
    assert other.find("users") == TABLE
    assert other.list_tables() == [TableEntry("users", TABLE)]
    assert other.read(TABLE) == server.read(TABLE)
    assert other.read(TABLE).tablets == table().tablets
    assert other.directory.config(TABLE).metadata_servers == ("s0",)


def test_a_commit_is_seen_by_itself_at_once_and_by_others_after_refresh(world: World, server: ServerOfTests) -> None:
    other = world.server()
    before = other.read(TABLE)
    after = server.commit(TABLE, [flush("f", {"a": 1})])
    assert files_of(after) == {"f"}
    assert server.read(TABLE) == after
    assert other.read(TABLE) == before
    assert other.refresh(TABLE) == after
    assert other.read(TABLE) == after


def test_a_commit_of_nothing_changes_nothing(server: ServerOfTests) -> None:
    assert server.commit(TABLE, []) is server.read(TABLE)


def test_a_change_that_does_not_fit_is_refused_and_leaves_no_file(world: World, server: ServerOfTests) -> None:
    before, names = server.read(TABLE), stored(world)
    with pytest.raises(RequirementFailed, match="epoch"):
        server.commit(TABLE, [flush("f", {"a": 1}), flush("g", {"b": 1}, epoch=9)])
    assert server.refresh(TABLE) == before
    assert stored(world) == names


def test_many_transactions_can_be_loaded_from_few_files(world: World, server: ServerOfTests) -> None:
    for number in range(1, 40):
        server.commit(TABLE, [flush(f"f{number}", {"a": number})])
    assert world.server().read(TABLE) == server.read(TABLE)
    assert len(files_of(server.read(TABLE))) == 39
    assert len(stored(world)) <= 2 * 4 + 1


@pytest.mark.parametrize("name", ["", "a b", "META", "sys.tables", ".", "..", "a/b", None])
def test_a_name_that_no_table_may_have_is_refused(world: World, name: str) -> None:
    server = world.server()
    with pytest.raises(SchemaError):
        server.create_table(name, TABLE, table())
    with pytest.raises(UnknownTable):
        server.find(name)
    assert world.nodes.nodes == {}
    assert world.files.list(f"metadata/{TABLE}") == []


def test_a_name_is_given_once(world: World, server: ServerOfTests) -> None:
    other = initial_metadata("t2", SCHEMA, ["x"])
    with pytest.raises(TableExists, match="users"):
        world.server().create_table("users", "t2", other)
    with pytest.raises(InvalidMetadata):
        server.create_table("others", "t3", other)
    assert server.list_tables() == [TableEntry("users", TABLE)]


def test_of_two_that_create_a_name_at_once_one_wins(world: World) -> None:
    one, two = world.server(), world.server()

    def meanwhile(name: str, paths: tuple[str, ...]) -> None:
        if name == "multi":
            one.client.faults = None
            two.create_table("users", "t2", initial_metadata("t2", SCHEMA, ["x"]))

    one.client.faults = meanwhile
    with pytest.raises(TableExists):
        one.create_table("users", TABLE, table())
    assert one.find("users") == "t2"
    assert stored(world) == set()


def test_a_dropped_table_is_gone_and_its_name_is_free(world: World, server: ServerOfTests) -> None:
    other = world.server()
    other.read(TABLE)
    assert server.drop_table("users") == TABLE
    assert server.list_tables() == []
    for use in (
        lambda: server.find("users"),
        lambda: server.read(TABLE),
        lambda: server.drop_table("users"),
        lambda: other.refresh(TABLE),
        lambda: server.commit(TABLE, [RecordJob("j", 1)]),
    ):
        with pytest.raises(UnknownTable):
            use()
    assert server.directory.config(TABLE).state == "deleted"
    server.create_table("users", "t2", initial_metadata("t2", SCHEMA, ["x"]))
    assert server.find("users") == "t2"
    assert {table_id: config.state for table_id, config in server.directory.configs().items()} == {
        TABLE: "deleted",
        "t2": "running",
    }


def test_a_commit_to_a_table_that_somebody_else_dropped_is_refused(world: World, server: ServerOfTests) -> None:
    names = stored(world)
    world.server().drop_table("users")
    with pytest.raises(UnknownTable, match="dropped"):
        server.commit(TABLE, [RecordJob("j", 1)])
    assert stored(world) == names


def test_a_drop_goes_through_while_others_commit(world: World, server: ServerOfTests) -> None:
    other = world.server()
    commits = iter(range(3))

    def meanwhile(name: str, paths: tuple[str, ...]) -> None:
        if name == "multi" and (number := next(commits, None)) is not None:
            other.commit(TABLE, [RecordJob(f"j{number}", 1)])

    server.client.faults = meanwhile
    assert server.drop_table("users") == TABLE
    assert server.list_tables() == []


# --- races ---------------------------------------------------------------------------------------


def test_a_server_that_lost_a_race_builds_on_what_the_winner_made(world: World, server: ServerOfTests) -> None:
    other = world.server()
    other.read(TABLE)
    server.commit(TABLE, [flush("f", {"a": 1})])
    after = other.commit(TABLE, [flush("g", {"b": 1})])
    assert files_of(after) == {"f", "g"}
    assert server.refresh(TABLE) == after


def test_requirements_are_checked_again_after_a_lost_race(world: World, server: ServerOfTests) -> None:
    other = world.server()
    other.read(TABLE)
    server.commit(TABLE, [flush("f", {"a": 5})])
    names = stored(world)
    with pytest.raises(RequirementFailed, match="flushed to 5"):
        other.commit(TABLE, [flush("g", {"a": 3})])
    assert stored(world) == names


def test_a_refusal_on_old_metadata_is_not_believed(world: World, server: ServerOfTests) -> None:
    other = world.server()
    other.commit(TABLE, [RecordJob("job", 1)])
    other.read(TABLE)
    # The server knows nothing of the job: it would take it again, and must not.
    with pytest.raises(RequirementFailed, match="job"):
        server.commit(TABLE, [RecordJob("job", 1)])

    # And the other way round: what is refused on what the other remembers fits by now.
    server.drop_table("users")
    server.create_table("users", "t2", initial_metadata("t2", SCHEMA, ["a"]))
    for number in range(1024):
        server.commit("t2", [RecordJob(f"j{number}", 1)]) if number % 512 == 0 else None
    other.read("t2")
    server.commit("t2", [RecordJob(f"more{number}", 1) for number in range(1024)])
    assert other.read("t2").job_txn("j0") == 1
    assert other.commit("t2", [RecordJob("j0", 2)]).job_txn("j0") == 2


def test_two_servers_racing_lose_nothing_and_repeat_nothing(world: World, server: ServerOfTests) -> None:
    servers = [server, world.server(attempts_max=1000), world.server(attempts_max=1000)]

    def work(number: int) -> None:
        for turn in range(15):
            servers[number].commit(TABLE, [flush(f"f{number}-{turn}", {"abc"[number]: turn + 1})])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    latest = world.server().read(TABLE)
    latest.check()
    assert files_of(latest) == {f"f{number}-{turn}" for number in range(3) for turn in range(15)}
    assert latest.sequence == 1 + 45
    assert [tablet.group(PROFILE).flushed for tablet in latest.tablets] == [15, 15, 15]


def test_a_server_that_always_loses_gives_up_and_says_so(world: World, server: ServerOfTests) -> None:
    other = world.server()
    numbers = iter(range(1000))

    def always_faster(name: str, paths: tuple[str, ...]) -> None:
        if name == "CompareAndSet":
            other.commit(TABLE, [RecordJob(f"j{next(numbers)}", 1)])

    server.client.faults = always_faster
    with pytest.raises(Unavailable, match="faster"):
        server.commit(TABLE, [RecordJob("mine", 1)])
    assert other.refresh(TABLE).job_txn("mine") is None


def test_a_reader_that_is_overtaken_by_pruning_loads_the_newer_transaction(world: World, server: ServerOfTests) -> None:
    reader = world.server()
    started = threading.Event()
    load = reader._store.load

    def slow_load(*arguments: object) -> object:
        if not started.is_set():
            started.set()
            for number in range(1, 30):
                server.commit(TABLE, [flush(f"f{number}", {"a": number})])
        return load(*arguments)

    reader._store.load = slow_load
    assert reader.read(TABLE) == server.read(TABLE)


def test_what_is_known_never_becomes_older(world: World, server: ServerOfTests) -> None:
    other = world.server()
    other.commit(TABLE, [flush("f", {"a": 1})])
    load = server._store.load

    def slow_load(*arguments: object) -> object:
        loaded = load(*arguments)
        server._store.load = load
        server.commit(TABLE, [flush("g", {"a": 2})])
        return loaded

    server._store.load = slow_load
    server.refresh(TABLE)
    assert files_of(server.read(TABLE)) == {"f", "g"}


def test_a_missing_file_that_stays_missing_is_an_error(world: World, server: ServerOfTests) -> None:
    world.files.delete(f"metadata/{TABLE}/{server.read(TABLE).txnid}.meta")
    with pytest.raises(MissingFile):
        world.server().read(TABLE)


def test_a_damaged_file_is_an_error_and_stops_nothing_else(world: World, server: ServerOfTests) -> None:
    server.create_table("others", "t2", initial_metadata("t2", SCHEMA, ["a"]))
    world.files.put(f"metadata/{TABLE}/{server.read(TABLE).txnid}.meta", b"\xa5" * 100)
    other = world.server()
    with pytest.raises(Corruption, match=TABLE):
        other.read(TABLE)
    other.commit("t2", [RecordJob("j", 1)])


def test_a_damaged_node_is_corruption(world: World, server: ServerOfTests) -> None:
    node = server.client.read(f"tables/{TABLE}")
    server.client.compare_and_set(f"tables/{TABLE}", b"{}", node.version)
    with pytest.raises(Corruption, match=TABLE):
        server.refresh(TABLE)


# --- lost replies --------------------------------------------------------------------------------

UNKNOWN = [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY]


@pytest.mark.parametrize("fault", UNKNOWN)
@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_whose_replies_are_lost_happens_exactly_once(
    world: World, server: ServerOfTests, fault: Fault, times: int
) -> None:
    server.client.faults = Script(*[fault] * times)
    after = server.commit(TABLE, [flush("f", {"a": 1})])
    world.nodes.deliver()
    assert files_of(after) == {"f"}
    assert world.server().read(TABLE) == after
    assert after.sequence == 2
    assert server.commit(TABLE, [flush("g", {"a": 2})]).sequence == 3


@pytest.mark.parametrize("mixed", range(20))
def test_any_mixture_of_faults_is_settled(world: World, server: ServerOfTests, mixed: int) -> None:
    dice = random.Random(mixed)
    server.client.faults = Script(*(dice.choice(UNKNOWN) for _ in range(5)))
    server.commit(TABLE, [flush("f", {"a": 1})])
    world.nodes.deliver()
    after = world.server().read(TABLE)
    assert (files_of(after), after.sequence) == ({"f"}, 2)


def interrupted_commit(world: World, server: ServerOfTests, fault: Fault, others: int) -> None:
    """Let one compare-and-set be lost by `fault`, and let another server commit before the next attempt."""
    other = world.server()
    attempts = iter(range(1000))

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        if name != "CompareAndSet":
            return None
        attempt = next(attempts)
        if attempt == 0:
            return fault
        if attempt == 1:
            for number in range(others):
                other.refresh(TABLE)
                other.commit(TABLE, [flush(f"other{number}", {"b": number + 1})])
        return None

    server.client.faults = faults


@pytest.mark.parametrize("others", [1, 3, 5])
def test_a_lost_success_that_others_built_upon_is_recognised(world: World, server: ServerOfTests, others: int) -> None:
    interrupted_commit(world, server, Fault.LOSE_REPLY, others)
    server.commit(TABLE, [flush("f", {"a": 1})])
    expected = {"f", *(f"other{number}" for number in range(others))}
    assert files_of(server.read(TABLE)) == expected
    assert world.server().read(TABLE).sequence == 2 + others


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.DELAY])
@pytest.mark.parametrize("others", [1, 3, 5])
def test_a_lost_request_that_others_overtook_is_applied_on_top(
    world: World, server: ServerOfTests, fault: Fault, others: int
) -> None:
    interrupted_commit(world, server, fault, others)
    after = server.commit(TABLE, [flush("f", {"a": 1})])
    assert world.nodes.deliver() == 0
    assert files_of(after) == {"f", *(f"other{number}" for number in range(others))}
    assert world.server().read(TABLE) == after
    assert after.sequence == 2 + others


def test_a_lost_success_built_upon_beyond_what_is_kept_stays_unknown(world: World, server: ServerOfTests) -> None:
    interrupted_commit(world, server, Fault.LOSE_REPLY, 20)
    with pytest.raises(OutcomeUnknown):
        server.commit(TABLE, [flush("f", {"a": 1})])
    assert "f" in files_of(server.read(TABLE))


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.DELAY])
def test_an_outcome_that_stays_unknown_is_said_so_and_the_file_is_kept(
    world: World, server: ServerOfTests, fault: Fault
) -> None:
    names = stored(world)
    server.client.faults = lambda name, paths: fault if name == "CompareAndSet" else None
    with pytest.raises(OutcomeUnknown, match="read the table"):
        server.commit(TABLE, [flush("f", {"a": 1})])
    assert len(stored(world)) == len(names) + 1
    server.client.faults = None
    world.nodes.deliver()  # the delayed one lands now, long after it was given up
    after = server.read(TABLE)
    assert files_of(after) == ({"f"} if fault is not Fault.LOSE_REQUEST else set())
    assert world.server().read(TABLE) == after
    if fault is Fault.LOSE_REQUEST:
        server.commit(TABLE, [flush("f", {"a": 1})])
    else:
        with pytest.raises(RequirementFailed, match="flushed"):
            server.commit(TABLE, [flush("f", {"a": 1})])
    assert server.read(TABLE).sequence == 2


def test_a_delayed_commit_that_was_given_up_never_lands_on_top_of_another(world: World, server: ServerOfTests) -> None:
    server.client.faults = lambda name, paths: Fault.DELAY if name == "CompareAndSet" else None
    with pytest.raises(OutcomeUnknown):
        server.commit(TABLE, [flush("f", {"a": 1})])
    after = world.server().commit(TABLE, [flush("g", {"b": 1})])
    assert world.nodes.deliver() == 0
    assert world.server().read(TABLE) == after
    assert files_of(after) == {"g"}


def test_an_unreachable_service_is_not_an_unknown_outcome(world: World, server: ServerOfTests) -> None:
    names = stored(world)
    server.client.faults = Script(Fault.FAIL_BEFORE)
    with pytest.raises(Unavailable):
        server.commit(TABLE, [flush("f", {"a": 1})])
    assert stored(world) == names
    assert server.commit(TABLE, [flush("f", {"a": 1})]).sequence == 2


def test_after_a_lost_reply_an_unreachable_service_leaves_it_unknown(world: World, server: ServerOfTests) -> None:
    server.client.faults = Script(Fault.LOSE_REPLY, *[Fault.FAIL_BEFORE] * 100)
    with pytest.raises(OutcomeUnknown):
        server.commit(TABLE, [flush("f", {"a": 1})])
    assert files_of(server.read(TABLE)) == {"f"}


@pytest.mark.parametrize("fault", UNKNOWN)
def test_a_creation_whose_replies_are_lost_happens_once(world: World, fault: Fault) -> None:
    server = world.server()
    server.client.faults = Script(fault, fault)
    created = server.create_table("users", TABLE, table())
    world.nodes.deliver()
    assert world.server().read(TABLE) == created
    assert server.list_tables() == [TableEntry("users", TABLE)]


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.DELAY])
def test_a_creation_that_stays_unknown_says_so(world: World, fault: Fault) -> None:
    server = world.server()
    server.client.faults = lambda name, paths: fault if name == "multi" else None
    with pytest.raises(OutcomeUnknown):
        server.create_table("users", TABLE, table())
    server.client.faults = None
    world.nodes.deliver()
    if fault is not Fault.LOSE_REQUEST:
        assert server.read(TABLE).tablets == table().tablets


def test_a_delayed_creation_does_not_appear_after_it_was_refused(world: World) -> None:
    one, two = world.server(), world.server()
    attempts = iter(range(100))

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        if name != "multi":
            return None
        if next(attempts) == 0:
            return Fault.DELAY
        two.create_table("users", "t2", initial_metadata("t2", SCHEMA, ["x"]))
        one.client.faults = None
        return None

    one.client.faults = faults
    with pytest.raises(TableExists):
        one.create_table("users", TABLE, table())
    two.drop_table("users")
    assert world.nodes.deliver() == 0
    assert two.list_tables() == []


@pytest.mark.parametrize("fault", UNKNOWN)
def test_a_drop_whose_replies_are_lost_happens_once(world: World, server: ServerOfTests, fault: Fault) -> None:
    server.client.faults = Script(fault, fault)
    assert server.drop_table("users") == TABLE
    server.create_table("users", "t2", initial_metadata("t2", SCHEMA, ["x"]))
    world.nodes.deliver()
    assert server.find("users") == "t2"


def test_a_drop_whose_reply_is_lost_does_not_take_a_new_table_of_that_name(world: World, server: ServerOfTests) -> None:
    other = world.server()
    attempts = iter(range(100))

    def faults(name: str, paths: tuple[str, ...]) -> Fault | None:
        if name == "multi":
            assert next(attempts) == 0
            return Fault.LOSE_REPLY
        if name == "read" and other.list_tables() == []:
            other.create_table("users", "t2", initial_metadata("t2", SCHEMA, ["x"]))
        return None

    server.client.faults = faults
    assert server.drop_table("users") == TABLE
    assert other.find("users") == "t2"


# --- disks that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["create", "write", "sync", "sync_directory"])
def test_a_commit_that_cannot_be_saved_changes_nothing(world: World, server: ServerOfTests, kind: str) -> None:
    before = server.read(TABLE)
    world.files.plan = FaultPlan.fail_when(lambda operation: operation.kind == kind, errno.ENOSPC)
    with pytest.raises(MetadataNotSaved, match="No space left"):
        server.commit(TABLE, [flush("f", {"a": 1})])
    assert server.refresh(TABLE) == before
    world.files.plan = FaultPlan()
    assert files_of(server.commit(TABLE, [flush("f", {"a": 1})])) == {"f"}


def test_a_disk_on_which_nothing_can_be_removed_holds_nobody_up(world: World, server: ServerOfTests) -> None:
    world.files.plan = FaultPlan.fail_when(lambda operation: operation.kind == "delete")
    for number in range(1, 20):
        server.commit(TABLE, [flush(f"f{number}", {"a": number})])
    assert world.server().read(TABLE) == server.read(TABLE)


# --- crashes -------------------------------------------------------------------------------------


def life(server: ServerOfTests, done: list[str]) -> None:
    """Create, change, drop, create again; `done` tells what was acknowledged."""
    server.create_table("users", TABLE, table())
    done.append("created")
    for number in range(1, 11):
        server.commit(TABLE, [flush(f"f{number}", {"a": number}), flush(f"g{number}", {"b": number}, group=EVENTS)])
        done.append(f"f{number}")
    server.create_table("others", "t2", initial_metadata("t2", SCHEMA, ["x"]))
    done.append("others")
    server.drop_table("users")
    done.append("dropped")


def count_steps() -> int:
    world = World()
    server = world.server()
    world.crash_at(server, None)
    life(server, [])
    return world.steps


STEPS = count_steps()


def check_after_crash(world: World, done: list[str]) -> None:
    """What is there is what was acknowledged, and perhaps the one thing that was under way, whole."""
    server = world.server()
    tables = {entry.name: entry.table_id for entry in server.list_tables()}
    allowed_tables = [{"users"}] if "created" in done else [set(), {"users"}]
    if "f10" in done:
        allowed_tables = [{"users"}, {"users", "others"}]
    if "others" in done:
        allowed_tables = [{"users", "others"}, {"others"}]
    if "dropped" in done:
        allowed_tables = [{"others"}]
    assert set(tables) in allowed_tables
    for table_id in tables.values():
        server.read(table_id).check()
    if "users" in tables:
        metadata = server.read(TABLE)
        acknowledged = [name for name in done if name.startswith("f")]
        flushed = metadata.by_id("a").group(PROFILE).flushed
        assert flushed in (len(acknowledged), len(acknowledged) + 1)
        assert metadata.by_id("b").group(EVENTS).flushed == flushed
        assert files_of(metadata) == {f"{kind}{number}" for kind in "fg" for number in range(1, flushed + 1)}
        after = server.commit(TABLE, [flush("later", {"c": 1})])
        assert world.server().read(TABLE) == after
    else:
        server.create_table("users", "t3", initial_metadata("t3", SCHEMA, ["x"]))
    assert "users" in {entry.name for entry in world.server().list_tables()}


def test_the_life_of_a_table_has_enough_steps_to_be_worth_crashing() -> None:
    assert STEPS > 60


def test_after_a_crash_before_any_step_everything_acknowledged_is_there() -> None:
    for step in range(STEPS):
        world, done = World(), []
        server = world.server()
        world.crash_at(server, step)
        with pytest.raises(SimulatedCrash):
            life(server, done)
        for image in world.after_crash(seed=step):
            check_after_crash(image, done)


# --- threads -------------------------------------------------------------------------------------


def test_requests_of_many_threads_become_few_transactions(world: World, server: ServerOfTests) -> None:
    threads = 12
    gathered = threading.Event()
    queue_seen: list[int] = []

    def hold_the_first(name: str, paths: tuple[str, ...]) -> None:
        if name == "CompareAndSet" and not gathered.is_set():
            queue = server._queues[TABLE]
            for _ in range(20_000):
                with queue._lock:
                    if len(queue._waiting) == threads - 1:
                        break
                time.sleep(0.001)
            queue_seen.append(len(queue._waiting))
            gathered.set()

    server.client.faults = hold_the_first

    def commit(number: int) -> object:
        changes = [flush(f"f{number}", {"abc"[number % 3]: number // 3 + 1}, group=(PROFILE, EVENTS)[number % 2])]
        if number % 4 == 3:
            changes = [RecordJob("wanted by several", 1)]
        try:
            return server.commit(TABLE, changes)
        except EblaError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(commit, range(threads)))
    assert queue_seen == [threads - 1]
    latest = world.server().read(TABLE)
    assert latest.sequence == 1 + 2
    jobs = answers[3::4]
    assert sum(isinstance(answer, RequirementFailed) for answer in jobs) == len(jobs) - 1
    assert latest.jobs == (("wanted by several", 1),)
    accepted = [number for number, answer in enumerate(answers) if not isinstance(answer, EblaError)]
    for number in accepted:
        if number % 4 != 3:
            assert f"f{number}" in files_of(answers[number])
            assert f"f{number}" in files_of(latest)
    for number, answer in enumerate(answers):
        if isinstance(answer, EblaError):
            assert isinstance(answer, RequirementFailed)
            assert f"f{number}" not in files_of(latest)


def test_threads_and_servers_on_real_files_lose_nothing(tmp_path: Path) -> None:
    clock = SystemClock()
    numbers = iter(range(10**6))
    services = [SqliteCoordination(tmp_path / FILE_NAME, clock) for _ in range(2)]
    servers = [
        ServerOfTests(
            service,
            MetadataStore(LocalFiles(tmp_path), 8),
            clock,
            server_id=f"s{index}",
            new_id=lambda: f"x{next(numbers)}",
            retries=Retries(1000, 0.05),
        )
        for index, service in enumerate(services)
    ]
    servers[0].create_table("users", TABLE, table())

    def work(number: int) -> None:
        for turn in range(10):
            servers[number % 2].commit(TABLE, [RecordJob(f"j{number}-{turn}", 1)])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    reader = SqliteCoordination(tmp_path / FILE_NAME, clock, read_only=True)
    store = MetadataStore(LocalFiles(tmp_path))
    latest = ServerOfTests(reader, store, clock, server_id="reader", new_id=str).read(TABLE)
    assert sorted(job for job, _ in latest.jobs) == sorted(
        f"j{number}-{turn}" for number in range(6) for turn in range(10)
    )
    for server in servers:
        server.finish_pruning()
    for service in (*services, reader):
        service.close()
