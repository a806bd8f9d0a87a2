"""One tree of errors, each telling the caller what to do next."""

from __future__ import annotations

import copy
import pickle
import re
import typing

import pytest

import ebla
from ebla import errors
from ebla.coordination.service import LeaseHeld, NodeExists
from ebla.metadata.values.changes import RequirementFailed

ALL = [getattr(errors, name) for name in errors.__all__]


def test_every_error_comes_from_one_root_and_can_be_imported_from_ebla() -> None:
    for error in ALL:
        assert issubclass(error, errors.EblaError)
        assert getattr(ebla, error.__name__) is error
    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == "ebla.errors"
    }
    assert defined == set(errors.__all__)


def test_the_drawing_at_the_top_of_the_module_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^ {4}([|` ]*(?:\|--|`--) )?([A-Z]\w+)(\s{2,}|$)", line)
        if found:
            depth = len(found[1] or "")
            path = [*((d, name) for d, name in path if d < depth), (depth, found[2])]
            drawn[found[2]] = path[-2][1] if len(path) > 1 else "Exception"
    bases = {error.__name__: error.__mro__[1].__name__ for error in ALL}
    assert drawn == bases


@pytest.mark.parametrize(
    ("advice", "kinds"),
    [
        ("fix", {"RequestError", "SchemaError", "UnknownTable", "TableExists", "UnknownColumn", "InvalidBatch"}),
        ("fix", {"InvalidKey", "HistoryGone", "ClockSkew", "ReadOnly"}),
        ("reread", {"Conflict"}),
        ("retry", {"Unavailable", "StoreLocked", "StaleRoute", "Closed", "TimedOut"}),
        ("check", {"OutcomeUnknown"}),
        (
            "stop",
            {"StoreError", "StoreNotFound", "Corruption", "MissingFile", "TableDamaged", "LogFailed", "FormatTooNew"},
        ),
    ],
)
def test_each_error_gives_its_advice_in_a_word(advice: str, kinds: set[str]) -> None:
    assert {getattr(errors, kind).advice for kind in kinds} == {advice}


def test_a_wrong_request_is_a_value_error_and_a_broken_store_is_not() -> None:
    assert issubclass(errors.UnknownColumn, ValueError)
    assert not issubclass(errors.StoreError, ValueError)
    assert not issubclass(errors.OutcomeUnknown, errors.Unavailable)


def test_corruption_says_where() -> None:
    error = errors.Corruption("log/1.log", "the checksum is wrong", 64)
    assert str(error) == "log/1.log at offset 64 is damaged: the checksum is wrong"
    assert str(errors.Corruption("f", "cut off")) == "f is damaged: cut off"
    assert (error.file, error.offset, error.reason) == ("log/1.log", 64, "the checksum is wrong")


@pytest.mark.parametrize(
    "error",
    [
        errors.Conflict("changed"),
        errors.Corruption("file", "reason", 7),
        errors.Corruption("file", "reason"),
        NodeExists("tables/1", "there is a node already"),
        LeaseHeld("master", "somebody"),
        RequirementFailed("stale_epoch", "no longer led"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_a_trip_between_processes(error: errors.EblaError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_public_names_are_listed_and_there() -> None:
    for name in ebla.__all__:
        assert hasattr(ebla, name)
    assert sorted(ebla.__all__, key=lambda name: (name[0].islower(), name)) == ebla.__all__
    assert typing.get_type_hints(ebla.Settings)
