"""Two hundred tests of a service, on a broker of Barnabas; `--bootstrap HOST:PORT`: on the Kafka that is there.

Tests that command the broker (faults, time, waits) ask for the fixture `barnabas`, and are left out with `--bootstrap`.
"""

from collections.abc import Callable, Sequence

import pytest
from barnabas.testing import Barnabas, CommandError, Group, Topic
from service import CLIENTS, Client

ORDERS = [b"order %d" % number for number in range(20)]


def values(records: Sequence[tuple[int, int, bytes]]) -> list[bytes]:
    """What records hold, in the order in which they lie in their partitions."""
    return [value for _, _, value in sorted(records)]


# ------------------------------------------------------------------ on any Kafka


@pytest.mark.parametrize("count", [1, 2, 5, 10, 15, 20])
def test_what_is_written_is_read(client: Client, new_topic: Callable[..., str], count: int) -> None:
    topic = new_topic()
    client.produce(topic, ORDERS[:count])
    assert values(client.read(topic, count)) == ORDERS[:count]


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 5, 8])
def test_a_key_stays_in_its_partition(client: Client, new_topic: Callable[..., str], partitions: int) -> None:
    topic = new_topic(partitions)
    client.produce(topic, ORDERS[:5], key=b"customer")
    found = client.read(topic, 5)
    assert len({partition for partition, _, _ in found}) == 1
    assert values(found) == ORDERS[:5]


@pytest.mark.parametrize("read_before", [1, 2, 4, 9, 14, 19])
def test_a_group_goes_on_where_it_was(
    client: Client, new_topic: Callable[..., str], new_group: str, read_before: int
) -> None:
    topic = new_topic()
    client.produce(topic, ORDERS)
    client.read(topic, read_before, group=new_group, commits=True)
    (first,) = client.read(topic, 1, group=new_group)
    assert first[1] == read_before


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(client: Client, new_topic: Callable[..., str], codec: str) -> None:
    topic = new_topic()
    client.produce(topic, [b"x" * 1_000 for _ in range(20)], compression=codec)
    assert values(client.read(topic, 20)) == [b"x" * 1_000] * 20


@pytest.mark.parametrize("size", [0, 1, 10_000, 500_000])
def test_records_of_any_size_are_read(client: Client, new_topic: Callable[..., str], size: int) -> None:
    topic = new_topic()
    client.produce(topic, [b"x" * size])
    assert values(client.read(topic, 1)) == [b"x" * size]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12, 20])
def test_orders_become_invoices(client: Client, new_topic: Callable[..., str], new_group: str, count: int) -> None:
    orders, invoices = new_topic(), new_topic()
    client.produce(orders, ORDERS[:count])
    assert client.move(orders, invoices, count, group=new_group) == ORDERS[:count]
    assert values(client.read(invoices, count)) == [b"invoice for " + order for order in ORDERS[:count]]


@pytest.mark.parametrize("count", [1, 3, 5])
def test_what_was_aborted_is_done_again(
    client: Client, new_topic: Callable[..., str], new_group: str, count: int
) -> None:
    orders, invoices = new_topic(), new_topic()
    client.produce(orders, ORDERS[:count])
    client.move(orders, invoices, count, group=new_group, ends=False)
    client.move(orders, invoices, count, group=new_group)
    assert values(client.read(invoices, count)) == [b"invoice for " + order for order in ORDERS[:count]]


@pytest.mark.parametrize("other", list(CLIENTS))
def test_clients_read_what_others_write(
    client: Client, new_topic: Callable[..., str], bootstrap: str, new_group: str, other: str
) -> None:
    topic = new_topic(2)
    client.produce(topic, ORDERS)
    reader = CLIENTS[other](bootstrap, "reader")
    assert sorted(values(reader.read(topic, 20, group=new_group, commits=True))) == sorted(ORDERS)


# ------------------------------------------------------------------ a broker that fails on command


COMMIT_ERRORS = ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"]


@pytest.mark.parametrize("error", COMMIT_ERRORS)
def test_a_commit_that_fails_is_made_again(
    client: Client, barnabas: Barnabas, barnabas_topic: Topic, barnabas_group: Group, error: str
) -> None:
    barnabas_topic.produce(["a", "b"])
    with barnabas.fail("OffsetCommit", error=error, times=2, group=barnabas_group) as fault:
        client.read(barnabas_topic.name, 2, group=barnabas_group.name, commits=True)
    assert fault.fired == 2
    assert barnabas_group.offsets == {(barnabas_topic.name, 0): 2}


PRODUCE_ERRORS = ["NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS", "KAFKA_STORAGE_ERROR"]


@pytest.mark.parametrize("error", PRODUCE_ERRORS)
def test_a_record_that_is_refused_is_sent_again(
    client: Client, barnabas: Barnabas, barnabas_topic: Topic, error: str
) -> None:
    with barnabas.fail("Produce", error=error, times=2, topic=barnabas_topic) as fault:
        client.produce(barnabas_topic.name, [b"a"])
    assert fault.fired == 2
    assert barnabas_topic.values() == ["a"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_is_cut_costs_nothing(
    client: Client, barnabas: Barnabas, barnabas_topic: Topic, when: str
) -> None:
    with barnabas.cut("Produce", topic=barnabas_topic, when=when) as fault:
        client.produce(barnabas_topic.name, [b"a"], enable_idempotence=True)
    assert fault.fired == 1
    assert barnabas_topic.values() == ["a"]


def test_half_of_an_answer_costs_nothing(client: Client, barnabas: Barnabas, barnabas_topic: Topic) -> None:
    with barnabas.half_answer("Produce", topic=barnabas_topic) as fault:
        client.produce(barnabas_topic.name, [b"a"], enable_idempotence=True)
    assert fault.fired == 1
    assert barnabas_topic.values() == ["a"]


@pytest.mark.parametrize(
    "api", ["Metadata", "Fetch", "JoinGroup", "SyncGroup", "OffsetFetch", "FindCoordinator", "ListOffsets"]
)
def test_late_answers_are_waited_for(
    client: Client, barnabas: Barnabas, barnabas_topic: Topic, barnabas_group: Group, api: str
) -> None:
    barnabas_topic.produce(["a"])
    with barnabas.delay(api, ms=100, times=2, client="service") as fault:
        assert values(client.read(barnabas_topic.name, 1, group=barnabas_group.name)) == [b"a"]
    assert fault.fired >= 1


@pytest.mark.parametrize("error", ["UNKNOWN_MEMBER_ID", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"])
def test_a_member_that_is_refused_joins_again(
    client: Client, barnabas: Barnabas, barnabas_topic: Topic, barnabas_group: Group, error: str
) -> None:
    barnabas_topic.produce(["a"])
    with barnabas.fail("JoinGroup", error=error, times=1, group=barnabas_group) as fault:
        assert values(client.read(barnabas_topic.name, 1, group=barnabas_group.name)) == [b"a"]
    assert fault.fired == 1


@pytest.mark.parametrize("days", [1, 8])
def test_old_records_are_gone(client: Client, barnabas: Barnabas, days: int) -> None:
    # By the clock of the client, which does not move, the new record would be old, too.
    settings = {"retention.ms": "3600000", "message.timestamp.type": "LogAppendTime"}
    topic = barnabas.topic("short", config=settings)
    client.produce(topic.name, [b"old"])
    barnabas.clock.advance(days=days)
    client.produce(topic.name, [b"new"])
    assert values(client.read(topic.name, 1)) == [b"new"]


@pytest.mark.parametrize("unread", [0, 1, 5])
def test_the_lag_is_told(
    client: Client, barnabas: Barnabas, barnabas_topic: Topic, barnabas_group: Group, unread: int
) -> None:
    barnabas_topic.produce([str(number) for number in range(10)])
    client.read(barnabas_topic.name, 10 - unread, group=barnabas_group.name, commits=True)
    barnabas_group.wait_lag(unread)
    if unread:
        with pytest.raises(CommandError, match=f"{unread} records? behind"):
            barnabas_group.wait_lag(unread - 1, timeout=0.05)


def test_what_was_put_back_is_as_before(client: Client, barnabas: Barnabas, barnabas_topic: Topic) -> None:
    client.produce(barnabas_topic.name, [b"a"])
    mark = barnabas.snapshot()
    client.produce(barnabas_topic.name, [b"b"])
    barnabas.restore(mark)
    assert barnabas_topic.values() == ["a"]
    client.produce(barnabas_topic.name, [b"c"])
    assert values(client.read(barnabas_topic.name, 2)) == [b"a", b"c"]


def test_requests_are_recorded(client: Client, barnabas: Barnabas, barnabas_topic: Topic) -> None:
    client.produce(barnabas_topic.name, [b"a"])
    assert barnabas.requests("Produce", client="service", topic=barnabas_topic)


@pytest.mark.parametrize("number", range(2))
def test_nothing_is_left_of_other_tests(client: Client, barnabas: Barnabas, number: int) -> None:
    assert barnabas.ask("GET", "/v1/groups")["groups"] == []
    topic = barnabas.topic("orders", unique=False)
    client.produce(topic.name, [b"a"])
    client.read(topic.name, 1, group="billing", commits=True)
    assert barnabas.group("billing", unique=False).offsets == {("orders", 0): 1}


def test_a_full_disk_is_waited_for(client: Client, barnabas: Barnabas, barnabas_topic: Topic) -> None:
    with barnabas.disk_full(topic=barnabas_topic, times=2) as fault:
        client.produce(barnabas_topic.name, [b"a"])
    assert fault.fired >= 1
    assert barnabas_topic.values() == ["a"]
