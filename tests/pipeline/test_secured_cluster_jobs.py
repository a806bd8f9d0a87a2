"""Jobs of a cluster that wants tokens and speaks TLS: tasks work, and none of them has the user's own token."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import ebla
from ebla.access.tokens import claim_in, is_signed
from ebla.direct.cluster_address import Cluster, of_options, of_remote
from ebla.direct.clusters import cluster_of, remote_of
from ebla.direct.place import Place
from ebla.errors import Denied, RequestError
from ebla.pipeline import load
from tests.access.guarded import wait_until
from tests.access.secured import Secured, secured_cluster


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def analyst(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the token of a user who may read `words`."""
    file = tmp_path_factory.mktemp("analyst") / "token"
    file.touch(0o600)
    file.write_text(secured.user("analyst", words="read") + "\n")
    return file


def connected(secured: Secured, token: str) -> ebla.Database:
    return ebla.connect(secured.master.address, token=token, tls_ca=secured.ca)


def seen_by_a_task(spark: SparkSession, cluster: object) -> tuple[str, int]:
    """Return the token that a task shows to a cluster that it was handed, and how many rows it reads there."""

    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from ebla.direct import clusters

        database = clusters.connected(cluster)
        shown, rows = clusters.remote_of(database).credentials.token(), database.table("words").count()
        yield pa.RecordBatch.from_pydict({"token": [shown], "rows": [rows]})

    row = spark.range(0, 1, 1, 1).mapInArrow(told, "token string, rows long").collect()[0]
    return row.token, row.rows


def test_a_frame_of_a_user_is_read_by_tasks_with_a_token_for_reading_alone(
    secured: Secured, analyst: Path, spark: SparkSession
) -> None:
    own = analyst.read_text().strip()
    with connected(secured, own) as db:
        frame = db.spark("words")
        assert [row.word for row in frame.collect()] == ["a"]
        shown, rows = seen_by_a_task(spark, cluster_of(db))
    assert rows == 1
    assert is_signed(shown)
    assert (claim_in(shown).name, claim_in(shown).grants) == ("analyst", {"*": "read"})


def test_any_session_reads_by_a_file_with_a_token_and_the_authority(
    secured: Secured, analyst: Path, spark: SparkSession
) -> None:
    def loaded(table: str, **options: str) -> DataFrame:
        options |= {"cluster": secured.master.address, "tls_ca": str(secured.ca)}
        return spark.read.format("ebla").options(**options).load(table)

    assert [row.n for row in loaded("words", token_file=str(analyst)).collect()] == [1]
    named = of_options({"cluster": secured.master.address, "token_file": str(analyst), "tls_ca": str(secured.ca)})
    assert is_signed(seen_by_a_task(spark, named)[0])
    # Of an error in a worker, Spark tells its class in the text.
    with pytest.raises(Exception, match="no token was shown"):
        loaded("words").collect()
    with pytest.raises(Exception, match=r"needs a right on that table|needs the right"):
        loaded("hidden", token_file=str(analyst)).collect()


def test_rows_are_loaded_and_saved_by_whoever_may(secured: Secured, spark: SparkSession, tmp_path: Path) -> None:
    schema = ebla.Schema(key={"k": "int64"}, columns={"v": "string"})
    file = tmp_path / "token"
    file.write_text(secured.admin)
    with connected(secured, secured.admin) as db:
        db.create_table("loaded", schema)
        load(db, "loaded", spark.createDataFrame([(k, str(k)) for k in range(10)], "k long, v string"), spark=spark)
        writer = spark.createDataFrame([(10, "ten")], "k long, v string").write.format("ebla").mode("append")
        writer = writer.option("cluster", secured.master.address).option("tls_ca", str(secured.ca))
        writer.option("token_file", str(file)).save("loaded")
        assert db.table("loaded").count() == 11


def test_what_leaves_this_process_has_a_short_lived_token_in_place_of_the_users_own(
    secured: Secured, analyst: Path
) -> None:
    own = analyst.read_text().strip()
    named = of_options({"cluster": secured.master.address, "token_file": str(analyst), "tls_ca": str(secured.ca)})
    data = pickle.dumps(named)
    assert own.encode() not in data
    assert str(analyst).encode() not in data
    received: Cluster = pickle.loads(data)
    assert claim_in(str(received.token)).name == "analyst"
    with connected(secured, own) as db:
        assert own.encode() not in pickle.dumps((cluster_of(db), Place.of(db).cluster, Place.of(db).options))


def test_a_token_for_tasks_is_kept_for_half_its_life_and_then_renewed(secured: Secured, analyst: Path) -> None:
    with connected(secured, analyst.read_text().strip()) as db:
        remote = remote_of(db)
        first = of_remote(remote, reads_only=True)
        assert of_remote(remote, reads_only=True).token == first.token
        token, _ = remote._task_tokens[(("*", "read"),)]
        remote._task_tokens[(("*", "read"),)] = (token, 0.0)  # half of its life is over
        second = of_remote(remote, reads_only=True)
        assert claim_in(second.token).expires > claim_in(first.token).expires
        # Whoever has a connection by the first goes on with the second.
        assert first == second
        assert first != of_remote(remote, reads_only=False)


def test_the_tokens_of_tasks_end_with_the_token_that_they_came_from(secured: Secured, spark: SparkSession) -> None:
    with connected(secured, secured.user("leaver", words="read")) as db:
        cluster = of_remote(remote_of(db), reads_only=True)
        assert seen_by_a_task(spark, cluster)[1] == 1
        secured.users.change(lambda now: now.without("leaver"))
        known = [process._access._users for process in (secured.master, secured.server)]
        wait_until(lambda: all("leaver" not in one.users.users for one in known))
        with pytest.raises(Exception, match="revoked"):
            seen_by_a_task(spark, cluster)
        with pytest.raises(Denied):
            ebla.connect(list(cluster), token=cluster.token, tls_ca=secured.ca)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cluster": "127.0.0.1:1", "token": "eu1.ada.4f1c09aa.secret"}, "token_file"),
        ({"cluster": "127.0.0.1:1", "token": "es1.e30=.x", "token_file": "x"}, "either"),
        ({"token_file": "x"}, "is for a cluster"),
        ({"tls_ca": "x"}, "is for a cluster"),
        ({"cluster": "127.0.0.1:1", "tls_ca": "/nowhere"}, "cannot be read"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        of_options(options)
