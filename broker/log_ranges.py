"""Where the logs begin and end that the groups of this broker read: its own, and by ListOffsets those elsewhere.

What other leaders say is remembered from one look at the groups to the next. It is a bound: their logs go on.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from barnabas.cluster.broker_client import BrokerClients
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.groups.lag_sampling import SAMPLE_MS, LogRange
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.replication.offset_lookup import EARLIEST, LATEST
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.grouped import grouped
from barnabas.runtime.ports import Clock
from barnabas.runtime.turns import Pieces, chunks
from barnabas.runtime.upkeep import Work
from barnabas.storage.retention import goes_below

if TYPE_CHECKING:
    from barnabas.protocol.messages import ListOffsetsRequest, ListOffsetsResponse

PURPOSE = "log-ranges"
VERSION = 7
PARTITIONS_PER_REQUEST = 500
PARTITIONS_PER_PIECE = 100
CONSUMER = -1
_SOON_PART = 10  # retention takes what goes within a tenth of its time "before long"
_SOON_MIN_MS = 2 * SAMPLE_MS
_SOON_MAX_MS = 86_400_000


class KnownLogRanges:
    """`LogRanges` of a broker."""

    def __init__(
        self,
        clock: Clock,
        replica_manager: ReplicaManager,
        metadata_cache: MetadataCache,
        broker_clients: BrokerClients,
    ) -> None:
        self._clock = clock
        self._replica_manager = replica_manager
        self._metadata_cache = metadata_cache
        self._broker_clients = broker_clients
        self.elsewhere: dict[tuple[str, int], LogRange] = {}  # as their leaders have said half a minute ago
        self._wanted: dict[tuple[str, int], int] = {}  # partition -> its leader, of what was asked since the refresh

    def of_topic(self, topic: str) -> Pieces[dict[int, LogRange]]:
        """The ranges of a topic's partitions, as far as they are known."""
        hosted, now_ms = self._replica_manager.partitions, self._clock.now_ms()
        found: dict[int, LogRange] = {}
        for number, (index, state) in enumerate(list(self._metadata_cache.topics.get(topic, {}).items())):
            if number % PARTITIONS_PER_PIECE == 0:
                yield None
            partition = hosted.get((topic, index))
            if partition is not None and partition.is_leader:
                log = partition.log
                soon_ms = min(max(log.config.retention_ms // _SOON_PART, _SOON_MIN_MS), _SOON_MAX_MS)
                try:
                    below, goes_ms = goes_below(log, now_ms + soon_ms)
                except OSError:
                    below = goes_ms = -1
                found[index] = LogRange(log.log_start_offset, log.high_watermark, below, goes_ms)
            elif state.leader_id >= 0:
                self._wanted[topic, index] = state.leader_id
                known = self.elsewhere.get((topic, index))
                if known is not None:
                    found[index] = known
        return found

    def refresh(self) -> Work:
        """Ask the leaders for what was wanted since the last time, and forget the rest."""
        wanted, self._wanted = self._wanted, {}
        self.elsewhere = {key: self.elsewhere[key] for key in wanted if key in self.elsewhere}
        for leader, keys in grouped((leader, key) for key, leader in wanted.items()).items():
            for piece in chunks(keys, PARTITIONS_PER_REQUEST):
                yield None
                client = self._broker_clients.to(leader, PURPOSE)
                if client is None:
                    continue
                starts = client.send(_request(piece, EARLIEST), VERSION)
                ends = client.send(_request(piece, LATEST), VERSION)
                earliest = _offsets((yield starts))
                latest = _offsets((yield ends))
                for key, end in latest.items():
                    if key in earliest:
                        self.elsewhere[key] = LogRange(earliest[key], end)


def log_ends(
    broker_clients: BrokerClients, leaders: Mapping[tuple[str, int], int], timestamp: int = LATEST
) -> Pieces[dict[tuple[str, int], int]]:
    """Where the logs of these partitions end, as their leaders say now; without those that do not answer.

    `timestamp` EARLIEST: where they begin.
    """
    found: dict[tuple[str, int], int] = {}
    for leader, keys in sorted(grouped((leader, key) for key, leader in leaders.items()).items()):
        client = broker_clients.to(leader, PURPOSE)
        if client is not None:
            found |= _offsets((yield client.send(_request(keys, timestamp), VERSION)))
    return found


def _request(keys: Sequence[tuple[str, int]], timestamp: int) -> "ListOffsetsRequest":
    make = messages.ListOffsetsRequest
    topics = grouped((key[0], make.ListOffsetsPartition(partition_index=key[1], timestamp=timestamp)) for key in keys)
    rows = [make.ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in topics.items()]
    return make(replica_id=CONSUMER, isolation_level=0, topics=rows)


def _offsets(response: "ListOffsetsResponse | None") -> dict[tuple[str, int], int]:
    if response is None:
        return {}
    return {
        (topic.name, partition.partition_index): partition.offset
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE
    }
