"""A request that is repeated is not carried out again."""

from __future__ import annotations

from ebla.model.ranges import ALL, KeyRange
from ebla.replication.messages import Entry, RequestId
from ebla.replication.replies import Replies, rows_left

LEFT, RIGHT = KeyRange(b"", b"m"), KeyRange(b"m", None)


def write(client: str, sequence: int, txn: int, seen: int = 0) -> Entry:
    return Entry(1, txn, txn, "write", RequestId(client, sequence, seen), ((b"a", 1),))


def test_the_last_request_of_a_client_is_known() -> None:
    replies = Replies(10)
    replies.add(write("c", 3, 7), ALL)
    found, known = replies.find(RequestId("c", 3, 0))
    assert found == "known"
    assert known is not None
    assert known.txn == 7
    assert replies.find(RequestId("c", 4, 7))[0] == "new"
    assert replies.find(RequestId("d", 1, 0))[0] == "new"


def test_a_request_before_the_last_one_is_refused() -> None:
    replies = Replies(10)
    replies.add(write("c", 3, 7), ALL)
    assert replies.find(RequestId("c", 2, 0))[0] == "unknown"


def test_who_saw_nothing_since_replies_were_forgotten_is_refused() -> None:
    replies = Replies(2)
    for sequence, client in enumerate("cde", 1):
        replies.add(write(client, sequence, 10 * sequence), ALL)
    assert replies.forgotten_txn == 10
    assert replies.find(RequestId("c", 1, 9))[0] == "unknown"
    assert replies.find(RequestId("c", 2, 10))[0] == "new"


def test_a_reply_covers_the_rows_that_the_tablet_had() -> None:
    replies = Replies(10)
    replies.add(write("c", 3, 7), LEFT)
    known = replies.find(RequestId("c", 3, 0))[1]
    assert known is not None
    assert rows_left(known, ((b"a", 1), (b"x", 2))) == ((b"x", 2),)
    replies.add(write("c", 3, 8), RIGHT)
    known = replies.find(RequestId("c", 3, 0))[1]
    assert known is not None
    assert rows_left(known, ((b"a", 1), (b"x", 2))) == ()


def test_the_window_is_found_again_in_the_log() -> None:
    replies = Replies(2)
    for sequence, client in enumerate("cde", 1):
        replies.add(write(client, sequence, sequence), ALL)
    window = Entry(2, 9, 9, "window", window=replies.all(), forgotten_txn=replies.forgotten_txn)
    again = Replies.of_log((window, write("d", 7, 10)), ALL, 2)
    assert again.find(RequestId("e", 3, 0))[0] == "known"
    assert again.find(RequestId("d", 7, 0))[0] == "known"
    assert again.forgotten_txn == 1
