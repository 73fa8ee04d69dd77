"""`barnabas offsets cleanup` and the expiry in `offsets list`: pure functions over the answers of a broker."""

from typing import Any

import pytest
from barnabas.cli.cleanup import AT_ONCE, add_expiry, chosen, expires, really_gone, refuse_members, remove
from barnabas.cli.offset_targets import named
from barnabas.cli.shared.exits import Failure

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def offset(partition: int = 0, expires_ms: int | None = None, kept_by: str | None = None, **fields: Any) -> Any:
    row = {"topic": "orders", "partition": partition, "offset": 5, "topic_state": "there"}
    return row | {"expires_ms": expires_ms, "kept_by": kept_by} | fields


class Api:
    """Answers with a document, or not at all."""

    def __init__(self, document: Any) -> None:
        self.document = document

    def get(self, path: str, group: str) -> Any:
        if self.document is None:
            raise Failure("no API", 1)
        return self.document


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (offset(expires_ms=NOW_MS + 6 * DAY_MS + 3 * 3_600_000), "in 6 d 3 h"),
        (offset(expires_ms=NOW_MS), "at the next check"),
        (offset(kept_by="members"), "never while members live"),
        (offset(kept_by="transaction"), "never while its transaction is open"),
    ],
)
def test_when_an_offset_expires(row: Any, text: str) -> None:
    assert expires(row, NOW_MS) == text


def test_what_is_chosen() -> None:
    rows = [offset(0), offset(1), offset(0, topic="old", topic_state="gone"), offset(9, topic_state="another")]
    assert chosen(rows, None, False) == rows
    assert chosen(rows, None, True) == rows[2:]
    assert chosen(rows, [named("orders:1,9"), named("old")], False) == rows[1:]
    assert chosen(rows, [named("orders")], True) == rows[3:]
    with pytest.raises(Failure, match="--topic wants"):
        named("orders:x")


def test_a_topic_that_any_broker_knows_is_not_gone() -> None:
    class Client:
        def describe_topics(self, names: list[str]) -> list[Any]:
            assert names == ["new", "old"]
            return [
                {"name": "old", "error_code": 3, "partitions": []},
                {"name": "new", "error_code": 0, "partitions": [{"partition_index": 0}]},
            ]

    rows = [
        offset(0, topic="old", topic_state="gone"),
        offset(0, topic="new", topic_state="gone"),
        offset(1, topic="new", topic_state="gone"),
        offset(0, topic="new", topic_state="another"),
    ]
    assert really_gone(Client(), rows) == [rows[0], rows[2], rows[3]]
    assert really_gone(None, []) == []


def test_a_request_that_is_refused_after_others_were_done_does_not_hide_them() -> None:
    class Refusing:
        def __init__(self, after: int) -> None:
            self.left = after

        def post(self, path: str, body: Any, group: str) -> None:
            assert len(body["offsets"]) <= AT_ONCE
            if not self.left:
                raise Failure("CHANGED: Nothing was removed.", 1)
            self.left -= 1

    rows = [offset(index) for index in range(AT_ONCE + 1)]
    assert remove(Refusing(2), "g", rows) == "another client has written"  # type: ignore[arg-type]
    assert "CHANGED" in remove(Refusing(1), "g", rows)  # type: ignore[arg-type]
    with pytest.raises(Failure, match="CHANGED"):
        remove(Refusing(0), "g", rows)  # type: ignore[arg-type]


def test_a_group_with_members_is_refused() -> None:
    refuse_members("g", {"members": [], "state": "Empty"})
    with pytest.raises(Failure, match="2 members"):
        refuse_members("g", {"members": [{}, {}], "state": "Stable"})
    with pytest.raises(Failure, match="joining"):
        refuse_members("g", {"members": [], "state": "PreparingRebalance"})


def test_a_warning_comes_before_offsets_expire() -> None:
    rows: Any = [{"topic": "orders", "partition": index, "committed_offset": 5} for index in range(3)]
    document = {
        "time_ms": NOW_MS,
        "expiry_warning_ms": DAY_MS,
        "offsets": [
            offset(0, NOW_MS + DAY_MS + 1),
            offset(1, NOW_MS + 2 * 3_600_000),
            offset(2, kept_by="members"),
        ],
    }
    warning = add_expiry(Api(document), "g", rows)  # type: ignore[arg-type]
    assert warning is not None
    assert "1 committed offset expires soon, the first in 2 h" in warning
    assert [row["expires"] for row in rows] == ["in 1 d", "in 2 h", "never while members live"]
    document["expiry_warning_ms"] = 1
    assert add_expiry(Api(document), "g", rows) is None  # type: ignore[arg-type]
    assert add_expiry(Api(None), "g", rows) is None  # type: ignore[arg-type]
    assert [row["expires"] for row in rows] == [None] * 3, "a broker without the HTTP API"
