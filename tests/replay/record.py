"""Record what an Apache Kafka answers, as a file of tests/golden/wire.

    python tests/replay/record.py --bootstrap 127.0.0.1:9092 --out tests/golden/wire/kafka-4.3.1.jsonl.gz

The broker is fresh, and has node id 1 and the settings of replay.py. It is told the parts of Kafka 4.1's story whose
answers are other ones since then, and the stories below, about what 4.1 did not have. Where a story needs that Kafka
has finished something, it asks until it has, which is not recorded.
"""

import argparse
import gzip
import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Struct
from replay import Connection, Exchange, Replay, Rules, selected

RELEASE = "4.1.0"
REPEATED = "api-versions-*,consumer-*"
EPOCHS = ("member_epoch", "generation_id_or_member_epoch", "generation_id")
PAUSE_SECONDS = 0.3
NO_ID = bytes(16)


def stored(value: Any, schema: Any, version: int) -> Any:
    """The fields of a message under Kafka's names: bytes in hex, uuids with dashes."""
    found = {}
    for field in schema.fields:
        if not field.is_in(version):
            continue
        content = getattr(value, field.name)
        name = "".join(part.capitalize() for part in field.name.split("_"))
        if field.structure is not None and content is not None:
            rows = [stored(each, field.structure, version) for each in (content if field.array else [content])]
            found[name] = rows if field.array else rows[0]
        else:
            found[name] = _plain(content)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def error_codes(value: Any) -> Iterator[int]:
    """All error codes of an answer but 0."""
    for name, content in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(content, dict | list):
            yield from error_codes(content)
        elif str(name).endswith("ErrorCode") and content:
            yield content


class Recording:
    """The lines of a file, in the making."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.lines: list[dict[str, Any]] = []
        self.moment = 0
        self._connections: dict[str, Connection] = {}

    def ask(self, connection: str, case: str, key: ApiKey, version: int, message: Any, *, quiet: bool = False) -> Any:
        """Ask Kafka, and record it unless `quiet`."""
        if connection not in self._connections:
            self._connections[connection] = Connection(self.host, self.port)
        request = bytes(frames.encode_request(key, version, 6, "golden", message))[4:]
        self._connections[connection].send(request)
        answer = self._connections[connection].receive()
        assert not isinstance(answer, str), (case, answer)
        response = frames.decode_response(key, version, memoryview(answer))[1]
        if not quiet:
            self.add(connection, case, request, answer)
        return response

    def add(self, connection: str, case: str, request: bytes, answer: bytes | None, response_version: int = -1) -> None:
        """Add a line."""
        key, version = struct.unpack_from(">hh", request)
        line: dict[str, Any] = {"api": "", "key": key, "version": version, "case": case, "cluster": "single"}
        line |= {"broker": 1, "connection": connection, "sent": self.moment + 1, "answered": self.moment + 2}
        self.moment += 2
        line |= {"request": request.hex(), "response": None if answer is None else answer.hex()}
        line["api"] = messages.request_class(key).__name__.removesuffix("Request")
        if answer is None:
            line["closed"] = True
        elif response_version < 0:
            sent = frames.decode_request(memoryview(request))[1]
            line["request_fields"] = stored(sent, sent.SCHEMA.root, version)
            response = frames.decode_response(key, version, memoryview(answer))[1]
            line["response_fields"] = stored(response, response.SCHEMA.root, version)
            line["errors"] = sorted(error_codes(line["response_fields"]))
        self.lines.append(line)


class Repeating(Replay):
    """Tells an old story again, and records it. Epochs of consumer groups are one higher than then."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(RELEASE, recording.host, recording.port, Rules())
        self.rules.skips = []
        self.recording = recording
        self.sent: dict[int, bytes] = {}

    def _prepare(self) -> None:
        """Kafka has done this itself."""

    def _request(self, exchange: Exchange) -> bytes:
        frame = super()._request(exchange)
        if exchange.line["connection"].startswith("consumer-"):
            header, message = frames.decode_request(memoryview(frame))
            self._move(message)
            made = frames.encode_request(
                header.api_key, header.api_version, header.correlation_id, header.client_id, message
            )
            frame = bytes(made)[4:]
        self.sent[exchange.position] = frame
        return frame

    def _move(self, message: Any) -> None:
        for name in message._FIELDS:
            value = getattr(message, name)
            if name in EPOCHS and value > 0:
                setattr(message, name, value + 1)
            for each in value if isinstance(value, list) else ():
                if isinstance(each, Struct):
                    self._move(each)

    def _compare(self, exchange: Exchange, answer: bytes | str) -> list[Any]:
        line = exchange.line
        if "request_body_version" not in line:
            frame = None if isinstance(answer, str) else answer
            self.recording.add(line["connection"], line["case"], self.sent[exchange.position], frame)
        found = super()._compare(exchange, answer)
        if exchange.api == "CreateTopics" or "by regular expression" in line["case"]:
            time.sleep(PAUSE_SECONDS)
        return found


# ---- the stories ----


def tell(recording: Recording) -> None:
    """All of them."""
    topic_id = _made(recording, "ids", 3)
    other_id = _made(recording, "other-ids", 1)
    _offsets_by_id(recording, topic_id, other_id)
    _offsets_of_a_consumer_group(recording, topic_id)
    _assignment_interval(recording)
    _group_settings(recording)
    _special_timestamps(recording)
    _markers(recording)


def _made(recording: Recording, topic: str, partitions: int) -> bytes:
    create, known = messages.CreateTopicsRequest, messages.MetadataRequest
    row = create.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    request = create(topics=[row], timeout_ms=5000)
    topic_id: bytes = recording.ask("ids-setup", "setup: topic", ApiKey.CREATE_TOPICS, 7, request).topics[0].topic_id
    asked = known(topics=[known.MetadataRequestTopic(name=topic)])
    while recording.ask("quiet", "", ApiKey.METADATA, 12, asked, quiet=True).topics[0].error_code:
        time.sleep(PAUSE_SECONDS)
    time.sleep(PAUSE_SECONDS)
    return topic_id


def _commit(group: str, rows: list[tuple[bytes, list[int]]], member: str = "", epoch: int = -1) -> Any:
    make = messages.OffsetCommitRequest
    return make(
        group_id=group,
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=[
            make.OffsetCommitRequestTopic(
                topic_id=topic_id,
                partitions=[
                    make.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=index + 5, committed_metadata="note"
                    )
                    for index in indexes
                ],
            )
            for topic_id, indexes in rows
        ],
    )


def _fetch(groups: dict[str, list[tuple[bytes, list[int]]] | None], member: str | None = None, epoch: int = -1) -> Any:
    make = messages.OffsetFetchRequest
    return make(
        groups=[
            make.OffsetFetchRequestGroup(
                group_id=group,
                member_id=member,
                member_epoch=epoch,
                topics=None
                if rows is None
                else [
                    make.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=indexes)
                    for topic_id, indexes in rows
                ],
            )
            for group, rows in groups.items()
        ]
    )


def _offsets_by_id(recording: Recording, topic_id: bytes, other_id: bytes) -> None:
    unknown = bytes(range(16))
    commits: list[tuple[str, Any]] = [
        ("ok: one topic", _commit("by-id", [(topic_id, [0, 1])])),
        ("ok: two topics", _commit("by-id", [(topic_id, [2]), (other_id, [0])])),
        ("ok: no topic", _commit("by-id", [])),
        ("error: unknown id", _commit("by-id", [(unknown, [0, 1])])),
        ("error: no id", _commit("by-id", [(NO_ID, [0])])),
        ("error: unknown partition", _commit("by-id", [(topic_id, [9])])),
        ("mixed: known and unknown ids", _commit("by-id", [(unknown, [0]), (topic_id, [0, 9]), (NO_ID, [1])])),
        ("mixed: a topic twice", _commit("by-id", [(topic_id, [0]), (topic_id, [1])])),
        ("error: member unknown", _commit("by-id", [(topic_id, [0]), (unknown, [0])], "nobody", 3)),
        ("error: empty group id", _commit("", [(topic_id, [0]), (unknown, [0])])),
    ]
    for case, request in commits:
        recording.ask("ids-commit", case, ApiKey.OFFSET_COMMIT, 10, request)
    fetches: list[tuple[str, Any]] = [
        ("ok: one topic", _fetch({"by-id": [(topic_id, [0, 1, 2])]})),
        ("ok: all topics", _fetch({"by-id": None})),
        ("ok: nothing committed", _fetch({"by-id": [(other_id, [0, 3])], "none": [(topic_id, [0])]})),
        ("ok: no topic", _fetch({"by-id": []})),
        ("error: unknown id", _fetch({"by-id": [(unknown, [0, 1])]})),
        ("error: no id", _fetch({"by-id": [(NO_ID, [0])]})),
        ("mixed: known and unknown ids", _fetch({"by-id": [(topic_id, [0]), (unknown, [0]), (topic_id, [9])]})),
        ("error: empty group id", _fetch({"": [(topic_id, [0])]})),
    ]
    for case, request in fetches:
        recording.ask("ids-fetch", case, ApiKey.OFFSET_FETCH, 10, request)
    delete = messages.DeleteTopicsRequest
    gone = delete(topics=[delete.DeleteTopicState(name="other-ids")], timeout_ms=5000)
    recording.ask("ids-setup", "setup: the other topic is deleted", ApiKey.DELETE_TOPICS, 6, gone)
    time.sleep(2 * PAUSE_SECONDS)
    recording.ask("ids-commit", "error: topic deleted", ApiKey.OFFSET_COMMIT, 10, _commit("by-id", [(other_id, [0])]))
    recording.ask("ids-fetch", "error: topic deleted", ApiKey.OFFSET_FETCH, 10, _fetch({"by-id": [(other_id, [0])]}))
    recording.ask("ids-fetch", "ok: all topics, one deleted", ApiKey.OFFSET_FETCH, 10, _fetch({"by-id": None}))


def _beat(group: str, member: str, epoch: int, **fields: Any) -> Any:
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 60_000, "topic_partitions": [], **fields}
    return messages.ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)


def _offsets_of_a_consumer_group(recording: Recording, topic_id: bytes) -> None:
    key, member = ApiKey.CONSUMER_GROUP_HEARTBEAT, "AAAAAAAAAAAAAAAAAAAAAA"
    unknown = bytes(range(16))
    join = _beat("members", member, 0, subscribed_topic_names=["ids"])
    epoch = recording.ask("members", "ok: joins", key, 1, join).member_epoch
    for case, at in (("ok: its epoch", epoch), ("error: an older epoch", 1), ("error: a newer epoch", epoch + 1)):
        rows = [(topic_id, [0]), (unknown, [0])]
        recording.ask("members", case, ApiKey.OFFSET_COMMIT, 10, _commit("members", rows, member, at))
        recording.ask("members", case, ApiKey.OFFSET_FETCH, 10, _fetch({"members": rows}, member, at))
    recording.ask("members", "ok: joins again", key, 1, join)
    recording.ask("members", "ok: leaves", key, 1, _beat("members", member, -1))
    recording.ask("members", "error: has left", ApiKey.OFFSET_COMMIT, 10, _commit("members", [(topic_id, [0])], member))


def _set_interval(recording: Recording, case: str, group: str, value: str) -> None:
    make = messages.IncrementalAlterConfigsRequest
    name = "consumer.assignment.interval.ms" if group else "group.consumer.assignment.interval.ms"
    row = make.AlterableConfig(name=name, config_operation=0, value=value)
    resource = make.AlterConfigsResource(resource_type=32 if group else 4, resource_name=group, configs=[row])
    recording.ask("intervals", case, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, make(resources=[resource]))
    time.sleep(PAUSE_SECONDS)


def _assignment_interval(recording: Recording) -> None:
    """Between two assignments there are fifteen seconds here: a replay takes less."""
    key, group = ApiKey.CONSUMER_GROUP_HEARTBEAT, "intervals"
    _set_interval(recording, "setup: the longest interval", group, "15000")
    one, two = "AAAAAAAAAAAAAAAAAAAAAA", "BAAAAAAAAAAAAAAAAAAAAA"
    describe = messages.ConsumerGroupDescribeRequest(group_ids=[group])

    def beat(case: str, member: str, epoch: int, **fields: Any) -> None:
        recording.ask(group, case, key, 1, _beat(group, member, epoch, **fields))
        recording.ask(group, case, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe)

    beat("ok: the first joins", one, 0, subscribed_topic_names=["ids"])
    beat("ok: the second joins, and waits", two, 0, subscribed_topic_names=["ids"])
    beat("ok: nothing new for the first", one, 2)
    beat("ok: nothing new for the second", two, 2)
    beat("ok: the first joins again", one, 0, subscribed_topic_names=["ids"])
    beat("ok: the second leaves", two, -1)
    beat("ok: nothing new", one, 2)
    _set_interval(recording, "setup: no interval", group, "0")
    beat("ok: assigned anew", one, 2)
    beat("ok: the second joins", two, 0, subscribed_topic_names=["ids"])
    beat("ok: the first must revoke", one, 4)


def _group_settings(recording: Recording) -> None:
    for case, group, value in (
        ("error: above the largest", "bounded", "15001"),
        ("error: negative", "bounded", "-1"),
        ("ok: group", "bounded", "1500"),
        ("error: all brokers, above the largest", "", "15001"),
        ("error: all brokers, negative", "", "-1"),
        ("ok: all brokers", "", "2000"),
    ):
        _set_interval(recording, case, group, value)
    make = messages.DescribeConfigsRequest
    for group in ("bounded", "without"):
        resource = make.DescribeConfigsResource(resource_type=32, resource_name=group, configuration_keys=None)
        request = make(resources=[resource], include_synonyms=True)
        recording.ask("intervals", f"ok: group {group}", ApiKey.DESCRIBE_CONFIGS, 4, request)
    _set_interval(recording, "setup: as before", "", "0")


def _special_timestamps(recording: Recording) -> None:
    _made(recording, "times", 1)
    produce, offsets = messages.ProduceRequest, messages.ListOffsetsRequest
    for timestamp in (1_000, 3_000, 2_000):
        records = record_batch.PlainRecords()
        records.add(b"k", b"v")
        data = produce.PartitionProduceData(index=0, records=bytes(record_batch.build_plain(records, timestamp).data))
        request = produce(
            acks=-1, timeout_ms=5000, topic_data=[produce.TopicProduceData(name="times", partition_data=[data])]
        )
        recording.ask("times", "setup: data", ApiKey.PRODUCE, 9, request)
    for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, 2_000, 3_001):
        row = offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = offsets(
            replica_id=-1, topics=[offsets.ListOffsetsTopic(name="times", partitions=[row])], timeout_ms=5000
        )
        for version in (10, 11):
            case = f"timestamp {timestamp}"
            recording.ask("times", case, ApiKey.LIST_OFFSETS, version, request)
    describe = messages.DescribeLogDirsRequest
    asked = describe(topics=[describe.DescribableLogDirTopic(topic="times", partitions=[0])])
    recording.ask("times", "ok: directories", ApiKey.DESCRIBE_LOG_DIRS, 5, asked)


def _markers(recording: Recording) -> None:
    """Markers by somebody who ends a transaction that hangs. Version 2 says by which rules it was made."""
    make = messages.WriteTxnMarkersRequest
    _made(recording, "markers", 1)
    for version, rules in ((1, 0), (2, 0), (2, 1), (2, 2)):
        for case, topic, index in (
            ("ok: nothing to end", "markers", 0),
            ("error: unknown partition", "markers", 7),
            ("error: unknown topic", "nope", 0),
        ):
            row = make.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])
            marker = make.WritableTxnMarker(
                producer_id=4_000 + version * 10 + rules,
                producer_epoch=0,
                topics=[row],
                coordinator_epoch=0,
                transaction_version=rules,
            )
            recording.ask(
                "markers", f"{case}, rules {rules}", ApiKey.WRITE_TXN_MARKERS, version, make(markers=[marker])
            )


def _wait_for_coordinators(recording: Recording) -> None:
    """Until this broker coordinates all groups."""
    groups = [f"group-{number}" for number in range(50)]
    found = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=groups[:1])
    fetch = messages.OffsetFetchRequest
    asked = fetch(groups=[fetch.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups])
    for key, version, request in ((ApiKey.FIND_COORDINATOR, 4, found), (ApiKey.OFFSET_FETCH, 8, asked)):
        while True:
            answer = recording.ask("quiet", "", key, version, request, quiet=True)
            if not any(error_codes(stored(answer, answer.SCHEMA.root, version))):
                break
            time.sleep(PAUSE_SECONDS)
    recording.ask("coordinator", "setup: makes the offsets topic", ApiKey.FIND_COORDINATOR, 4, found)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE")
    options = parser.parse_args()
    host, _, port = options.bootstrap.rpartition(":")
    recording = Recording(host, int(port))
    _wait_for_coordinators(recording)
    quick = "setup: assigned at once, so that the same story is told each time"
    _set_interval(recording, quick, "", "0")
    repeated = REPEATED.split(",")
    Repeating(recording).run(lambda exchange: selected(exchange.line["connection"], repeated), lambda exchange: True)
    tell(recording)
    with gzip.open(options.out, "wt") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in recording.lines)
    print(f"{len(recording.lines)} exchanges")
    return 0


if __name__ == "__main__":
    sys.exit(main())
