"""Two of three brokers die at once: the third tells what is committed for certain, and clients repeat the rest."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from broker_process import Client

from cluster import NotYetError

MakeCluster = Callable[..., Any]
PARTITIONS = 6  # of __consumer_offsets
LAST = 2  # the broker that lives
REPEATED = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
IN_DOUBT = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT}
ANSWER_WITHIN_S = 30.0  # ten seconds are promised


class Committer(threading.Thread):
    """Commits ever larger offsets for some groups, until its cluster does not answer."""

    def __init__(self, cluster: Any, groups: list[str]) -> None:
        super().__init__()
        self.acknowledged = dict.fromkeys(groups, 0)
        self.has_begun = threading.Event()
        self.stopping = False
        self.coordinators = {group: cluster.coordinator(group) for group in groups}
        self._cluster = cluster

    def run(self) -> None:
        """Commit."""
        offset = 0
        try:
            while not self.stopping:
                offset += 1
                for group, node_id in self.coordinators.items():
                    with self._cluster.client(node_id) as client:
                        answer = client.ask(ApiKey.OFFSET_COMMIT, 8, commit_request(group, offset))
                    if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
                        self.acknowledged[group] = offset
                if offset == 20:
                    self.has_begun.set()
        except (OSError, EOFError):
            return  # two of the brokers are dead


def commit_request(group: str, offset: int) -> messages.OffsetCommitRequest:
    make = messages.OffsetCommitRequest
    row = make.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return make(group_id=group, topics=[make.OffsetCommitRequestTopic(name="t", partitions=[row])])


def told(cluster: Any, group: str, *, stable: bool) -> tuple[ErrorCode, int]:
    """What the last broker says of the offset of a group in `t-0`; NotYetError: it has not heard yet that it leads."""
    fetch = messages.OffsetFetchRequest
    asked = [fetch.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    with cluster.client(LAST) as client:
        request = fetch(group_id=group, topics=asked, require_stable=stable)
        answer = client.ask(ApiKey.OFFSET_FETCH, 7, request)
    error = answer.error_code or answer.topics[0].partitions[0].error_code
    if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        raise NotYetError(f"{group}: {ErrorCode(error).name}")
    return ErrorCode(error), -1 if error else answer.topics[0].partitions[0].committed_offset


def knows_what_is_committed(cluster: Any) -> None:
    """Until the last broker knows each commit in `__consumer_offsets` to be committed."""
    for index in range(PARTITIONS):
        ends = []
        for node_id in (cluster.leader("__consumer_offsets", index), LAST):
            with cluster.client(node_id) as client:
                ends.append(client.fetch("__consumer_offsets", index, 0).high_watermark)
        if ends[0] != ends[1]:
            raise NotYetError(f"__consumer_offsets-{index}: {ends}")


def test_what_is_committed_for_certain_is_told_and_nothing_hangs(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        offsets_topic_num_partitions=str(PARTITIONS),
        transaction_state_log_num_partitions="3",
        transaction_state_log_replication_factor="3",
        transaction_state_log_min_isr="2",
    )
    cluster.create_topic("t")
    quiet, busy = [f"quiet-{number}" for number in range(12)], [f"busy-{number}" for number in range(4)]
    for number, group in enumerate(quiet):
        cluster.commit(group, "t", {0: 100 + number})
    with closing(Client(cluster.ports[LAST], ANSWER_WITHIN_S)) as client:
        find = messages.FindCoordinatorRequest(key="id", key_type=1)
        assert client.ask(ApiKey.FIND_COORDINATOR, 3, find).error_code in (ErrorCode.NONE, *REPEATED)
    cluster.until(lambda: cluster.partition("__transaction_state", 0))
    cluster.until(lambda: knows_what_is_committed(cluster))
    committer = Committer(cluster, busy)
    committer.start()
    assert committer.has_begun.wait(200)
    for node_id in {0, 1, 2} - {LAST}:
        os.kill(cluster.processes[node_id].process.pid, signal.SIGKILL)
    for node_id in {0, 1, 2} - {LAST}:
        cluster.end_one(node_id, signal.SIGKILL)
    committer.stopping = True
    committer.join()
    for number, group in enumerate(quiet):
        for stable in (False, True):
            found = cluster.until(lambda group=group, stable=stable: told_at_last(cluster, group, stable=stable))
            assert found == 100 + number
    in_doubt = set()
    for group, acknowledged in committer.acknowledged.items():
        for stable in (False, True):
            error, offset = cluster.until(lambda group=group, stable=stable: told(cluster, group, stable=stable))
            assert error in IN_DOUBT or offset >= acknowledged, (group, offset, acknowledged)
            if error and committer.coordinators[group] != LAST:  # where it led before, its own commits are refused
                in_doubt.add(group)
    assert_nothing_hangs(cluster, quiet[0])
    if in_doubt:
        cluster.until_said("it is not known whether offsets", LAST)
        cluster.until_said(f"in sync are [{LAST}] of", LAST)
    cluster.start(0)
    for group, acknowledged in committer.acknowledged.items():
        assert cluster.committed(group, "t", 0) >= acknowledged
        cluster.commit(group, "t", {0: 5})
        assert cluster.committed(group, "t", 0) == 5


def told_at_last(cluster: Any, group: str, *, stable: bool) -> int:
    """The offset of a group of which nothing is in doubt; NotYetError while the partition loads."""
    error, offset = told(cluster, group, stable=stable)
    if error:
        raise NotYetError(f"{group}: {error.name}")
    return offset


def assert_nothing_hangs(cluster: Any, group: str) -> None:
    """Each request is answered with an error that clients repeat."""
    join = messages.JoinGroupRequest
    protocol = join.JoinGroupRequestProtocol(name="range", metadata=b"")
    session = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    with closing(Client(cluster.ports[LAST], ANSWER_WITHIN_S)) as client:
        answer = client.ask(ApiKey.OFFSET_COMMIT, 8, commit_request(group, 7))
        assert answer.topics[0].partitions[0].error_code in REPEATED
        asked = join(group_id="new", protocol_type="consumer", protocols=[protocol], **session)
        assert client.ask(ApiKey.JOIN_GROUP, 3, asked).error_code in REPEATED
        sync = messages.SyncGroupRequest(group_id="new", generation_id=1, member_id="m")
        gone = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS)
        assert client.ask(ApiKey.SYNC_GROUP, 2, sync).error_code in (*gone, *REPEATED)
        asked = messages.InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
        assert client.ask(ApiKey.INIT_PRODUCER_ID, 3, asked).error_code in REPEATED
        end = messages.EndTxnRequest(transactional_id="id", producer_id=1, producer_epoch=0, committed=True)
        assert client.ask(ApiKey.END_TXN, 3, end).error_code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, *REPEATED)
        delete = messages.DeleteGroupsRequest(groups_names=[group])
        assert client.ask(ApiKey.DELETE_GROUPS, 2, delete).results[0].error_code in REPEATED
