"""Replies: a repeated request is answered as the first was, and what is remembered is bounded."""

from __future__ import annotations

from ebla.storage.log.log_entry import Reply
from ebla.tablet.write.replies import REPLIES_MAX, Replies


def test_a_repeated_request_is_known_and_a_newer_one_is_not() -> None:
    replies = Replies()
    assert replies.find(("ada", 1)) is None
    replies.remember(Reply("ada", 1, 100))
    assert replies.find(("ada", 1)) == 100
    assert replies.find(("ada", 2)) is None
    assert replies.find(("bob", 1)) is None


def test_an_older_request_that_comes_late_is_not_carried_out_again() -> None:
    replies = Replies()
    replies.remember(Reply("ada", 1, 100))
    replies.remember(Reply("ada", 2, 200))
    assert replies.find(("ada", 1)) == 200


def test_what_a_replay_found_is_known() -> None:
    replies = Replies()
    replies.restore([Reply("ada", 7, 100), Reply("ada", 6, 90)])
    assert replies.find(("ada", 7)) == 100


def test_the_longest_unheard_client_is_forgotten_first() -> None:
    replies = Replies()
    for number in range(REPLIES_MAX):
        replies.remember(Reply(f"client {number}", 1, number + 1))
    replies.remember(Reply("client 0", 2, REPLIES_MAX + 1))
    replies.remember(Reply("one more", 1, REPLIES_MAX + 2))
    assert replies.find(("client 1", 1)) is None
    assert replies.find(("client 0", 2)) == REPLIES_MAX + 1
    assert replies.find(("client 2", 1)) == 3


def test_replies_that_stand_only_in_what_will_be_removed_are_named_until_they_are_logged_again() -> None:
    replies = Replies()
    replies.remember(Reply("ada", 1, 100))
    replies.remember(Reply("bob", 1, 200))
    assert replies.only_below(100) == []
    old = replies.only_below(150)
    assert old == [Reply("ada", 1, 100)]
    replies.logged_again(old, 300)
    assert replies.only_below(150) == []
    assert replies.only_below(250) == [Reply("bob", 1, 200)]
    assert replies.only_below(301) == [Reply("ada", 1, 100), Reply("bob", 1, 200)]
    replies.remember(Reply("ada", 2, 400))
    assert replies.only_below(400) == [Reply("bob", 1, 200)]
