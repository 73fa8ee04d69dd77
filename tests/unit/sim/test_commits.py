"""The book of committed offsets: what may expire, and what is a broken promise."""

import pytest
from simulator.commits import Commits
from simulator.violation import Violation

OWNED = ("g", "t", 0)


class _Times:
    """A monotonic clock, and a wall clock that shows the same."""

    def __init__(self) -> None:
        self.now_ms = 0.0


@pytest.fixture
def times() -> _Times:
    return _Times()


@pytest.fixture
def commits(times: _Times) -> Commits:
    commits = Commits(lambda: times.now_ms, lambda: int(times.now_ms), lambda since_ms: int(times.now_ms))
    commits.retention_ms = 60_000
    commits.ask(OWNED, 5)
    commits.ended(OWNED)
    commits.acknowledge(OWNED, 5)
    return commits


def test_an_offset_may_be_gone_after_its_time(commits: Commits, times: _Times) -> None:
    times.now_ms = 60_000
    assert commits.told(OWNED, -1, acknowledged_before=5, asked_ms=60_000)
    assert commits.may_have_none("g")


def test_before_its_time_it_is_there(commits: Commits, times: _Times) -> None:
    times.now_ms = 59_999
    assert not commits.told(OWNED, 5, acknowledged_before=5, asked_ms=59_999)
    assert not commits.may_have_none("g")
    with pytest.raises(Violation, match="no commit goes back"):
        commits.told(OWNED, -1, acknowledged_before=5, asked_ms=59_999)


def test_a_group_without_a_promise_may_have_none(commits: Commits) -> None:
    assert commits.may_have_none("another")
