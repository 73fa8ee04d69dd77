"""Admin requests to a broker in virtual time: what Kafka's recorded stories (test_replay.py) do not tell."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from barnabas.protocol import frames, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    ProduceRequest,
)

World = Any  # of conftest.py
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def create(world: World, *topics: Any, timeout_ms: int = 5000, version: int = 7, validate_only: bool = False) -> Any:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only)
    return {topic.name: topic for topic in world.ask(ApiKey.CREATE_TOPICS, version, request).topics}


def topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> Any:
    return CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **more)


def test_the_offset_journal_is_made_by_brokers_only(make_world: type[Any]) -> None:
    """By hand it could have another number of partitions than the offsets topic."""
    world = make_world()
    refused = create(world, topic("__offset_journal", 3))["__offset_journal"]
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "offsets.journal.enable" in refused.error_message


@pytest.mark.parametrize(
    ("name", "configs", "error"),
    [
        ("t", {}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("t", {"nosuch": "1"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("t", {"nosuch": None}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("new", {"nosuch": "1"}, ErrorCode.INVALID_CONFIG),
        ("new", {"nosuch": None}, ErrorCode.INVALID_CONFIG),
        ("new", {}, ErrorCode.INVALID_REQUEST),
        ("a/b", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_of_several_reasons_to_refuse_a_topic_the_answer_has_kafkas(
    make_world: type[Any], name: str, configs: dict[str, str | None], error: ErrorCode
) -> None:
    """Who creates what may be there goes on only if told that it is there.

    Numbers beside an assignment are refused, and so is a partition that is assigned twice.
    """
    world = make_world()
    world.create_topic("t", 1)
    by_hand = [CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[0])] * 2
    wish = CreateTopicsRequest.CreatableTopicConfig
    asked = topic(name, assignments=by_hand, configs=[wish(name=key, value=configs[key]) for key in configs])
    assert create(world, asked)[name].error_code == error


@pytest.mark.parametrize("topics", [["absent"], [], ["absent", "t"]])
def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted_of_whatever_topic(
    make_world: type[Any], topics: list[str]
) -> None:
    """Kafka asks the coordinator, although no partition is left to ask for."""
    world = make_world()
    world.create_topic("t", 1)
    world.ask(ApiKey.FIND_COORDINATOR, 0, FindCoordinatorRequest(key="g"))
    world.env.run(world.env.clock.sleep(1_000))
    partition = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    rows = [OffsetDeleteRequest.OffsetDeleteRequestTopic(name=name, partitions=[partition]) for name in topics]
    answer = world.ask(ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest(group_id="g", topics=rows))
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def change(world: World, kind: int, name: str, *operations: tuple[str, int, str | None], dry: bool = False) -> int:
    """IncrementalAlterConfigs of one resource: the error code."""
    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in operations
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry)
    (result,) = world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    return int(result.error_code)


def describe(world: World, kind: int, name: str, *keys: str, docs: bool = False) -> dict[str, Any]:
    """DescribeConfigs of one resource: its entries by name."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=docs)
    (result,) = world.ask(ApiKey.DESCRIBE_CONFIGS, 4, request).results
    assert result.error_code == ErrorCode.NONE, result
    return {entry.name: entry for entry in result.configs}


def listed(world: World, kind: int) -> list[str]:
    request = ListConfigResourcesRequest(resource_types=[kind])
    response = world.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, request)
    return [resource.resource_name for resource in response.config_resources]


# --- topics ---


@pytest.mark.parametrize(("timeout_ms", "is_done"), [(-1, False), (0, False), (1000, True)])
def test_without_time_nothing_is_done(world: World, timeout_ms: int, is_done: bool) -> None:
    """As in Kafka 4.1, whose controller finds that the time for it is over."""
    name = f"hurry{timeout_ms}"
    error = ErrorCode.NONE if is_done else ErrorCode.REQUEST_TIMED_OUT
    assert create(world, topic(name), timeout_ms=timeout_ms)[name].error_code == error
    world.env.run(world.env.clock.sleep(100))
    assert world.broker.metadata_cache.contains(name) is is_done
    stays = f"stays{timeout_ms}"
    create(world, topic(stays))
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=stays, count=3, assignments=None)],
        timeout_ms=timeout_ms,
    )
    assert world.ask(ApiKey.CREATE_PARTITIONS, 3, grow).results[0].error_code == error
    world.env.run(world.env.clock.sleep(100))
    assert world.broker.metadata_cache.partition_count(stays) == (3 if is_done else 1)
    delete = DeleteTopicsRequest(topic_names=[stays], timeout_ms=timeout_ms)
    assert world.ask(ApiKey.DELETE_TOPICS, 5, delete).responses[0].error_code == error
    world.env.run(world.env.clock.sleep(100))
    assert world.broker.metadata_cache.contains(stays) is not is_done


def test_without_time_only_what_needs_no_look_is_said(world: World) -> None:
    """As Kafka 4.3.1: if a row is left that it would have to look at, all rows say that there is no time."""
    invalid, late = ErrorCode.INVALID_REQUEST, ErrorCode.REQUEST_TIMED_OUT
    twice = [topic("hasty"), topic("hasty")]
    grown = [CreatePartitionsRequest.CreatePartitionsTopic(name="hasty", count=3, assignments=None)] * 2
    state = DeleteTopicsRequest.DeleteTopicState
    misnamed = [state(name="hasty"), state(name="hasty"), state(name=None), state(name="x", topic_id=b"1" * 16)]
    other = CreatePartitionsRequest.CreatePartitionsTopic(name="other", count=3, assignments=None)
    for key, version, request in (
        (ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=twice)),
        (ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[*twice, topic("other")])),
        (ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=grown)),
        (ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=[*grown, other])),
        (ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=misnamed)),
        (ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=[*misnamed, state(name="other")])),
    ):
        request.timeout_ms = 0
        has_other = "other" in repr(request)
        answer = world.ask(key, version, request)
        rows = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
        assert {row.error_code for row in rows} == {late if has_other else invalid}, key


@pytest.mark.parametrize("then", ["delete", "grow"])
def test_a_topic_is_there_for_others_from_the_moment_it_is_written(world: World, then: str) -> None:
    """Its creator waits until the broker knows of it; another client need not ask twice."""
    name = f"young-{then}"

    async def run() -> Any:
        maker, other = await world.connect(), await world.connect()
        maker.send(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic(name)], timeout_ms=10_000))
        while await world.broker.coordination.exists(f"/brokers/topics/{name}") is None:
            await world.env.clock.sleep(0)
        assert not world.broker.metadata_cache.contains(name)
        if then == "delete":
            request: Any = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
            answer = (await other.ask(ApiKey.DELETE_TOPICS, 5, request)).responses[0]
        else:
            rows = [CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=3, assignments=None)]
            request = CreatePartitionsRequest(topics=rows, timeout_ms=10_000)
            answer = (await other.ask(ApiKey.CREATE_PARTITIONS, 3, request)).results[0]
        for client in (maker, other):
            client.transport.close()
        return answer

    assert world.env.run(run()).error_code == ErrorCode.NONE
    assert world.broker.metadata_cache.partition_count(name) == (0 if then == "delete" else 3)


def test_each_topic_of_a_request_stands_for_itself(world: World) -> None:
    results = create(world, topic("good", 2), topic("bad name"), topic("none", 0))
    assert {name: result.error_code for name, result in results.items()} == {
        "good": ErrorCode.NONE,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "none": ErrorCode.INVALID_PARTITIONS,
    }
    assert results["good"].topic_id == world.broker.metadata_cache.topic_id("good")
    assert results["good"].num_partitions == 2


def test_what_is_wrong_with_a_topic(world: World) -> None:
    world.create_topic("a.b")
    assignment = CreateTopicsRequest.CreatableReplicaAssignment
    config = CreateTopicsRequest.CreatableTopicConfig
    twice = [assignment(partition_index=0, broker_ids=[0]), assignment(partition_index=0, broker_ids=[0])]
    gap = [assignment(partition_index=1, broker_ids=[0])]
    results = create(
        world,
        topic("a_b"),
        topic("null", configs=[config(name="retention.ms", value=None)]),
        topic("twice", -1, -1, assignments=twice),
        topic("gap", -1, -1, assignments=gap),
    )
    assert {name: result.error_code for name, result in results.items()} == {
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "null": ErrorCode.INVALID_CONFIG,
        "twice": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "gap": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    }
    assert all(result.error_message for result in results.values())


@pytest.mark.parametrize(
    ("counts", "error"), [((9_999,), 0), ((10_000,), 44), ((5_000, 4_998), 0), ((5_000, 4_999), 44)]
)
def test_partitions_of_one_request_are_limited(world: World, counts: tuple[int, ...], error: int) -> None:
    topics = [topic(f"many-{index}", count) for index, count in enumerate(counts)]
    results = create(world, *topics, validate_only=True)
    assert {result.error_code for result in results.values()} == {error}


def test_kafkas_metadata_log_is_no_topic(world: World) -> None:
    name = "__cluster_metadata"
    assert create(world, topic(name))[name].error_code == ErrorCode.INVALID_REQUEST


def test_a_dry_run_makes_nothing(world: World) -> None:
    result = create(world, topic("dry", 3), validate_only=True)["dry"]
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 3)
    assert not world.broker.metadata_cache.contains("dry")


def test_a_topic_named_twice_is_not_deleted(world: World) -> None:
    world.create_topic("named-twice")
    request = DeleteTopicsRequest(topic_names=["named-twice", "named-twice"], timeout_ms=1000)
    (result,) = world.ask(ApiKey.DELETE_TOPICS, 5, request).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert world.broker.metadata_cache.contains("named-twice")


def test_a_topic_that_is_named_by_its_id_too_is_not_deleted(world: World) -> None:
    """Kafka answers once, under the name. A name that stands there twice counts as none, and the id alone is left."""
    row = DeleteTopicsRequest.DeleteTopicState
    topic_id = world.create_topic("two-names")
    by_id, by_name = row(name=None, topic_id=topic_id), row(name="two-names")
    for rows in ([by_id, by_name], [by_name, by_id], [by_id, by_name, by_id]):
        (result,) = world.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=rows, timeout_ms=1000)).responses
        answered = result.name, result.topic_id, result.error_code
        assert answered == ("two-names", topic_id, ErrorCode.INVALID_REQUEST)
        assert world.broker.metadata_cache.contains("two-names")
    request = DeleteTopicsRequest(topics=[by_id, by_name, by_name], timeout_ms=1000)
    errors = {result.error_code for result in world.ask(ApiKey.DELETE_TOPICS, 6, request).responses}
    assert errors == {ErrorCode.NONE, ErrorCode.INVALID_REQUEST}
    assert not world.broker.metadata_cache.contains("two-names")


@pytest.mark.parametrize(("version", "error"), [(1, ErrorCode.INVALID_REQUEST), (4, ErrorCode.TOPIC_DELETION_DISABLED)])
def test_deletion_can_be_forbidden(
    world: World, monkeypatch: pytest.MonkeyPatch, version: int, error: ErrorCode
) -> None:
    world.create_topic(f"kept-{version}")
    monkeypatch.setattr(world.broker.config, "delete_topic_enable", False)
    request = DeleteTopicsRequest(topic_names=[f"kept-{version}"], timeout_ms=1000)
    (result,) = world.ask(ApiKey.DELETE_TOPICS, version, request).responses
    assert result.error_code == error
    assert world.broker.metadata_cache.contains(f"kept-{version}")


def test_a_deleted_topic_takes_its_settings_along(world: World) -> None:
    world.create_topic("again", retention_ms="5")
    world.ask(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["again"], timeout_ms=5000))
    world.create_topic("again")
    assert describe(world, TOPIC, "again", "retention.ms")["retention.ms"].config_source != 1


def test_partitions_can_only_grow(world: World) -> None:
    world.create_topic("growing", 2)
    errors = {}
    for count in (1, 2, 3):
        grown = CreatePartitionsRequest.CreatePartitionsTopic(name="growing", count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[grown], timeout_ms=5000)
        (result,) = world.ask(ApiKey.CREATE_PARTITIONS, 3, request).results
        errors[count] = result.error_code
    invalid = ErrorCode.INVALID_PARTITIONS
    assert errors == {1: invalid, 2: invalid, 3: ErrorCode.NONE}
    assert world.broker.metadata_cache.partition_count("growing") == 3


# --- settings ---


def test_a_topics_settings_reach_its_log(world: World) -> None:
    world.create_topic("tuned")
    log = world.broker.log_manager.get("tuned", 0)
    assert change(world, TOPIC, "tuned", ("retention.ms", SET, "1234")) == ErrorCode.NONE
    assert log.config.retention_ms == 1234
    assert change(world, TOPIC, "tuned", ("retention.ms", SET, "5"), dry=True) == ErrorCode.NONE
    assert log.config.retention_ms == 1234
    assert change(world, TOPIC, "tuned", ("retention.ms", DELETE, None)) == ErrorCode.NONE
    assert log.config.retention_ms == 604_800_000


class Contended:
    """A coordination in which another process changes the node just before the first write."""

    def __init__(self, coordination: Any, before_write: Callable[[], Awaitable[None]]) -> None:
        self.coordination = coordination
        self.before_write: Callable[[], Awaitable[None]] | None = before_write

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coordination, name)

    async def multi(self, operations: Any) -> Any:
        before, self.before_write = self.before_write, None
        if before is not None:
            await before()
        return await self.coordination.multi(operations)


@pytest.mark.parametrize("present", [{}, {"retention_bytes": "3"}])
def test_changes_at_the_same_time_do_not_undo_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch, present: dict[str, str]
) -> None:
    name = f"contended-{len(present)}"
    world.create_topic(name, **present)
    admin, path = world.broker.topic_admin, f"topics/{name}"

    async def somebody() -> None:
        await admin.change_overrides(path, lambda current: {**current, "segment.ms": "2"})

    monkeypatch.setattr(admin, "_coordination", Contended(world.broker.coordination, somebody))
    assert change(world, TOPIC, name, ("retention.ms", SET, "1")) == ErrorCode.NONE
    expected = {"retention.ms": "1", "segment.ms": "2", **{k.replace("_", "."): v for k, v in present.items()}}
    assert world.env.run(admin.overrides(path)) == expected


def test_words_are_appended_and_subtracted(world: World) -> None:
    world.create_topic("policies")
    assert change(world, TOPIC, "policies", ("cleanup.policy", APPEND, "compact")) == ErrorCode.NONE
    entry = describe(world, TOPIC, "policies", "cleanup.policy")["cleanup.policy"]
    assert (entry.value, entry.config_source) == ("delete,compact", 1)
    assert change(world, TOPIC, "policies", ("cleanup.policy", SUBTRACT, "delete")) == ErrorCode.NONE
    assert world.broker.log_manager.get("policies", 0).config.cleanup_policy == {"compact"}


def test_a_brokers_own_setting_outranks_that_of_all(world: World) -> None:
    key = "log.cleaner.threads"
    assert change(world, BROKER, "", (key, SET, "2")) == ErrorCode.NONE
    entry = describe(world, BROKER, "0", key)[key]
    assert (entry.value, entry.config_source, entry.read_only) == ("2", 3, False)
    assert change(world, BROKER, "0", (key, SET, "3")) == ErrorCode.NONE
    entry = describe(world, BROKER, "0", key)[key]
    assert [(synonym.value, synonym.source) for synonym in entry.synonyms] == [("3", 2), ("2", 3), ("1", 5)]
    assert world.broker.config.log_cleaner_threads == 3
    assert list(describe(world, BROKER, "")) == [key]
    assert change(world, BROKER, "0", (key, DELETE, None)) == ErrorCode.NONE
    assert change(world, BROKER, "", (key, DELETE, None)) == ErrorCode.NONE
    assert world.broker.config.log_cleaner_threads == 1
    assert describe(world, BROKER, "") == {}


def test_a_broker_default_reaches_topics(world: World) -> None:
    world.create_topic("led")
    assert change(world, BROKER, "", ("message.max.bytes", SET, "2000")) == ErrorCode.NONE
    assert world.broker.log_manager.get("led", 0).config.max_message_bytes == 2000
    assert change(world, BROKER, "", ("message.max.bytes", DELETE, None)) == ErrorCode.NONE
    assert world.broker.log_manager.get("led", 0).config.max_message_bytes == 1_048_588


def test_texts_come_when_they_are_asked_for(world: World) -> None:
    world.create_topic("documented")
    assert describe(world, TOPIC, "documented", "retention.ms")["retention.ms"].documentation is None
    assert describe(world, TOPIC, "documented", "retention.ms", docs=True)["retention.ms"].documentation


def test_settings_of_groups_and_client_metrics_are_kept(world: World) -> None:
    assert listed(world, GROUP) == []
    name = "a/b ü <default>"
    assert change(world, GROUP, name, ("consumer.session.timeout.ms", SET, "50000")) == ErrorCode.NONE
    assert change(world, METRICS, "cpu", ("interval.ms", SET, "60000"), ("metrics", SET, "a,b")) == ErrorCode.NONE
    assert (listed(world, GROUP), listed(world, METRICS)) == ([name], ["cpu"])
    entries = describe(world, GROUP, name)
    assert (entries["consumer.session.timeout.ms"].value, entries["consumer.session.timeout.ms"].config_source) == (
        "50000",
        8,
    )
    assert entries["consumer.heartbeat.interval.ms"].config_source == 5
    entries = describe(world, METRICS, "cpu")
    assert {(entry.name, entry.value, entry.config_source) for entry in entries.values()} == {
        ("interval.ms", "60000", 7),
        ("metrics", "a,b", 7),
        ("match", "", 5),
    }
    assert change(world, GROUP, name, ("consumer.session.timeout.ms", DELETE, None)) == ErrorCode.NONE
    assert listed(world, GROUP) == [], "a group without settings is not listed"


@pytest.mark.parametrize(
    ("kind", "name", "operation", "error"),
    [
        (GROUP, "", ("consumer.session.timeout.ms", SET, "50000"), ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (METRICS, "m", ("interval.ms", SET, "99"), ErrorCode.INVALID_REQUEST),
        (METRICS, "m", ("match", SET, "nonsense"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "no\0topic", ("retention.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (METRICS, "m", ("metrics", APPEND, "a"), ErrorCode.INVALID_CONFIG),
        (BROKER, "0", ("log.cleanup.policy", APPEND, ""), ErrorCode.INVALID_REQUEST),
        (TOPIC, "absent", ("retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "", ("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (METRICS, "", ("metrics", APPEND, "a"), ErrorCode.INVALID_CONFIG),
        (LOGGER, "0", ("barnabas.nobody", APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
        (BROKER, "7", ("log.cleaner.threads", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ("log.cleaner.threads", SET, "1"), ErrorCode.INVALID_REQUEST),
        (LOGGER, "7", ("root", SET, "INFO"), ErrorCode.INVALID_REQUEST),
        (LOGGER, "0", ("barnabas.nobody", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (3, "x", ("root", SET, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_changed(
    world: World, kind: int, name: str, operation: tuple[str, int, str], error: ErrorCode
) -> None:
    assert change(world, kind, name, operation) == error


def test_a_resource_of_an_unknown_type_makes_the_whole_question_invalid(world: World) -> None:
    asked = [
        DescribeConfigsRequest.DescribeConfigsResource(resource_type=kind, resource_name="0", configuration_keys=None)
        for kind in (BROKER, 3)
    ]
    results = world.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=asked)).results
    found = [(result.error_code, result.error_message, result.configs) for result in results]
    assert found == [(ErrorCode.INVALID_REQUEST, "Unknown resource type 3", [])] * 2


def test_levels_of_loggers(world: World) -> None:
    name = "barnabas.broker"
    before = logging.getLogger(name).level
    try:
        assert change(world, LOGGER, "0", (name, SET, "ERROR"), dry=True) == ErrorCode.NONE
        assert logging.getLogger(name).level == before
        assert change(world, LOGGER, "0", (name, SET, "ERROR")) == ErrorCode.NONE
        entry = describe(world, LOGGER, "0", name)[name]
        assert (entry.value, entry.config_source) == ("ERROR", 6)
    finally:
        logging.getLogger(name).setLevel(before)


def test_a_logger_that_is_named_twice_is_not_changed(world: World) -> None:
    twice = [("barnabas.nobody", SET, "INFO"), ("barnabas.nobody", SET, "ERROR")]
    assert change(world, LOGGER, "0", *twice) == ErrorCode.INVALID_REQUEST


def test_loggers_cannot_be_replaced_as_a_whole(world: World) -> None:
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=LOGGER, resource_name="0", configs=[])
    request = AlterConfigsRequest(resources=[resource])
    assert world.ask(ApiKey.ALTER_CONFIGS, 2, request).responses[0].error_code == ErrorCode.INVALID_REQUEST


# --- what lies where ---


def produce(world: World, name: str, producer_id: int) -> int:
    records = record_batch.build(
        [record_batch.Record(0, 5, b"k", b"v", [])], producer_id=producer_id, producer_epoch=0, base_sequence=0
    )
    partition = ProduceRequest.PartitionProduceData(index=0, records=records)
    data = ProduceRequest.TopicProduceData(name=name, partition_data=[partition])
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data])
    (answer,) = world.ask(ApiKey.PRODUCE, 9, request).responses
    assert answer.partition_responses[0].error_code == ErrorCode.NONE
    return len(records)


def test_log_sizes(world: World) -> None:
    world.create_topic("sized", 2)
    size = produce(world, "sized", -1)
    wanted = DescribeLogDirsRequest.DescribableLogDirTopic(topic="sized", partitions=[0, 1, 5])
    absent = DescribeLogDirsRequest.DescribableLogDirTopic(topic="absent", partitions=[0])
    (result,) = world.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=[wanted, absent])).results
    assert result.log_dir == "/data"
    assert result.total_bytes >= result.usable_bytes > 0
    (sized,) = result.topics
    sizes = {partition.partition_index: partition.partition_size for partition in sized.partitions}
    assert sizes == {0: size, 1: 0}
    (result,) = world.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=[])).results
    assert result.topics == []
    (result,) = world.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None)).results
    assert "sized" in {topic.name for topic in result.topics}


def test_producers_of_a_partition(world: World) -> None:
    world.create_topic("written")
    produce(world, "written", 17)
    asked = [
        DescribeProducersRequest.TopicRequest(name="written", partition_indexes=[0, 4]),
        DescribeProducersRequest.TopicRequest(name="absent", partition_indexes=[0]),
    ]
    written, absent = world.ask(ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(topics=asked)).topics
    (producer,) = written.partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (17, 0, 0)
    assert (producer.last_timestamp, producer.coordinator_epoch, producer.current_txn_start_offset) == (5, -1, -1)
    assert written.partitions[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert written.partitions[1].error_message is None
    assert absent.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert absent.partitions[0].error_message


def test_the_offsets_topic_cannot_grow(make_world: type[World]) -> None:
    """Unlike in Kafka: groups would move away from their offsets."""
    world = make_world()
    while not world.broker.metadata_cache.contains("__consumer_offsets"):
        world.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="any"))
        world.env.clock.advance(1000)
    before = world.broker.metadata_cache.partition_count("__consumer_offsets")
    added = CreatePartitionsRequest.CreatePartitionsTopic(name="__consumer_offsets", count=before + 1, assignments=None)
    grown = world.ask(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=[added], timeout_ms=5000))
    assert grown.results[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "groups would move away" in grown.results[0].error_message
    world.env.clock.advance(1000)
    assert world.broker.metadata_cache.partition_count("__consumer_offsets") == before
    world.env.run(world.broker.stop())


def test_a_change_of_settings_is_one_line_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    create(world, topic("told-once"))
    for kind, name, setting, value in (
        (TOPIC, "told-once", "retention.ms", "1000"),
        (BROKER, "", "log.retention.ms", "77000"),
        (GROUP, "told-once", "consumer.session.timeout.ms", "50000"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO, "barnabas"):
            assert change(world, kind, name, (setting, SET, value)) == ErrorCode.NONE
            world.env.clock.advance(100)
        assert len(caplog.records) == 1, (kind, caplog.messages)
    change(world, BROKER, "", ("log.retention.ms", DELETE, None))


def test_names_that_collide_are_not_both_made_over_two_connections(world: World) -> None:
    async def story() -> list[int]:
        clients = [await world.connect() for _ in range(4)]
        names = ("c.x", "c_x", "c.x", "d.x")
        for client, name in zip(clients, names):
            client.send(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic(name)], timeout_ms=5000))
        found = []
        for client in clients:
            answer = await client.answer()
            found.append(frames.decode_response(ApiKey.CREATE_TOPICS, 5, memoryview(answer))[1].topics[0].error_code)
        return found

    assert world.env.run(story()) == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.NONE,
    ]


def test_partitions_added_over_two_connections_do_not_undo_each_other(world: World) -> None:
    create(world, topic("growing"))

    async def story() -> list[int]:
        clients = [await world.connect() for _ in range(3)]
        for client, count in zip(clients, (8, 9, 8)):
            wanted = CreatePartitionsRequest.CreatePartitionsTopic(name="growing", count=count, assignments=None)
            client.send(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=[wanted], timeout_ms=5000))
        found = []
        for client in clients:
            answer = await client.answer()
            reply = frames.decode_response(ApiKey.CREATE_PARTITIONS, 3, memoryview(answer))[1]
            found.append(reply.results[0].error_code)
        return found

    eight, nine, again_eight = world.env.run(story())  # in whatever order they were taken
    assert nine == ErrorCode.NONE
    assert ErrorCode.INVALID_PARTITIONS in (eight, again_eight)
    world.env.clock.advance(100)
    assert len(world.broker.metadata_cache.topics["growing"]) == 9


def test_an_offsets_topic_that_cannot_be_made_is_said_once_with_what_to_do(
    make_world: type[World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(offsets_topic_replication_factor="3")
    with caplog.at_level(logging.INFO, "barnabas.broker"):
        for version in (0, 3):
            for _ in range(20):
                answer = world.ask(ApiKey.FIND_COORDINATOR, version, FindCoordinatorRequest(key="any"))
                assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                world.env.clock.advance(1_000)
    assert answer.error_message.startswith("The coordinator is not available.")
    assert "offsets.topic.replication.factor" in answer.error_message
    assert [(row.levelname, row.message) for row in caplog.records if "topic __consumer_offsets" in row.message] == [
        ("INFO", "topic __consumer_offsets waits for 2 more brokers"),
        (
            "WARNING",
            "topic __consumer_offsets cannot be created: offsets.topic.replication.factor is 3, and 1 broker is "
            "registered. Set it to at most 1 in the settings that the broker starts with, or start more brokers.",
        ),
    ]


def test_offsets_in_the_tree_go_with_their_topic_and_with_their_group(make_world: type[World]) -> None:
    world = make_world(offsets_storage="zookeeper")
    while not world.broker.metadata_cache.contains("__consumer_offsets"):
        world.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="any"))
        world.env.clock.advance(1000)
    create(world, topic("read"))

    def commit() -> None:
        row = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        rows = OffsetCommitRequest.OffsetCommitRequestTopic(name="read", partitions=[row])
        response = world.ask(ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(group_id="g", topics=[rows]))
        assert response.topics[0].partitions[0].error_code == ErrorCode.NONE

    def committed() -> int:
        asked = OffsetFetchRequest.OffsetFetchRequestTopic(name="read", partition_indexes=[0])
        response = world.ask(ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest(group_id="g", topics=[asked]))
        return int(response.topics[0].partitions[0].committed_offset)

    def deleted() -> int:
        response = world.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=["g"]))
        return int(response.results[0].error_code)

    commit()
    assert committed() == 7
    assert deleted() == ErrorCode.NONE
    assert committed() == -1
    assert deleted() == ErrorCode.GROUP_ID_NOT_FOUND
    commit()
    named = DeleteTopicsRequest(topic_names=["read"], timeout_ms=5000)
    assert world.ask(ApiKey.DELETE_TOPICS, 5, named).responses[0].error_code == ErrorCode.NONE
    world.env.clock.advance(1000)
    create(world, topic("read"))
    assert committed() == -1
    world.env.run(world.broker.stop())
