"""DeleteRecords: a leader raises the start of its log, and waits until the logs of all live replicas begin there."""

from collections.abc import Sequence
from functools import partial

from barnabas.cluster.topic_names import INTERNAL_TOPICS
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.replication.partition import Partition
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.replication.replica_wait import ReplicaWait
from barnabas.runtime.pending import Pending


class DeleteRecordsResult(NamedTuple):
    """`low_watermark` is the lowest log start of the live replicas, -1 on an error."""

    topic: str
    partition_index: int
    error: ErrorCode
    low_watermark: int = -1


def delete(
    manager: ReplicaManager, entries: Sequence[tuple[str, int, int]], timeout_ms: int
) -> list[DeleteRecordsResult] | Pending[list[DeleteRecordsResult]]:
    """Raise the log start of each (topic, index, offset; -1: the high watermark) on all live replicas.

    Answered when the low watermark of each has got there; after `timeout_ms` the rest says REQUEST_TIMED_OUT.
    """
    results: list[DeleteRecordsResult] = []
    wait: ReplicaWait[DeleteRecordsResult] | None = None

    def ended(result: DeleteRecordsResult, error: ErrorCode) -> DeleteRecordsResult:
        partition = manager.partition(result.topic, result.partition_index)
        low_watermark = partition.low_watermark if isinstance(partition, Partition) and not error else -1
        return DeleteRecordsResult(result.topic, result.partition_index, error, low_watermark)

    for topic, index, offset in entries:
        partition = _deletable(manager, topic, index)
        if not isinstance(partition, Partition):
            results.append(DeleteRecordsResult(topic, index, partition))
            continue
        target = partition.high_watermark if offset == -1 else offset
        if not 0 <= target <= partition.high_watermark:
            results.append(DeleteRecordsResult(topic, index, ErrorCode.OFFSET_OUT_OF_RANGE))
            continue
        partition.delete_records_before(target)
        result = DeleteRecordsResult(topic, index, ErrorCode.NONE, partition.low_watermark)
        if result.low_watermark < target:
            if wait is None:
                wait = ReplicaWait(results, ended)
            wait.park(len(results), partial(partition.park_until_deleted, target))
        results.append(result)
    if wait is None:
        return results
    wait.begin(manager.clock, timeout_ms)
    return wait.pending


def _deletable(manager: ReplicaManager, topic: str, index: int) -> Partition | ErrorCode:
    if topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = manager.leader_partition(topic, index)
    if isinstance(partition, Partition):
        if "delete" not in partition.log.config.cleanup_policy:
            return ErrorCode.POLICY_VIOLATION
        if not manager.lease.holds:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return partition
