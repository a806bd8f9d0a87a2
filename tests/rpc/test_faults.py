"""Errors there and back."""

from typing import Any

import pytest

from ebla import errors
from ebla.errors import Corruption, EblaError, OutcomeUnknown, StoreError, TooManyFiles, Unavailable
from ebla.rpc.faults import CODES, error_of, failed
from ebla.rpc.frames import Failed, decode_frame, encode_frame


def there_and_back(error: BaseException, **options: Any) -> Any:
    told = failed(1, error, **{"doing": "it", "is_repeatable": True} | options)
    return error_of(decode_frame(encode_frame(told)))


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_of_the_tree_arrives_as_itself(name: str) -> None:
    kind = getattr(errors, name)
    error = Corruption("f", "r", None) if kind is Corruption else kind("what to do")
    arrived = there_and_back(error)
    assert type(arrived) is kind
    assert str(arrived) == str(error)
    assert arrived.advice == error.advice


def test_a_class_that_the_tree_does_not_have_arrives_as_its_nearest_ancestor() -> None:
    class Own(Unavailable):
        pass

    assert type(there_and_back(Own("x"))) is Unavailable


@pytest.mark.parametrize(
    ("advice", "code"), [("retry", "unavailable"), ("check", "outcome_unknown"), ("?", "store_error")]
)
def test_a_code_of_a_later_version_becomes_what_its_advice_stands_for(advice: str, code: str) -> None:
    assert type(error_of(Failed(1, "comes_later", "sentence", advice))) is CODES[code]


def test_an_error_of_nobody_tells_no_more_than_an_incident() -> None:
    arrived = there_and_back(KeyError("secret"))
    assert type(arrived) is StoreError
    assert "secret" not in str(arrived)
    assert type(there_and_back(KeyError("secret"), is_repeatable=False)) is OutcomeUnknown


def test_running_out_of_files_is_known_for_what_it_is() -> None:
    assert type(there_and_back(OSError(24, "Too many open files"))) is TooManyFiles


def test_details_that_do_not_fit_still_make_an_error() -> None:
    assert isinstance(error_of(Failed(1, "corruption", "s", "stop", (1, 2))), EblaError)


def test_a_sentence_is_bounded() -> None:
    assert len(str(there_and_back(Unavailable("x" * 100_000)))) < 5_000
