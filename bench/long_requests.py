"""Scenes of `python -m bench stalls` with requests as long as they may be: as many small rows as `--megabytes` hold.

A client may send such a request by mistake or in bad faith, and socket.request.max.bytes allows it. The controller
sends long ones to a broker that leads and follows very many partitions.
"""

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Message

from bench.stalls import TIMEOUT_MS, Bench

WIDE = "wide"
UNKNOWN = "unknown"
FETCHED = 200_000  # partitions that one Fetch names
CONTROLLED = 5_000  # partitions that the controller speaks of


class Long:
    """A request that can have any number of rows."""

    def __init__(self, api: ApiKey, version: int, with_rows: Callable[[Any], Message], rows: Sequence[Any]) -> None:
        self.api = api
        self.version = version
        self._with_rows = with_rows
        self._rows = rows

    def frame(self, bytes_max: int, rows_max: int) -> bytes:
        """The request with the rows again and again, as far as the limits allow."""
        empty, some = len(self._encoded([])), len(self._encoded(self._rows))
        count = min((bytes_max - empty) * len(self._rows) // (some - empty), rows_max)
        return self._encoded(list(islice(cycle(self._rows), count)))

    def _encoded(self, rows: Sequence[Any]) -> bytes:
        return frames.encode_request(self.api, self.version, 1, "bench", self._with_rows(rows))


def long_ones(topic: str, count: int) -> dict[str, Long]:
    """A request for each API that takes a list of partitions; they exist in `WIDE`, but not in `UNKNOWN`."""
    indexes = range(count)
    fetch, produce, lists = messages.FetchRequest, messages.ProduceRequest, messages.ListOffsetsRequest
    commit, offsets, metadata = messages.OffsetCommitRequest, messages.OffsetFetchRequest, messages.MetadataRequest
    delete, epochs = messages.DeleteRecordsRequest, messages.OffsetForLeaderEpochRequest

    def fetching(epoch: int) -> Callable[[Any], Message]:
        return lambda rows: fetch(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=50 << 20,
            session_epoch=epoch,
            topics=[fetch.FetchTopic(topic=topic, partitions=rows)],
        )

    fetched = [fetch.FetchPartition(partition=i, fetch_offset=0, partition_max_bytes=1000) for i in indexes]
    group = offsets.OffsetFetchRequestGroup
    of_topic = offsets.OffsetFetchRequestTopics
    return {
        "fetch": Long(ApiKey.FETCH, 11, fetching(-1), fetched),
        "fetch-session": Long(ApiKey.FETCH, 11, fetching(0), fetched),
        "produce": Long(
            ApiKey.PRODUCE,
            9,
            lambda rows: produce(
                acks=-1,
                timeout_ms=TIMEOUT_MS,
                topic_data=[produce.TopicProduceData(name=topic, partition_data=rows)],
            ),
            [produce.PartitionProduceData(index=i, records=None) for i in indexes],
        ),
        "list-offsets": Long(
            ApiKey.LIST_OFFSETS,
            7,
            lambda rows: lists(replica_id=-1, topics=[lists.ListOffsetsTopic(name=topic, partitions=rows)]),
            [lists.ListOffsetsPartition(partition_index=i, timestamp=-1) for i in indexes],
        ),
        "offset-commit": Long(
            ApiKey.OFFSET_COMMIT,
            8,
            lambda rows: commit(group_id="g", topics=[commit.OffsetCommitRequestTopic(name=topic, partitions=rows)]),
            [commit.OffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in indexes],
        ),
        "offset-fetch": Long(
            ApiKey.OFFSET_FETCH,
            8,
            lambda rows: offsets(groups=[group(group_id="g", topics=[of_topic(name=topic, partition_indexes=rows)])]),
            indexes,
        ),
        "metadata": Long(
            ApiKey.METADATA,
            9,
            lambda rows: metadata(topics=rows, allow_auto_topic_creation=False),
            [metadata.MetadataRequestTopic(name=topic if topic == WIDE else f"u{i}") for i in indexes],
        ),
        "delete-records": Long(
            ApiKey.DELETE_RECORDS,
            2,
            lambda rows: delete(topics=[delete.DeleteRecordsTopic(name=topic, partitions=rows)], timeout_ms=TIMEOUT_MS),
            [delete.DeleteRecordsPartition(partition_index=i, offset=0) for i in indexes],
        ),
        "leader-epochs": Long(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            lambda rows: epochs(replica_id=-2, topics=[epochs.OffsetForLeaderTopic(topic=topic, partitions=rows)]),
            [epochs.OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in indexes],
        ),
    }


def long_lists_of_names(count: int) -> dict[str, Long]:
    """A request for each API that takes a list of groups, topics or members, which do not exist."""
    names = [f"n{i}" for i in range(count)]
    producers, pages = messages.DescribeProducersRequest, messages.DescribeTopicPartitionsRequest
    configs, forget, leave = messages.DescribeConfigsRequest, messages.OffsetDeleteRequest, messages.LeaveGroupRequest
    create, grow, delete = messages.CreateTopicsRequest, messages.CreatePartitionsRequest, messages.DeleteTopicsRequest
    alter, elect = messages.IncrementalAlterConfigsRequest, messages.ElectLeadersRequest
    finding = messages.FindCoordinatorRequest
    return {
        "find-coordinators": Long(
            ApiKey.FIND_COORDINATOR, 4, lambda rows: finding(key_type=0, coordinator_keys=rows), names
        ),
        "describe-groups": Long(
            ApiKey.DESCRIBE_GROUPS, 5, lambda rows: messages.DescribeGroupsRequest(groups=rows), names
        ),
        "delete-groups": Long(
            ApiKey.DELETE_GROUPS, 2, lambda rows: messages.DeleteGroupsRequest(groups_names=rows), names
        ),
        "leave-group": Long(
            ApiKey.LEAVE_GROUP,
            5,
            lambda rows: leave(group_id="g", members=rows),
            [leave.MemberIdentity(member_id=name) for name in names],
        ),
        "offset-delete": Long(
            ApiKey.OFFSET_DELETE,
            0,
            lambda rows: forget(group_id="g", topics=[forget.OffsetDeleteRequestTopic(name=UNKNOWN, partitions=rows)]),
            [forget.OffsetDeleteRequestPartition(partition_index=i) for i in range(count)],
        ),
        "describe-producers": Long(
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            lambda rows: producers(topics=[producers.TopicRequest(name=UNKNOWN, partition_indexes=rows)]),
            range(count),
        ),
        "describe-partitions": Long(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            lambda rows: pages(topics=rows, response_partition_limit=2000),
            [pages.TopicRequest(name=name) for name in names],
        ),
        "describe-configs": Long(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            lambda rows: configs(resources=rows),
            [configs.DescribeConfigsResource(resource_type=2, resource_name=name) for name in names],
        ),
        "alter-configs": Long(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            lambda rows: alter(resources=rows),
            [alter.AlterConfigsResource(resource_type=2, resource_name=name) for name in names],
        ),
        "create-topics": Long(
            ApiKey.CREATE_TOPICS,
            7,
            lambda rows: create(topics=rows, timeout_ms=TIMEOUT_MS, validate_only=True),
            [create.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names],
        ),
        "create-partitions": Long(
            ApiKey.CREATE_PARTITIONS,
            3,
            lambda rows: grow(topics=rows, timeout_ms=TIMEOUT_MS, validate_only=True),
            [grow.CreatePartitionsTopic(name=name, count=2) for name in names],
        ),
        "delete-topics": Long(
            ApiKey.DELETE_TOPICS, 4, lambda rows: delete(topic_names=rows, timeout_ms=TIMEOUT_MS), names
        ),
        "elect-leaders": Long(
            ApiKey.ELECT_LEADERS,
            2,
            lambda rows: elect(
                timeout_ms=TIMEOUT_MS, topic_partitions=[elect.TopicPartitions(topic=UNKNOWN, partitions=rows)]
            ),
            range(count),
        ),
    }


async def long_lists(bench: Bench) -> None:
    """Requests of groups and of the admin with very many names."""
    for name, long in long_lists_of_names(bench.partitions).items():
        await bench.timed_frame(name, long.frame(bench.megabytes << 20, 1 << 40))


async def long_requests(bench: Bench) -> None:
    """Each API that takes a list, with a list of rows that exist, then of rows that do not."""
    count = bench.partitions - 1
    await bench.create_topics((WIDE, count))
    for topic, word in ((WIDE, "known"), (UNKNOWN, "unknown")):
        for name, long in long_ones(topic, count).items():
            rows_max = FETCHED if long.api is ApiKey.FETCH else 1 << 40
            await bench.timed_frame(f"{name}-{word}", long.frame(bench.megabytes << 20, rows_max))


async def control(bench: Bench) -> None:
    """What the controller says to a broker of very many partitions, each time in one request."""
    await bench.create_topics((WIDE, CONTROLLED))
    broker = bench.broker
    topic_id = broker.metadata_cache.topic_id(WIDE)
    said: dict[str, Any] = {"controller_id": 0, "controller_epoch": broker.replica_manager.controller_epoch}
    said["broker_epoch"] = broker.replica_manager.broker_epoch
    update = messages.UpdateMetadataRequest
    lead = messages.LeaderAndIsrRequest
    stop = messages.StopReplicaRequest
    us, other = broker.node_id, broker.node_id + 1
    epoch = 0
    for name, topic, leader in (
        ("lead", WIDE, us),
        ("follow", WIDE, other),
        ("lead-again", WIDE, us),
        ("lead-new", UNKNOWN, us),
    ):
        epoch += 1
        replicas = [us, other]
        states = [
            lead.LeaderAndIsrPartitionState(
                partition_index=i,
                leader=leader,
                leader_epoch=epoch,
                isr=[leader],
                partition_epoch=epoch,
                replicas=replicas,
                controller_epoch=said["controller_epoch"],
            )
            for i in range(CONTROLLED)
        ]
        known = topic_id if topic == WIDE else bytes(15) + b"u"
        topics = [lead.LeaderAndIsrTopicState(topic_name=topic, topic_id=known, partition_states=states)]
        await bench.timed(name, ApiKey.LEADER_AND_ISR, 7, lead(**said, topic_states=topics))
        rows = [
            update.UpdateMetadataPartitionState(
                partition_index=i, leader=leader, leader_epoch=epoch, isr=[leader], replicas=replicas
            )
            for i in range(CONTROLLED)
        ]
        told = [update.UpdateMetadataTopicState(topic_name=topic, topic_id=known, partition_states=rows)]
        live = [
            update.UpdateMetadataBroker(
                id=0, endpoints=[update.UpdateMetadataEndpoint(host="127.0.0.1", port=9, listener="PLAINTEXT")]
            )
        ]
        updated = update(**said, topic_states=told, live_brokers=live)
        await bench.timed(f"update-metadata-{name}", ApiKey.UPDATE_METADATA, 8, updated)
    gone = [
        stop.StopReplicaPartitionState(partition_index=i, leader_epoch=epoch, delete_partition=True)
        for i in range(CONTROLLED)
    ]
    stopped = stop(**said, topic_states=[stop.StopReplicaTopicState(topic_name=UNKNOWN, partition_states=gone)])
    await bench.timed("stop-replica", ApiKey.STOP_REPLICA, 4, stopped)
