"""Certificates as they are made, renewed and read, and the files of a process that are refused before it begins."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from ebla.access.certificates import (
    list_certificates,
    make_authority,
    make_certificate,
    read_certificate,
    renew_certificate,
)
from ebla.access.tls import TlsFiles, client_tls, server_tls
from ebla.errors import RequestError, StoreNotFound
from tests.access.made_certificates import Made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "certs")


def test_a_certificate_names_its_process_first_and_then_its_hosts(made: Made) -> None:
    uuid = str(uuid4())
    found = make_certificate(made.directory, "one", ["db1.example.org", "10.0.0.7", "::1"], uuid=uuid, days=30)
    assert found.uuid == uuid
    assert found.hosts == ("db1.example.org", "10.0.0.7", "::1")
    assert not found.is_authority
    assert 29 < found.days_left(datetime.now(UTC)) <= 30
    assert found.begins < datetime.now(UTC)


def test_keys_are_read_by_their_owner_alone(made: Made) -> None:
    made.process("one")
    for name in ("ca.key", "one.key"):
        assert stat.S_IMODE((made.directory / name).stat().st_mode) == 0o600


def test_nothing_is_overwritten(made: Made) -> None:
    made.process("one")
    before = {file: file.read_bytes() for file in made.directory.iterdir()}
    with pytest.raises(RequestError, match="not overwritten"):
        make_authority(made.directory)
    with pytest.raises(RequestError, match="not overwritten"):
        make_certificate(made.directory, "one", ["127.0.0.1"])
    (made.directory / "one.pem").unlink()
    with pytest.raises(RequestError, match="not overwritten"):
        make_certificate(made.directory, "one", ["127.0.0.1"])
    assert {file: file.read_bytes() for file in made.directory.iterdir()} == {
        file: data for file, data in before.items() if file.name != "one.pem"
    }


def test_a_renewed_certificate_is_of_the_same_process_with_another_key(made: Made) -> None:
    had = make_certificate(made.directory, "one", ["127.0.0.1", "localhost"], days=3)
    key = (made.directory / "one.key").read_bytes()
    found = renew_certificate(made.directory, "one", days=90)
    assert (found.uuid, set(found.hosts)) == (had.uuid, set(had.hosts))
    assert found.ends > had.ends + timedelta(days=80)
    assert (made.directory / "one.key").read_bytes() != key
    assert (made.directory / "one.key.old").read_bytes() == key
    server_tls(made.files("one"))
    with pytest.raises(RequestError, match="authority is not renewed"):
        renew_certificate(made.directory, "ca")


def test_certificates_are_listed_with_the_authority_first(made: Made) -> None:
    made.process("a")
    made.expired("b")
    assert [(one.name, one.is_authority) for one in list_certificates(made.directory)] == [
        ("ca", True),
        ("a", False),
        ("b", False),
    ]
    with pytest.raises(StoreNotFound, match="ebla certs ca"):
        list_certificates(made.directory / "elsewhere")


@pytest.mark.parametrize(
    ("name", "hosts", "options", "told"),
    [
        ("ca", ["127.0.0.1"], {}, "name of a certificate"),
        ("../x", ["127.0.0.1"], {}, "name of a certificate"),
        ("one", [], {}, "--host"),
        ("one", ["127.0.0.1:7070"], {}, "without a port"),
        ("one", ["-x"], {}, "without a port"),
        ("one", ["127.0.0.1"], {"uuid": "me"}, "a uuid looks like"),
        ("one", ["127.0.0.1"], {"days": 0}, "36500"),
        ("one", ["127.0.0.1"], {"days": float("nan")}, "36500"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_makes_no_file(
    made: Made, name: str, hosts: list[str], options: dict[str, object], told: str
) -> None:
    with pytest.raises(RequestError, match=told):
        make_certificate(made.directory, name, hosts, **options)
    assert sorted(file.name for file in made.directory.iterdir()) == ["ca.key", "ca.pem"]


def test_without_the_key_of_the_authority_nothing_is_signed(made: Made, tmp_path: Path) -> None:
    other = Made(tmp_path / "other")
    (made.directory / "ca.key").write_bytes((other.directory / "ca.key").read_bytes())
    with pytest.raises(RequestError, match="not the key of"):
        make_certificate(made.directory, "one", ["127.0.0.1"])
    (made.directory / "ca.key").unlink()
    with pytest.raises(RequestError, match="sign where the key is kept"):
        make_certificate(made.directory, "one", ["127.0.0.1"])


def test_the_files_of_a_process_are_looked_at_before_it_begins(made: Made, tmp_path: Path) -> None:
    made.process("one")
    made.process("two")
    made.expired("late")
    made.of_a_client("somebody")
    other = Made(tmp_path / "other")
    one, two = made.files("one"), made.files("two")
    (tmp_path / "text").write_text("hello")
    for files, told in (
        (made.files("late"), "has expired"),
        (made.files("somebody"), "does not name a process"),
        (TlsFiles(one.ca, one.certificate, two.key), "is not the key of"),
        (TlsFiles(other.directory / "ca.pem", one.certificate, one.key), "was not signed by"),
        (TlsFiles(one.ca, tmp_path / "none", one.key), "cannot be read"),
        (TlsFiles(one.ca, tmp_path / "text", one.key), "is not PEM"),
        (TlsFiles(one.ca, one.key, one.key), "is no certificate"),
    ):
        with pytest.raises(RequestError, match=told):
            server_tls(files)
    one.key.chmod(0o644)
    with pytest.raises(RequestError, match="everybody can read"):
        server_tls(one)


def test_a_client_is_told_of_an_authority_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        client_tls(tmp_path / "none.pem")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(RequestError, match="is not PEM"):
        client_tls(tmp_path / "text")


def test_a_name_of_a_process_that_is_not_the_first_one_counts_for_nothing(made: Made) -> None:
    made.of_a_client("somebody")
    assert read_certificate(made.directory / "somebody.pem").uuid is None
