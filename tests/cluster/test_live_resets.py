"""Live resets on three brokers: through a redirect, and while the coordinator is killed, paused, stopped or moved.

Whatever happens: both offsets are changed, or none. If they are, whoever was a member commits nothing any more, also
at the next coordinator, and who joins again reads on from there.
"""

import http.client
import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import forked
from barnabas.coordinators.coordinator import partition_for
from barnabas.coordinators.groups.records import EMPTY_ASSIGNMENT
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from kafka import KafkaConsumer

from cluster import NotYetError

MakeCluster = Callable[..., Any]
OFFSETS = "__consumer_offsets"
GROUP, TOPIC = "a", "t"
INDEX = partition_for(GROUP, 3)
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
ASSIGNMENT = b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff"
ANYBODY = "", -1
SESSION_TIMEOUT_MS = 30_000


class Member:
    """A member that says what the test wants, as late as it wants."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.member_id = ""
        self.generation = -1

    def join(self) -> None:
        """Join, as often as it takes to get an assignment.

        If the coordinator stopped before its answer came, the group waits for a member that nobody is, until its
        session is over.
        """
        self.cluster.until(self._join, within_s=2 * SESSION_TIMEOUT_MS / 1000)

    def _join(self) -> None:
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)
        with self.cluster.client(self.cluster.coordinator(GROUP)) as client:
            join = messages.JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=30_000,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[protocol],
            )
            joined = client.ask(ApiKey.JOIN_GROUP, 5, join)
            if joined.error_code:
                lost = joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
                self.member_id = "" if lost else joined.member_id
                raise NotYetError(f"join: {ErrorCode(joined.error_code).name}")
            self.member_id, self.generation = joined.member_id, joined.generation_id
            row = messages.SyncGroupRequest.SyncGroupRequestAssignment(member_id=self.member_id, assignment=ASSIGNMENT)
            named = {"group_id": GROUP, "generation_id": self.generation, "member_id": self.member_id}
            synced = client.ask(ApiKey.SYNC_GROUP, 3, messages.SyncGroupRequest(**named, assignments=[row]))
            if synced.error_code:
                raise NotYetError(f"sync: {ErrorCode(synced.error_code).name}")
            if bytes(synced.assignment) == EMPTY_ASSIGNMENT:  # it gives up what it had before the live reset
                client.ask(ApiKey.HEARTBEAT, 3, messages.HeartbeatRequest(**named))
                raise NotYetError("an empty assignment")
            assert bytes(synced.assignment) == ASSIGNMENT

    def commit(self, offset: int, node_id: int | None = None, *, nobody: bool = False) -> ErrorCode:
        """Commit this offset for both partitions; returns the error."""
        commit = messages.OffsetCommitRequest
        rows = [commit.OffsetCommitRequestPartition(partition_index=p, committed_offset=offset) for p in (0, 1)]
        member_id, generation = ANYBODY if nobody else (self.member_id, self.generation)
        request = commit(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[commit.OffsetCommitRequestTopic(name=TOPIC, partitions=rows)],
        )

        def send() -> ErrorCode:
            at = self.cluster.coordinator(GROUP) if node_id is None else node_id
            with self.cluster.client(at) as client:
                answer = client.ask(ApiKey.OFFSET_COMMIT, 7, request)
            (error,) = {ErrorCode(row.error_code) for row in answer.topics[0].partitions}
            if node_id is None and error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                raise NotYetError(error.name)
            return error

        found: ErrorCode = self.cluster.until(send)
        return found


def http_address(cluster: Any, node_id: int) -> tuple[str, int]:
    describe = messages.DescribeConfigsRequest
    resource = describe.DescribeConfigsResource(
        resource_type=4, resource_name=str(node_id), configuration_keys=["http.address"]
    )
    with cluster.client(node_id) as client:
        answer = client.ask(ApiKey.DESCRIBE_CONFIGS, 1, describe(resources=[resource]))
    ((value,),) = [[row.value for row in result.configs] for result in answer.results]
    host, _, port = value.rpartition(":")
    return host, int(port)


def post(address: tuple[str, int], offset: int) -> tuple[int, Any, Any]:
    """Ask one broker for a live reset of both partitions: status, headers, body."""
    rows = [{"topic": TOPIC, "partition": index, "offset": offset} for index in (0, 1)]
    with closing(http.client.HTTPConnection(*address, timeout=200)) as connection:
        connection.request(
            *("POST", f"/v1/groups/{GROUP}/live-reset", json.dumps({"offsets": rows})),
            {"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        return response.status, response.headers, json.loads(response.read())


def both(cluster: Any) -> tuple[int, int]:
    return cluster.committed(GROUP, TOPIC, 0), cluster.committed(GROUP, TOPIC, 1)


def all_in_sync(cluster: Any) -> None:
    for index in range(3):
        cluster.in_sync(OFFSETS, index, {0, 1, 2})


def prefer(cluster: Any) -> None:
    """Have the preferred leader of the group's offsets partition elected; do not wait for it."""
    request = messages.ElectLeadersRequest
    topics = [request.TopicPartitions(topic=OFFSETS, partitions=[INDEX])]
    with suppress(OSError), cluster.client(cluster.controller()) as client:
        client.ask(ApiKey.ELECT_LEADERS, 2, request(topic_partitions=topics))


def test_only_the_coordinator_does_it_and_the_others_say_who_that_is(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(group_initial_rebalance_delay_ms="0")
    cluster.create_topic(TOPIC, 2)
    member = Member(cluster)
    member.join()
    coordinator = cluster.coordinator(GROUP)
    there = http_address(cluster, coordinator)
    for number, node_id in enumerate(set(cluster.ports) - {coordinator}):
        before, target = 100 + number, 10 + number
        assert member.commit(before) is ErrorCode.NONE
        status, headers, _ = post(http_address(cluster, node_id), target)
        assert (status, headers["Location"]) == (307, f"http://{there[0]}:{there[1]}/v1/groups/{GROUP}/live-reset")
        assert both(cluster) == (before, before)
        assert member.commit(before) is ErrorCode.NONE
        status, _, body = post(there, target)
        assert (status, [row["before"] for row in body["offsets"]]) == (200, [before, before])
        assert [row["member_id"] for row in body["members"]] == [member.member_id]
        assert member.commit(before + 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert member.commit(before + 1, nobody=True) is ErrorCode.UNKNOWN_MEMBER_ID
        assert both(cluster) == (target, target)
        member.join()


def test_the_coordinator_goes_at_any_moment_and_nothing_is_half_done(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(group_initial_rebalance_delay_ms="0")
    cluster.create_topic(TOPIC, 2)
    cluster.commit(GROUP, TOPIC, {0: 0, 1: 0})
    troubles = ["kill", "pause", "stop", "move"]
    member = Member(cluster)
    member.join()
    began = time.monotonic()
    assert post(http_address(cluster, cluster.coordinator(GROUP)), 0)[0] == 200
    took_s = time.monotonic() - began
    delays_s = [0.0, 0.5 * took_s, took_s]
    outcomes: set[bool] = set()
    for number, (trouble, delay_s) in enumerate((trouble, delay_s) for delay_s in delays_s for trouble in troubles):
        before, target = 1_000 + 10 * number, 10 * number + 1
        all_in_sync(cluster)
        if trouble == "move":
            _away_from_the_preferred(cluster)
        member = Member(cluster)
        member.join()
        assert member.commit(before) is ErrorCode.NONE
        coordinator = cluster.coordinator(GROUP)
        address = http_address(cluster, coordinator)
        outcome: list[int] = []

        def ask(address: tuple[str, int] = address, target: int = target, outcome: list[int] = outcome) -> None:
            with suppress(OSError, http.client.HTTPException):
                outcome.append(post(address, target)[0])

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(delay_s)
        if trouble == "kill":
            cluster.end_one(coordinator, signal.SIGKILL)
        elif trouble == "stop":
            cluster.end_one(coordinator, signal.SIGTERM)
        elif trouble == "pause":
            cluster.pause(coordinator)
        else:
            prefer(cluster)
        if trouble != "pause":
            asking.join()
        now = both(cluster)
        assert now in ((before, before), (target, target)), (trouble, delay_s)
        is_done = now == (target, target)
        assert is_done or outcome != [200], (trouble, delay_s)
        outcomes.add(is_done)
        if is_done:
            # A commit that was under way for long comes to whoever coordinates the group now.
            late = {member.commit(before + 1), member.commit(before + 1, nobody=True)}
            assert late == {ErrorCode.UNKNOWN_MEMBER_ID}, (trouble, delay_s)
            assert both(cluster) == now
        if trouble == "pause":
            cluster.resume(coordinator)
            asking.join()
            assert is_done or outcome != [200]
            assert _refused(member, before + 2, coordinator) is not ErrorCode.NONE
            assert both(cluster) == now
        if coordinator not in cluster.processes:
            cluster.start(coordinator)
        again = Member(cluster)
        if not is_done:  # the member of before may go on, or a newcomer takes over when it has left
            _leave(cluster, member)
        again.join()
        assert both(cluster) == now
        assert again.commit(target + 1) is ErrorCode.NONE
        _leave(cluster, again)
    assert outcomes == {False, True}  # it came before and after the write


def _refused(member: Member, offset: int, node_id: int) -> ErrorCode:
    """The error of a commit to the coordinator of before, when another one coordinates the group."""
    assert member.cluster.coordinator(GROUP) != node_id
    return member.commit(offset, node_id)


def _leave(cluster: Any, member: Member) -> None:
    row = messages.LeaveGroupRequest.MemberIdentity(member_id=member.member_id)

    def send() -> None:
        with cluster.client(cluster.coordinator(GROUP)) as client:
            answer = client.ask(ApiKey.LEAVE_GROUP, 3, messages.LeaveGroupRequest(group_id=GROUP, members=[row]))
        if answer.error_code:
            raise NotYetError(f"leave: {answer}")

    cluster.until(send)


def _away_from_the_preferred(cluster: Any) -> None:
    """Have another broker than the preferred one lead the group's partition, with all in sync."""
    row = cluster.partition(OFFSETS, INDEX)
    preferred = row.replica_nodes[0]
    if row.leader_id == preferred:
        cluster.end_one(preferred, signal.SIGKILL)
        cluster.until(lambda: cluster.partition(OFFSETS, INDEX))
        cluster.start(preferred)
        all_in_sync(cluster)


class Reader:
    """A consumer of kafka-python that reads and commits until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.read: list[tuple[float, int, int]] = []  # when, partition, offset
        self._stopped = threading.Event()
        self._consumer = KafkaConsumer(
            TOPIC,
            bootstrap_servers=bootstrap,
            group_id=GROUP,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            heartbeat_interval_ms=300,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for found in self._consumer.poll(100).values():
                self.read += [(time.monotonic(), record.partition, record.offset) for record in found]
        self._consumer.close()

    def stop(self) -> None:
        """Commit, and leave the group."""
        self._stopped.set()
        self._thread.join()


def test_the_command_finds_the_coordinator_from_any_broker(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(group_initial_rebalance_delay_ms="0")
    cluster.create_topic(TOPIC, 2)
    for index in (0, 1):
        cluster.produce(cluster.producer(TOPIC, index), [b"x"] * 50)
    other = next(name for name in "bcdefgh" if partition_for(name, 3) != INDEX)
    cluster.commit(other, TOPIC, {0: 7, 1: 9})
    cluster.balance()
    assert cluster.coordinator(other) != cluster.coordinator(GROUP)
    file = tmp_path / "positions.csv"
    file.write_text("topic,partition,offset\nt,0,21\nt,1,23\n")
    reader = Reader(",".join(f"127.0.0.1:{port}" for port in cluster.ports.values()))
    try:
        for node_id, words, targets in (
            (0, ["--topic", TOPIC, "--to", "30"], (30, 30)),
            (1, ["--to-file", str(file)], (21, 23)),
            (2, ["--to-group", other], (7, 9)),
        ):

            def at_the_end() -> None:
                if both(cluster) != (50, 50):
                    raise NotYetError(f"committed: {both(cluster)}")

            cluster.until(at_the_end)
            began = time.monotonic()
            address = f"127.0.0.1:{cluster.ports[node_id]}"
            line = ("offsets", "set", GROUP, *words, "--live", "--yes", "--json", "--bootstrap", address)
            said = forked.barnabas(*line, code=0)
            answer = json.loads(said.stdout)
            assert tuple(row["offset"] for row in answer["offsets"]) == targets
            assert all(row["verified"] for row in answer["offsets"])
            assert len(answer["members"]) == 1

            def read_again(began: float = began, targets: tuple[int, int] = targets) -> None:
                for index, target in enumerate(targets):
                    found = [offset for at, partition, offset in reader.read if partition == index and at > began]
                    if found[-(50 - target) :] != list(range(target, 50)):
                        raise NotYetError(f"{TOPIC}-{index}: read {found}")

            cluster.until(read_again)
    finally:
        reader.stop()
