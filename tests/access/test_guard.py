"""Rights as clients of a real cluster meet them: for every call, as they are at that moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ebla
from ebla.access.audit import AUDIT_FILE
from ebla.client.database import service_of
from ebla.errors import Denied
from ebla.rpc.wire.messages import DeriveToken
from tests.access.guarded import Guarded, wait_until


def test_a_reader_reads_its_table_and_nothing_else(guarded: Guarded) -> None:
    with ebla.connect(guarded.master.address, token=guarded.user("reader", words="read")) as db:
        words = db.table("words")
        assert words.get("a")["n"] >= 1
        assert len(list(words.scan())) >= 1
        assert db.tables() == ["words"]
        with pytest.raises(Denied, match=r"^writing to the table 'words' needs the right write: see"):
            words.put({"word": "b", "n": 1})
        with pytest.raises(Denied, match=r"^reading the table 'other' needs the right read: see"):
            db.table("other")
        with pytest.raises(Denied, match=r"^making, changing or dropping the table 'words' needs the right admin"):
            db.drop_table("words")
        with pytest.raises(Denied, match=r"^this concerns all tables, and needs the right read on '\*'"):
            db.stats()


def test_a_table_that_is_not_there_is_told_to_those_only_who_may_see_all(guarded: Guarded) -> None:
    reader = guarded.user("reader", words="read")
    with ebla.connect(guarded.master.address, token=reader) as db, pytest.raises(Denied):
        service_of(db).table_by_id("no-such-id")
    with ebla.connect(guarded.master.address, token=guarded.admin) as db, pytest.raises(ebla.UnknownTable):
        service_of(db).table_by_id("no-such-id")


def test_a_connection_that_is_open_is_denied_once_its_token_is_revoked(guarded: Guarded) -> None:
    token = guarded.user("leaving", words="write")
    with ebla.connect(guarded.master.address, token=token) as db:
        words = db.table("words")
        words.put({"word": "leaving", "n": 1})
        guarded.users.change(lambda users: users.without("leaving"))
        wait_until(lambda: _is_denied(lambda: words.get("leaving")))
        with pytest.raises(Denied, match="revoked"):
            words.put({"word": "leaving", "n": 2})
        with pytest.raises(Denied, match="revoked"):
            db.tables()


def test_a_connection_that_is_open_is_denied_once_its_token_expires(guarded: Guarded) -> None:
    with ebla.connect(guarded.master.address, token=guarded.user("parent", words="write")) as parent:
        token = derived(parent, 1.0)
    with ebla.connect(guarded.master.address, token=token) as db:
        words = db.table("words")
        assert words.get("a") is not None
        wait_until(lambda: _is_denied(lambda: words.get("a")))
        with pytest.raises(Denied, match="expired"):
            words.get("a")


def test_a_right_that_is_taken_away_is_gone_for_the_next_call(guarded: Guarded) -> None:
    with ebla.connect(guarded.master.address, token=guarded.user("writer", words="write")) as db:
        words = db.table("words")
        words.put({"word": "c", "n": 1})
        guarded.users.change(lambda users: users.granted("writer", "words", "read"))
        wait_until(lambda: _is_denied(lambda: words.put({"word": "c", "n": 2})))
        assert words.get("c") is not None


def test_a_derived_token_has_no_more_than_it_was_made_for(guarded: Guarded) -> None:
    with ebla.connect(guarded.master.address, token=guarded.user("job", words="write", other="read")) as db:
        token = derived(db, 60.0, {"words": "read"})
    with ebla.connect(guarded.master.address, token=token) as db:
        assert db.tables() == ["words"]
        with pytest.raises(Denied):
            db.table("words").put({"word": "d", "n": 1})
        with pytest.raises(ebla.RequestError, match="part of the rights"):
            derived(db, 60.0, {"other": "read"})


def test_a_derived_token_gives_no_right_that_the_user_has_not(guarded: Guarded) -> None:
    with ebla.connect(guarded.master.address, token=guarded.user("modest", words="read")) as db:
        token = derived(db, 60.0, {"*": "admin"})
    with ebla.connect(guarded.master.address, token=token) as db:
        assert db.tables() == ["words"]
        with pytest.raises(Denied):
            db.drop_table("words")


def test_rights_go_with_the_name_that_a_table_has_now(guarded: Guarded) -> None:
    with ebla.connect(guarded.master.address, token=guarded.admin) as db:
        db.create_table("before", ebla.Schema(key={"k": "string"}, columns={"n": "int64"})).put({"k": "a", "n": 1})
        with ebla.connect(guarded.master.address, token=guarded.user("old", before="read")) as other:
            table = other.table("before")
            assert table.get("a") is not None
            db.rename_table("before", "after")
            wait_until(lambda: _is_denied(lambda: table.get("a")))
        db.drop_table("after")


def test_admin_requests_and_denials_are_in_the_audit_log(guarded: Guarded, tmp_path: Path) -> None:
    with ebla.connect(guarded.master.address, token=guarded.admin) as db:
        db.create_table("audited", ebla.Schema(key={"k": "string"}, columns={"n": "int64"}))
        db.drop_table("audited")
        with pytest.raises(ebla.UnknownTable):
            db.drop_table("never was")
    with ebla.connect(guarded.master.address, token=guarded.user("reader", words="read")) as db, pytest.raises(Denied):
        db.drop_table("words")
    lines = [json.loads(line) for line in guarded.audit_of_master(AUDIT_FILE).read_text().splitlines()]
    told = [(line["who"], line["what"], line["table"], line["outcome"]) for line in lines]
    for expected in (
        ("user root", "CreateTable", "audited", "done"),
        ("user root", "DropTable", "audited", "done"),
        ("user root", "DropTable", "never was", "failed: UnknownTable"),
        ("user reader", "DropTable", "words", "denied"),
    ):
        assert expected in told
    assert all(set(line) == {"at", "who", "what", "table", "outcome", "peer", "why"} for line in lines)
    assert not any(guarded.admin in json.dumps(line) for line in lines)


def test_a_process_without_auth_does_not_join_a_cluster_that_has_users(guarded: Guarded, tmp_path: Path) -> None:
    from ebla.master_server.process import MasterProcess

    with pytest.raises(ebla.RequestError, match="--auth"):
        MasterProcess(guarded.master._coordination, tmp_path / "another", tmp_path / "root")


def derived(db: ebla.Database, seconds: float, grants: dict[str, str] | None = None) -> str:
    service: Any = service_of(db)
    return service.ask_master(DeriveToken(seconds, grants))


def _is_denied(call: object) -> bool:
    try:
        call()
    except Denied:
        return True
    return False
