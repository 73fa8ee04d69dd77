"""How `barnabas offsets log` and its relatives read the journal."""

from types import SimpleNamespace
from typing import Any

import kafka
import pytest
from barnabas.cli import journal_reading
from barnabas.cli.shared.target import Target


class SilentConsumer:
    """A consumer whose broker stands still after it has said where the log ends."""

    def __init__(self, **settings: Any) -> None:
        self.polls = 0

    def assign(self, places: Any) -> None: ...

    def beginning_offsets(self, places: Any) -> Any:
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: Any) -> Any:
        return dict.fromkeys(places, 10)

    def seek(self, place: Any, offset: int) -> None: ...

    def position(self, place: Any) -> int:
        return 0

    def poll(self, timeout_ms: int) -> Any:
        self.polls += 1
        if self.polls > 5:
            raise TimeoutError
        return {}

    def close(self, **options: Any) -> None: ...


def test_a_broker_that_stands_still_does_not_renew_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = []
    monkeypatch.setattr(kafka, "KafkaConsumer", SilentConsumer)
    monkeypatch.setattr(journal_reading, "connection", lambda target: {})
    monkeypatch.setattr(Target, "renew", renewed.append)
    client: Any = SimpleNamespace(
        describe_topics=lambda names: [
            {"name": name, "error_code": 0, "partitions": [{"partition_index": 0, "leader_id": -1}]} for name in names
        ]
    )
    with pytest.raises(TimeoutError):
        journal_reading.read_journal(Target("", 1, 1, as_json=False), client, "g", None)
    assert renewed == []
