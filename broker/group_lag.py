"""The lag of one group: its committed offsets, and what this broker knows of the partitions that it leads.

The coordinator of the group answers. It names the leaders of the other partitions, and these answer for them.
"""

from collections.abc import Sequence

from barnabas.broker.services import Services
from barnabas.offsets.lag import PartitionLag, Position, lag_of
from barnabas.offsets.records import GroupOffsets
from barnabas.protocol.errors import ErrorCode
from barnabas.replication.positions import PositionInLog, look_at
from barnabas.runtime.turns import Pieces
from barnabas.storage.unread import HEADERS_MAX

HEADERS_OF_ALL_MAX = 50_000  # headers of batches that are read for all positions of a request
HEADERS_MIN = 100


def positions_of(offsets: GroupOffsets) -> list[Position]:
    """The committed offsets of a group, by topic and partition."""
    return [
        Position.of(topic, index, committed)
        for topic, partitions in sorted(offsets.items())
        for index, committed in sorted(partitions.items())
    ]


def lags(services: Services, positions: Sequence[Position]) -> Pieces[list[PartitionLag]]:
    """The lag of each position, as far as this broker knows it."""
    headers_left = HEADERS_OF_ALL_MAX
    rows = []
    for number, position in enumerate(positions):
        yield None
        share = headers_left // (len(positions) - number)  # what the others did not need is for those that follow
        topic, index, offset, leader_epoch, topic_id = position
        known = services.metadata_cache.partition(topic, index)
        leader = known.leader_id if known is not None and known.leader_id >= 0 else None
        if known is None or leader is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else ErrorCode.LEADER_NOT_AVAILABLE
            found = PositionInLog(error)
        elif leader != services.node_id:
            found = PositionInLog(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            found = yield from look_at(
                services.replica_manager,
                topic,
                index,
                offset,
                leader_epoch=leader_epoch,
                topic_id=topic_id,
                headers_max=min(max(share, HEADERS_MIN), HEADERS_MAX),
            )
            if found.unread is not None:
                headers_left = max(headers_left - found.unread.headers_read, 0)
        rows.append(lag_of(position, leader, found, services.env.clock.now_ms()))
    return rows
