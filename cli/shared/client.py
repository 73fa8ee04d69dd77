"""The commands' connection to a broker: kafka-python, with its exceptions turned into sentences."""

import asyncio
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

from barnabas.cli.shared import kafka_python
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.login import Login
from barnabas.cli.shared.login import ask as ask_once
from barnabas.cli.shared.login import read as read_access
from barnabas.cli.shared.rights import know_user, missing
from barnabas.cli.shared.target import KNOWS_NOBODY, Target, addresses_of
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted
from barnabas.runtime.grouped import grouped
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import ended

T = TypeVar("T")
Key = tuple[str, int]  # a partition: its topic and number

NO_CONTROLLER = "Failed to find active controller"  # in kafka-python's RuntimeError
RETRY_MS = 100
BACKOFF_MS = 10  # short, because a person waits for a command
LATEST = -1  # as a timestamp: the end of the log
DEBUGGING_CONSUMER = -2  # as a replica id: any replica answers, not only the leader
ANSWERS_FIRST_WITHIN_MS = 2_000  # how long a broker may take for a new connection; then another one is asked
BROKER_RESOURCE = 4
REPLICA_ANSWERS_WITHIN_MS = 2_000  # one that stands still must not keep the others from being shown
ASKED_AGAIN_AFTER_MS = 1_000  # so long the others are asked instead of a broker that did not answer
ONE_ANSWERS_WITHIN_MS = 15_000
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_MEMBER_ID, KAFKA_STORAGE_ERROR = 3, 25, 56
# What kafka-python says of these is for who writes a client.
DESCRIPTIONS = {
    UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition",
    UNKNOWN_MEMBER_ID: "the group has no such member (barnabas groups describe)",
    KAFKA_STORAGE_ERROR: "the broker cannot use its disk or the tree (barnabas status, or its log, says why)",
}
NOTHING_THERE = {"UNKNOWN_TOPIC_OR_PARTITION", "GROUP_ID_NOT_FOUND", "UNKNOWN_TOPIC_ID"}

# kafka-python's warnings repeat what its exceptions say.
logging.getLogger("kafka").addHandler(logging.NullHandler())


def client_id() -> str:
    """Who asks. The offset journal tells by it what one command has done."""
    return f"barnabas-cli-{os.getpid()}"


def connection(target: Target) -> dict[str, Any]:
    """The settings of every client. When this returns, a broker answers, and the time limit has begun."""
    access = read_access(target.command_config)
    login = access.login
    bootstrap = target.reach()
    if isinstance(login, Login):
        know_user(login.user)
    elif login is None and access.tls is None:  # a certificate would have named somebody
        know_user("ANONYMOUS")
    (address,) = addresses_of(bootstrap)
    if login is not None:
        from barnabas.protocol.messages import ApiVersionsRequest

        _, refused = ask_once(address, access, ApiVersionsRequest(), 0)
        if refused is not None:
            fail(f"{bootstrap} refuses {login.named}: {refused}")
    else:
        target.look_whether_login_is_wanted(address)
    kafka_python.read_without_assertions()
    # A broker that stands still accepts connections and answers nothing.
    kafka_python.wait_longest(BACKOFF_MS, ANSWERS_FIRST_WITHIN_MS)
    return {
        "bootstrap_servers": bootstrap,
        "client_id": client_id(),
        "bootstrap_timeout_ms": int(target.timeout_s * 1000) + 1,
        "retry_backoff_ms": BACKOFF_MS,
        **access.of_kafka_python(),
    }


@contextmanager
def told_in_sentences(target: Target) -> Iterator[None]:
    """Turn kafka-python's exceptions into one line and an exit code."""
    from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, NodeNotReadyError

    try:
        yield
    except KafkaConnectionError as error:
        if target.answers():
            fail(f"{target.bootstrap} closed the connection: {error}")
        target.nobody_answers()
    except KafkaTimeoutError as error:
        if "bootstrap" in str(error).lower():
            target.nobody_answers()
        fail(f"no answer in time from {target.bootstrap}: {error}")
    except NodeNotReadyError:
        if not target.answers():
            target.nobody_answers()
        fail("a broker that this needs is away just now: `barnabas cluster` shows which. Try again when it is back.")
    except KafkaError as error:
        name, number = getattr(error, "message", None) or type(error).__name__, getattr(error, "errno", 0)
        code = ExitCode.NOTHING_THERE if name in NOTHING_THERE else ExitCode.FAILED
        words = DESCRIPTIONS.get(number) if number == KAFKA_STORAGE_ERROR else None
        fail(f"{name}: {words or getattr(error, 'description', None) or error}{missing(number)}", code)
    except RuntimeError as error:
        if NO_CONTROLLER not in str(error):
            raise
        fail("the cluster has no controller now, so nothing was changed. `barnabas status` says why; or try again.")
    except (struct.error, OverflowError, UnicodeError) as error:
        fail(f"a name or a number does not fit into a request: {error}.", ExitCode.NOT_VALID)


@contextmanager
def admin(target: Target) -> Iterator[Any]:
    """An admin client, which is closed at the end."""
    settings = connection(target)
    from kafka.admin import KafkaAdminClient

    with told_in_sentences(target):
        client = KafkaAdminClient(**settings)
        # Only now, because the client waits as long for an address of --bootstrap that it has chosen again.
        kafka_python.connect_again_after(client, ASKED_AGAIN_AFTER_MS)
        client.describe_cluster = partial(_known_cluster, client, client.describe_cluster)
        try:
            yield client
        finally:
            client.close()


def _known_cluster(client: Any, describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The cluster as a broker describes it that knows some: one that refuses the controller's requests, or has not
    heard from it yet, knows of none."""
    found = describe()
    if not found["brokers"]:
        kafka_python.ask_who_knows_brokers(client, REPLICA_ANSWERS_WITHIN_MS)
        found = describe()
    if not found["brokers"]:
        fail(KNOWS_NOBODY.format("that was asked"))
    return found


def broker_setting(client: Any, node_id: int, name: str) -> str | None:
    """The value of a setting at a broker; None: it is not listed there. KafkaError when the broker does not answer."""
    return _value(_told_of(client, node_id, name), name)


def _told_of(client: Any, node_id: int, name: str) -> Any:
    """What a broker tells of one of its settings; an error, if it may not."""
    from kafka.protocol.admin import DescribeConfigsRequest

    request = DescribeConfigsRequest(
        resources=[(BROKER_RESOURCE, str(node_id), [name])], include_synonyms=False, min_version=1
    )
    (result,) = kafka_python.send(client, request, node_id, REPLICA_ANSWERS_WITHIN_MS).results
    return result


def _value(told: Any, name: str) -> str | None:
    return next((config.value for config in told.configs if config.name == name), None)


def is_barnabas(client: Any, node_id: int) -> bool:
    """Whether a broker is one: it lists the address of its HTTP API, or the setting by which it has none.

    One that does not tell its settings ends the command.
    """
    for name in ("http.address", "http.listeners"):
        told = _told_of(client, node_id, name)
        if told.error_code:
            why = reason(told.error_code, told.error_message, "describe-configs cluster")
            fail(f"broker {node_id} does not tell its settings: {why}")
        if _value(told, name) is not None:
            return True
    return False


def of_each(ask: Callable[[int], T], node_ids: Iterable[int]) -> dict[int, T]:
    """What `ask` returns for each broker. They are asked at once: one that stands still does not delay the others."""

    asked = sorted(node_ids)

    async def ask_all() -> list[T]:
        clock = RealClock()
        answers = [clock.in_thread(partial(ask, node_id), f"broker {node_id}") for node_id in asked]
        return await ended(Pending.all(answers))

    return dict(zip(asked, asyncio.run(ask_all()), strict=True))


def answered(client: Any | None, ask: Callable[[], T], on_wait: Callable[[Exception], None] | None = None) -> T:
    """What brokers answer to a question. While one of them does not answer, again, with fresh metadata of the client.

    `on_wait` is told once why it takes longer.

    A broker that stands still leads, coordinates and is controller until its session is over. `ask` must do no harm
    when it is done twice, because a question without an answer may have been heard.
    """
    from kafka import errors

    return _again(
        client,
        ask,
        (
            *coordinator_moves(),
            errors.KafkaConnectionError,
            errors.KafkaTimeoutError,
            errors.NodeNotReadyError,
            errors.NotLeaderForPartitionError,
            errors.RequestTimedOutError,
        ),
        on_wait,
    )


def changed(client: Any, change: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """What a group's coordinator answers to a change: errors by partition, or of the group.

    While it moves or loads, the change is sent again, because such an answer says that nothing was changed. A change
    without an answer is not.
    """
    moves = coordinator_moves()

    def ask() -> dict[Any, Any]:
        results = change()
        for error in moves:
            if error in results.values() or error.__name__ in results.values():  # kafka-python gives names of some
                raise error
        return results

    return _again(client, ask, moves)


def coordinator_moves() -> tuple[type[Exception], ...]:
    from kafka import errors

    return errors.CoordinatorLoadInProgressError, errors.CoordinatorNotAvailableError, errors.NotCoordinatorError


def _again(
    client: Any | None,
    ask: Callable[[], T],
    passing: tuple[type[Exception], ...],
    on_wait: Callable[[Exception], None] | None = None,
) -> T:
    """What `ask` returns. While it raises what passes, again; after a while that is raised."""
    clock = RealClock()
    last_ms = clock.monotonic_ms() + ONE_ANSWERS_WITHIN_MS
    while True:
        try:
            return ask()
        except passing as error:
            if on_wait is not None:
                on_wait(error)
                on_wait = None
            if clock.monotonic_ms() > last_ms:
                raise
            if client is not None:
                kafka_python.forget_controller_and_coordinators(client)
            asyncio.run(clock.sleep(RETRY_MS))


def attempts(within_ms: float, every_ms: float) -> Iterator[None]:
    """Again and again until the time is over, once at least: for a loop that is left when it is done."""
    clock = RealClock()
    last_ms = clock.monotonic_ms() + within_ms
    yield
    while clock.monotonic_ms() <= last_ms:
        asyncio.run(clock.sleep(every_ms))
        yield


def await_coordinators(client: Any, groups: list[str], on_wait: Callable[[Exception], None] | None = None) -> None:
    """Return when the groups' coordinators answer. The first request for a group creates the offsets topic."""
    answered(client, lambda: _described(client, groups), on_wait)


def _described(client: Any, groups: list[str]) -> dict[str, Any]:
    """What coordinators say of groups. kafka-python gives their errors as text; those that pass are raised here."""
    described: dict[str, Any] = client.describe_groups(groups)
    for group in described.values():
        for error in coordinator_moves():
            if error.__name__ in (group["error"] or ""):
                raise error
    others = [name for name, group in described.items() if group["group_state"] == "Dead"]
    if others:  # there are none, or they are consumer groups (KIP-848)
        described |= kafka_python.describe_consumer_groups(client, others)
    return described


def await_controller(client: Any) -> None:
    """Return when the controller answers: what changes topics is sent to it once."""
    from kafka.protocol.metadata import MetadataRequest

    request = MetadataRequest(topics=[])
    answered(client, lambda: kafka_python.send_to_controller(client, request))


def reason(error_code: int, message: str | None = None, asked: str | None = None) -> str:
    """A broker's error as `NAME: message`. `asked`: the right without which it is refused (`delete topic orders`)."""
    from kafka.errors import for_code

    error = for_code(error_code)
    text = f"{error.message}: {message or DESCRIPTIONS.get(error_code) or error.description}"
    return text + missing(error_code, asked)


def result_of(
    done: str, error_code: int, message: str | None = None, asked: str | None = None, *, otherwise: str | None = None
) -> dict[str, Any]:
    """The end of a row of `print_outcomes`: what was done; or else that it was not, and the `reason`."""
    if not error_code:
        return {"result": done}
    return {"result": otherwise or f"not {done}", "error": reason(error_code, message, asked)}


def no_topic(name: str) -> NoReturn:
    fail(f"there is no topic {name}. (All topics: barnabas topics list)", ExitCode.NOTHING_THERE)


def describe_topics(client: Any, names: list[str]) -> dict[str, Any]:
    """Metadata of the topics by name; one that does not exist ends the command."""
    # Not for an empty list: the client would ask for no topic. describe_topics never creates a topic.
    described = (
        {topic["name"]: topic for topic in answered(client, lambda: client.describe_topics(names))} if names else {}
    )
    for name, topic in described.items():
        if topic["error_code"] == UNKNOWN_TOPIC_OR_PARTITION:
            no_topic(name)
        if topic["error_code"]:
            fail(f"{name}: {reason(topic['error_code'])}", ExitCode.NOTHING_THERE)
    return described


def leaders_of(topics: Iterable[dict[str, Any]]) -> dict[Key, int]:
    """The leaders of those partitions of described topics that have one."""
    rows = ((topic["name"], row) for topic in topics for row in topic["partitions"])
    return {(name, row["partition_index"]): row["leader_id"] for name, row in rows if row["leader_id"] >= 0}


def replica_ends(client: Any, topics: Iterable[dict[str, Any]]) -> dict[Key, dict[int, int]]:
    """The end of the log of each replica, by partition and node id. A replica that does not answer is left out.

    A client may ask any replica as the debugging consumer (ListOffsets with replica id -2), as Kafka's tools do.
    """
    from kafka.errors import KafkaError

    leaders: dict[int, dict[Key, int]] = {}
    followers: dict[int, dict[Key, int]] = {}
    for topic in topics:
        for partition in topic["partitions"]:
            for node_id in partition["replica_nodes"]:
                nodes = leaders if node_id == partition["leader_id"] else followers
                nodes.setdefault(node_id, {})[topic["name"], partition["partition_index"]] = LATEST
    ends: dict[Key, dict[int, int]] = {}

    def ask(nodes: dict[int, dict[Key, int]], node_id: int) -> dict[Key, int]:
        request = list_offsets_request(nodes[node_id], replica_id=DEBUGGING_CONSUMER)
        try:
            return listed_offsets(kafka_python.send(client, request, node_id, REPLICA_ANSWERS_WITHIN_MS))
        except KafkaError:
            return {}

    for nodes in (leaders, followers):  # leaders first: so a replica that is in step does not seem to be behind
        for node_id, found in of_each(partial(ask, nodes), nodes).items():
            for key, end in found.items():
                ends.setdefault(key, {})[node_id] = end
    return ends


def list_offsets_request(
    times: Mapping[Key, int], *, replica_id: int = -1, isolation: int = 0, min_version: int = 1
) -> Any:
    """ListOffsets: of each of these partitions the offset at a time, or LATEST. From version 1 on it is one offset."""
    from kafka.protocol.consumer import ListOffsetsRequest

    make = ListOffsetsRequest.ListOffsetsTopic
    asked = grouped(
        (key[0], make.ListOffsetsPartition(partition_index=key[1], timestamp=time)) for key, time in times.items()
    )
    topics = [make(name=name, partitions=some) for name, some in asked.items()]
    return ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation, topics=topics, min_version=min_version)


def listed_offsets(response: Any) -> dict[Key, int]:
    """The offsets of the answer, without those that it refuses."""
    rows = ((topic.name, row) for topic in response.topics for row in topic.partitions)
    return {(name, row.partition_index): row.offset for name, row in rows if not row.error_code}


def replica_rows(client: Any, topics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each partition of the topics with its replicas, and how far each is behind the leader (None: not known)."""
    ends = replica_ends(client, topics)
    rows = []
    for topic in topics:
        for partition in sorted(topic["partitions"], key=lambda partition: partition["partition_index"]):
            known = ends.get((topic["name"], partition["partition_index"]), {})
            end = known.get(partition["leader_id"])
            rows.append(
                {
                    "topic": topic["name"],
                    "partition": partition["partition_index"],
                    "leader": partition["leader_id"] if partition["leader_id"] >= 0 else None,
                    "replicas": partition["replica_nodes"],
                    "in_sync": partition["isr_nodes"],
                    "offline": partition.get("offline_replicas") or [],
                    "lag": {
                        str(node_id): None if end is None or node_id not in known else max(0, end - known[node_id])
                        for node_id in partition["replica_nodes"]
                    },
                }
            )
    return rows


def out_of_sync(row: dict[str, Any]) -> str:
    """The replicas of a row that are not in sync, in words: `2 (1,204 behind), 3 (offline)`."""
    words = []
    for node_id in row["replicas"]:
        lag = row["lag"][str(node_id)]
        if node_id in row["offline"]:
            words.append(f"{node_id} (offline)")
        elif node_id not in row["in_sync"]:
            words.append(f"{node_id} ({'?' if lag is None else f'{lag:,}'} behind)")
    return ", ".join(words)


def no_group(name: str) -> NoReturn:
    fail(f"there is no group {name}. (All groups: barnabas groups list)", ExitCode.NOTHING_THERE)


def describe_groups(
    client: Any, names: list[str], *, may_be_missing: bool = False, on_wait: Callable[[Exception], None] | None = None
) -> dict[str, Any]:
    """Descriptions by name; a group that does not exist ends the command, or is left out."""
    described = {}
    for name, group in answered(client, lambda: _described(client, names), on_wait).items():
        # Before version 6 of DescribeGroups, a missing group is answered as a dead one without members.
        if group["group_state"] == "Dead":
            if not may_be_missing:
                no_group(name)
        elif group["error"]:
            fail(f"{name}: {group['error']}")
        else:
            described[name] = group
    return described


def refuse_members(group: str, described: dict[str, Any], advice: str) -> None:
    """End the command if the group has members: they would commit over what it writes."""
    members = described[group]["members"] if group in described else ()
    if members:
        fail(f"{group} has {counted(len(members), 'member')}, which would commit over it. {advice}")


def offsets_at(client: Any, partitions: Sequence[Any], place: Any) -> dict[Any, Any]:
    """The offset at this place (an OffsetSpec, or a time) of each partition's log, as its leader says it."""
    if not partitions:
        return {}
    found: dict[Any, Any] = answered(client, lambda: client.list_partition_offsets(dict.fromkeys(partitions, place)))
    return found


def committed_offsets(client: Any, group: str) -> dict[Any, Any]:
    """What a group has committed: kafka-python's OffsetAndMetadata by TopicPartition."""
    offsets = answered(client, lambda: client.list_group_offsets(group))[group]
    return {partition: found for partition, found in offsets.items() if found.offset >= 0}


def commit(client: Any, group: str, offsets: Mapping[Key, tuple[int, str, int]]) -> dict[Key, str]:
    """Commit offsets, each with its metadata and leader epoch (-1: none), for a group without members; the errors."""
    from kafka.structs import OffsetAndMetadata, TopicPartition

    wanted = {TopicPartition(*key): OffsetAndMetadata(*one) for key, one in offsets.items()}
    return errors_of(changed(client, lambda: client.alter_group_offsets(group, wanted)))


def errors_of(results: dict[Any, Any]) -> dict[Key, str]:
    """The reasons of those partitions that failed."""
    return {(key.topic, key.partition): reason(found.errno) for key, found in results.items() if found.errno}


def positions(
    client: Any,
    group: str,
    extra: Iterable[tuple[str, int]] = (),
    *,
    on_wait: Callable[[Exception], None] | None = None,
) -> list[dict[str, Any]]:
    """Committed offset, start and end of the log, and lag, of the partitions that the group committed and of `extra`.

    An offset that is not known (nothing is committed, or the topic is gone) is None.
    """
    from kafka.admin import OffsetSpec
    from kafka.structs import TopicPartition

    await_coordinators(client, [group], on_wait)
    committed = committed_offsets(client, group)
    partitions = sorted({*committed, *(TopicPartition(*partition) for partition in extra)})
    names = sorted({partition.topic for partition in partitions})
    topics = answered(client, lambda: client.describe_topics(names)) if partitions else []
    readable = leaders_of(topics)
    known = [partition for partition in partitions if partition in readable]
    earliest = offsets_at(client, known, OffsetSpec.EARLIEST)
    latest = offsets_at(client, known, OffsetSpec.LATEST)
    rows = []
    for partition in partitions:
        offset = committed[partition].offset if partition in committed else None
        start = earliest[partition].offset if partition in earliest else None
        end = latest[partition].offset if partition in latest else None
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": offset,
                "log_start_offset": start,
                "log_end_offset": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "metadata": committed[partition].metadata if partition in committed else None,
            }
        )
    return rows
