"""Incremental fetch sessions: which session a request belongs to, what is news, which session is evicted."""

import random

import pytest
from barnabas.broker.fetch_sessions import (
    EPOCH_MAX,
    EVICTION_MS,
    FetchSession,
    FetchSessionCache,
    PartitionKey,
    SessionPartition,
)
from barnabas.protocol.errors import ErrorCode


def asked(*indexes: int, topic: str = "t", offset: int = 0) -> list[SessionPartition]:
    return [SessionPartition(topic, index, offset, 1000) for index in indexes]


def by_key(partitions: list[SessionPartition]) -> dict[PartitionKey, SessionPartition]:
    return {partition.key: partition for partition in partitions}


def cache(slots: int = 10) -> FetchSessionCache:
    return FetchSessionCache(random.Random(1), slots)


def opened(
    sessions: FetchSessionCache, partitions: list[SessionPartition], *, privileged: bool = False, now_ms: float = 0
) -> FetchSession:
    session = sessions.open(by_key(partitions), privileged=privileged, uses_topic_ids=False, now_ms=now_ms)
    assert session is not None
    return session


def resume(sessions: FetchSessionCache, session_id: int, epoch: int, now_ms: float = 0) -> FetchSession | ErrorCode:
    return sessions.resume(session_id, epoch, uses_topic_ids=False, now_ms=now_ms)


def test_epochs_count_up_from_one_and_a_wrong_one_is_refused() -> None:
    sessions = cache()
    session = opened(sessions, asked(0))
    assert resume(sessions, session.id, 1) is session
    assert resume(sessions, session.id, 1) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert resume(sessions, session.id, 2) is session


def test_the_epoch_after_the_largest_is_one() -> None:
    sessions = cache()
    session = opened(sessions, asked(0))
    session.epoch = EPOCH_MAX
    assert resume(sessions, session.id, EPOCH_MAX) is session
    assert session.epoch == 1


def test_an_unknown_or_closed_session_is_not_found() -> None:
    sessions = cache()
    session = opened(sessions, asked(0))
    assert resume(sessions, session.id + 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.close(session.id)
    assert resume(sessions, session.id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_do_not_mix_in_a_session() -> None:
    sessions = cache()
    session = opened(sessions, asked(0))
    mixed = sessions.resume(session.id, 1, uses_topic_ids=True, now_ms=0)
    assert mixed == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_ids_are_positive_and_differ() -> None:
    sessions = cache(50)
    ids = {opened(sessions, asked(0)).id for _ in range(50)}
    assert len(ids) == 50
    assert min(ids) > 0


def test_update_adds_changes_and_forgets() -> None:
    session = opened(cache(), asked(0, 1))
    session.partitions[("t", 1)].note_result(ErrorCode.NONE, 7, 0, False)
    session.update([*asked(1, offset=5), *asked(2)], [("t", 0)])
    assert list(session.partitions) == [("t", 1), ("t", 2)]
    changed = session.partitions[("t", 1)]
    assert changed.fetch_offset == 5
    assert changed.sent_high_watermark == 7, "what was sent is remembered"


def test_a_partition_with_records_goes_to_the_end() -> None:
    session = opened(cache(), asked(0, 1, 2))
    session.move_to_end(session.partitions[("t", 0)])
    assert [index for _, index in session.partitions] == [1, 2, 0]


def test_what_is_news() -> None:
    (partition,) = asked(0)
    assert partition.note_result(ErrorCode.NONE, 0, 0, False), "never sent before"
    assert not partition.note_result(ErrorCode.NONE, 0, 0, False)
    assert partition.note_result(ErrorCode.NONE, 0, 0, True), "records"
    assert partition.note_result(ErrorCode.NONE, 1, 0, False), "high watermark"
    assert partition.note_result(ErrorCode.NONE, 1, 1, False), "log start"
    assert not partition.note_result(ErrorCode.NONE, 1, 1, False)
    assert partition.note_result(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, False)
    assert partition.note_result(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, False), "an error is told every time"
    assert partition.note_result(ErrorCode.NONE, 1, 1, False), "and its end too"


@pytest.mark.parametrize(("sessions_open", "gets_one"), [(1, True), (2, True), (3, False)])
def test_slots_are_limited(sessions_open: int, gets_one: bool) -> None:
    sessions = cache(3)
    for _ in range(sessions_open):
        opened(sessions, asked(0))
    got = sessions.open(by_key(asked(0)), privileged=False, uses_topic_ids=False, now_ms=EVICTION_MS)
    assert (got is not None) is gets_one


def test_no_slots_no_sessions() -> None:
    assert cache(0).open(by_key(asked(0)), privileged=False, uses_topic_ids=False, now_ms=0) is None


def test_the_idle_one_gives_way() -> None:
    sessions = cache(2)
    idle, busy = opened(sessions, asked(0, 1, 2)), opened(sessions, asked(0))
    resume(sessions, busy.id, 1, now_ms=EVICTION_MS)
    opened(sessions, asked(0), now_ms=EVICTION_MS + 1)
    assert resume(sessions, idle.id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert resume(sessions, busy.id, 2) is busy


def test_an_old_smaller_one_gives_way_to_a_larger_one_only() -> None:
    sessions = cache(1)
    session = opened(sessions, asked(0, 1))
    resume(sessions, session.id, 1, now_ms=EVICTION_MS)
    later = EVICTION_MS + 1  # old, but not idle
    assert sessions.open(by_key(asked(0, 1)), privileged=False, uses_topic_ids=False, now_ms=later) is None
    assert sessions.open(by_key(asked(0, 1, 2)), privileged=False, uses_topic_ids=False, now_ms=later) is not None


def test_a_follower_takes_the_place_of_a_consumer_and_not_the_other_way_round() -> None:
    sessions = cache(1)
    opened(sessions, asked(0, 1, 2, 3))
    follower = opened(sessions, asked(0), privileged=True)
    assert sessions.open(by_key(asked(0, 1)), privileged=False, uses_topic_ids=False, now_ms=0) is None
    assert sessions.open(by_key(asked(0, 1)), privileged=True, uses_topic_ids=False, now_ms=0) is None, "it is young"
    assert resume(sessions, follower.id, 1) is follower
