"""Which brokers hold the replicas of new partitions: pure functions (Kafka's AdminUtils; KIP-36 for racks)."""

from collections.abc import Mapping, Sequence

from barnabas.runtime.grouped import grouped

NO_RACK = ""


class AssignmentError(ValueError):
    """Brokers and factor do not allow an assignment; the text says why."""


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """Broker ids, round robin over the racks in name order, each rack's brokers in id order."""
    by_rack = grouped((racks[broker_id], broker_id) for broker_id in sorted(racks))
    columns = [by_rack[rack] for rack in sorted(by_rack)]
    depth = max(len(column) for column in columns)
    return [column[row] for row in range(depth) for column in columns if row < len(column)]


def assign(
    brokers: Mapping[int, str | None],
    partition_count: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> dict[int, list[int]]:
    """Replicas of partitions `first_partition` … for `brokers` (id to rack).

    `start` (index of the first leader) and `shift` (how far followers begin from it) are random for a new topic; for
    added partitions see `fixed_start`. AssignmentError when the factor is impossible.

    Brokers without a rack count as one rack of their own, as in Kafka 4.1. Kafka 3.9 refuses every topic while only
    some brokers have a rack, so that racks could not be given to one broker after the other.
    """
    if replication_factor <= 0:
        raise AssignmentError("Replication factor must be larger than 0.")
    if replication_factor > len(brokers):
        raise AssignmentError(
            f"Replication factor: {replication_factor} larger than available brokers: {len(brokers)}."
        )
    racks = {broker_id: rack or NO_RACK for broker_id, rack in brokers.items()}
    order = rack_alternated(racks)
    broker_count = len(order)
    rack_count = len(set(racks.values()))
    assignment = {}
    for partition in range(first_partition, first_partition + partition_count):
        if partition > 0 and partition % broker_count == 0:
            shift += 1
        first = (partition + start) % broker_count
        replicas = [order[first]]
        racks_used = {racks[order[first]]}
        candidate = 0
        while len(replicas) < replication_factor:
            broker_id = order[_replica_index(first, shift * rack_count, candidate, broker_count)]
            candidate += 1
            rack_is_used = racks[broker_id] in racks_used and len(racks_used) < rack_count
            if rack_is_used or broker_id in replicas:
                continue
            replicas.append(broker_id)
            racks_used.add(racks[broker_id])
        assignment[partition] = replicas
    return assignment


def fixed_start(brokers: Sequence[int], existing_head: int) -> int:
    """Start and shift for added partitions: where partition 0's first replica stands among the sorted brokers."""
    for index, broker_id in enumerate(brokers):
        if broker_id >= existing_head:
            return index
    return 0


def _replica_index(first: int, shift: int, replica: int, count: int) -> int:
    return (first + 1 + (shift + replica) % (count - 1)) % count
