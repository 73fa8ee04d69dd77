"""What clients do that costs them or the broker more than it must, seen in the record of their requests.

Pure: from exchanges to findings. Each finding names the setting of the client that mends it. A finding is an advice, no
error: a test may want just this.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from barnabas.broker.control.recorder import SIZE_BYTES, Exchange
from barnabas.coordinators.groups.consumer.states import JOIN_EPOCH, LEAVE_EPOCH
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.batch_layout import HEADER_BYTES, INT64, PRODUCER_ID_AT
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.counted import counted

COMMITS_MIN = 10  # fewer of them say nothing
RECORDS_PER_COMMIT_MAX = 1.5
FETCHES_MIN = 20
WAIT_MS_MIN = 10  # a fetch that waits less at the end of the log asks again and again
METADATA_PER_SECOND_MAX = 10
SECOND_MS = 1_000
NEW_MEMBERS_MIN = 3
ALL_REPLICAS = -1

# Versions below these lack what makes a client safe, and what it lacks.
NEEDED_VERSIONS = {
    ApiKey.FETCH: (9, "a leader epoch (KIP-320), so it does not notice that records behind its position were replaced"),
    ApiKey.OFFSET_COMMIT: (6, "a leader epoch (KIP-320), so a committed offset may be of records that were replaced"),
    ApiKey.JOIN_GROUP: (5, "a group.instance.id (KIP-345), so each restart of a member makes the group rebalance"),
}


class Finding(NamedTuple):
    """What was seen, how often, and what mends it."""

    rule: str
    client_id: str
    about: str  # a group or topic; may be empty
    times: int
    message: str
    setting: str


Partition = tuple[str, str, int]  # group, topic, partition
Commit = tuple[Exchange, Partition, int]  # with the offset


def findings(exchanges: Iterable[Exchange]) -> list[Finding]:
    """All that is found, by rule and client."""
    seen = list(exchanges)
    return sorted(finding for rule in RULES for finding in rule(seen))


def _of(seen: list[Exchange], key: ApiKey) -> Iterator[Exchange]:
    return (each for each in seen if each.facts.api_key == key)


def _commits(seen: list[Exchange]) -> Iterator[Commit]:
    for exchange in _of(seen, ApiKey.OFFSET_COMMIT):
        request = exchange.request
        for topic in request["topics"]:
            for row in topic["partitions"]:
                place = request["group_id"], topic.get("name") or str(topic.get("topic_id")), row["partition_index"]
                yield exchange, place, row["committed_offset"]


def _commits_of_each_record(seen: list[Exchange]) -> Iterator[Finding]:
    last: dict[Partition, int] = {}
    commits: dict[tuple[str, str], set[int]] = defaultdict(set)
    records: dict[tuple[str, str], int] = defaultdict(int)
    for exchange, place, offset in _commits(seen):
        who = exchange.facts.client_id, place[0]
        if place in last:
            commits[who].add(exchange.number)
            records[who] += max(offset - last[place], 0)
        last[place] = offset
    for (client_id, group), numbers in commits.items():
        count = records[client_id, group]
        if len(numbers) >= COMMITS_MIN and count <= len(numbers) * RECORDS_PER_COMMIT_MAX:
            read = counted(count, "record")
            message = f"commits {len(numbers)} times for {read}: a commit costs more than reading a record"
            setting = "commit once after each poll, or set enable.auto.commit=true with auto.commit.interval.ms"
            yield Finding("commit of each record", client_id, group, len(numbers), message, setting)


def _commits_that_go_back(seen: list[Exchange]) -> Iterator[Finding]:
    last: dict[Partition, int] = {}
    found: dict[tuple[str, Partition], list[str]] = defaultdict(list)
    for exchange, place, offset in _commits(seen):
        if offset < last.get(place, offset):
            found[exchange.facts.client_id, place].append(f"{last[place]} to {offset}")
        last[place] = offset
    for (client_id, (group, topic, partition)), steps in found.items():
        message = (
            f"the committed offset of {topic} {partition} goes back, first from {steps[0]}: records are read again"
        )
        setting = "commit offsets in the order of the records, and none from onPartitionsRevoked that is older"
        yield Finding("commit that goes back", client_id, group, len(steps), message, setting)


def _fetches_that_never_wait(seen: list[Exchange]) -> Iterator[Finding]:
    counts = Counter(
        each.facts.client_id
        for each in _of(seen, ApiKey.FETCH)
        if (asked := each.request)["max_wait_ms"] < WAIT_MS_MIN or asked["min_bytes"] < 1
    )
    for client_id, count in counts.items():
        if count >= FETCHES_MIN:
            message = f"{count} fetches do not wait for records, so the client and the broker are busy with nothing"
            yield Finding("fetch that never waits", client_id, "", count, message, "fetch.max.wait.ms, fetch.min.bytes")


def _metadata_storms(seen: list[Exchange]) -> Iterator[Finding]:
    within: dict[str, deque[int]] = defaultdict(deque)
    most: dict[str, int] = defaultdict(int)
    for exchange in _of(seen, ApiKey.METADATA):
        client_id, times = exchange.facts.client_id, within[exchange.facts.client_id]
        times.append(exchange.came_ms)
        while times[0] <= exchange.came_ms - SECOND_MS:
            times.popleft()
        most[client_id] = max(most[client_id], len(times))
    for client_id, count in most.items():
        if count > METADATA_PER_SECOND_MAX:
            message = f"asks for metadata {count} times in a second"
            setting = "keep one client instead of making many; metadata.max.age.ms, retry.backoff.ms"
            yield Finding("metadata storm", client_id, "", count, message, setting)


def _produce_without_all_replicas(seen: list[Exchange]) -> Iterator[Finding]:
    counts = Counter(each.facts.client_id for each in _of(seen, ApiKey.PRODUCE) if each.request["acks"] != ALL_REPLICAS)
    for client_id, count in counts.items():
        requests = counted(count, "request")
        message = f"{requests} acknowledged before all replicas have the records: a failover may lose them"
        yield Finding("produce without all replicas", client_id, "", count, message, "acks=all")


def _without_idempotence(seen: list[Exchange]) -> Iterator[Finding]:
    """By the batches: another broker may have given the producer its id."""
    counts = Counter(each.facts.client_id for each in _of(seen, ApiKey.PRODUCE) if _lacks_producer_id(each))
    for client_id, count in counts.items():
        message = "its producer has no id, so what it sends again may be there twice, or in another order"
        yield Finding("no idempotence", client_id, "", count, message, "enable.idempotence=true")


def _lacks_producer_id(exchange: Exchange) -> bool:
    if exchange.frame is None:  # its records are forgotten
        return False
    request: Any = frames.decode_request(memoryview(exchange.frame)[SIZE_BYTES:])[1]
    batches = [row.records for topic in request.topic_data for row in topic.partition_data if row.records]
    return any(len(each) < HEADER_BYTES or INT64.unpack_from(each, PRODUCER_ID_AT)[0] < 0 for each in batches)


def _old_versions(seen: list[Exchange]) -> Iterator[Finding]:
    counts: Counter[tuple[str, ApiKey, int]] = Counter()
    for exchange in seen:
        key = ApiKey(exchange.facts.api_key)
        if key in NEEDED_VERSIONS and exchange.facts.version < NEEDED_VERSIONS[key][0]:
            counts[exchange.facts.client_id, key, exchange.facts.version] += 1
    for (client_id, key, version), count in counts.items():
        message = f"{key.kafka_name} version {version} has no place for {NEEDED_VERSIONS[key][1]}"
        setting = "a newer version of the client library; api_version, broker.version.fallback not set"
        yield Finding("old version", client_id, "", count, message, setting)


def _classic_members_that_come_anew(seen: list[Exchange]) -> Iterator[Finding]:
    joined = Counter(
        (each.facts.client_id, asked["group_id"])
        for each in _of(seen, ApiKey.JOIN_GROUP)
        if not (asked := each.request)["member_id"] and not asked.get("group_instance_id")
    )
    left: Counter[tuple[str, str]] = Counter()
    for exchange in _of(seen, ApiKey.LEAVE_GROUP):
        asked = exchange.request
        left[exchange.facts.client_id, asked["group_id"]] += max(len(asked.get("members", ())), 1)
    yield from _coming_anew(joined, left, "session.timeout.ms")


def _members_that_come_anew(seen: list[Exchange]) -> Iterator[Finding]:
    """Of the consumer protocol (KIP-848). A static member keeps its place."""
    joined: Counter[tuple[str, str]] = Counter()
    left: Counter[tuple[str, str]] = Counter()
    for exchange in _of(seen, ApiKey.CONSUMER_GROUP_HEARTBEAT):
        asked = exchange.request
        if not asked["instance_id"]:
            who = exchange.facts.client_id, asked["group_id"]
            joined[who] += asked["member_epoch"] == JOIN_EPOCH
            left[who] += asked["member_epoch"] == LEAVE_EPOCH
    yield from _coming_anew(joined, left, "consumer.session.timeout.ms of the group")


def _coming_anew(
    joined: Counter[tuple[str, str]], left: Counter[tuple[str, str]], session_timeout: str
) -> Iterator[Finding]:
    for (client_id, group), count in joined.items():
        lost = count - left[client_id, group]
        if lost >= NEW_MEMBERS_MIN:
            message = f"joins {count} times as a new member and leaves {left[client_id, group]} times"
            setting = f"close consumers; {session_timeout}, max.poll.interval.ms, max.poll.records; group.instance.id"
            yield Finding("member that comes anew", client_id, group, lost, message, setting)


RULES: tuple[Callable[[list[Exchange]], Iterator[Finding]], ...] = (
    _commits_of_each_record,
    _commits_that_go_back,
    _fetches_that_never_wait,
    _metadata_storms,
    _produce_without_all_replicas,
    _without_idempotence,
    _old_versions,
    _classic_members_that_come_anew,
    _members_that_come_anew,
)
