"""WriteTxnMarkers (key 27), versions 1-2: end a producer's transaction in partitions that this broker leads (KIP-98).

Transaction coordinators send it, and an operator's tool that aborts a hanging transaction (KIP-664). Each marker is
written as with acks=all, and answered when the in-sync replicas have it. Partitions are independent of each other.

A marker in `__consumer_offsets` is appended by the group coordinator. The offsets of the transaction count, or are
dropped, before it is answered. So the coordinator must have loaded the partition. If it has not, the answer is
NOT_LEADER_OR_FOLLOWER, which makes the sender try again. Version 2 says by which rules the transaction was made: in
transaction version 2 (KIP-890) each end raises the producer's epoch, so a marker with the epoch of an open transaction
is late. Coordinators of Barnabas say the id of a topic, too: then a marker for the former topic of that name is not
written into the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from barnabas.broker.access import transactions as transactions_access
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.cluster.metadata_cache import NO_TOPIC_ID
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.transaction_marker import CONTROL_ABORT, CONTROL_COMMIT, build_marker
from barnabas.replication.partition import ALL_IN_SYNC
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces
from barnabas.storage.validation import AppendOrigin, AppendResult

if TYPE_CHECKING:
    from barnabas.broker.services import Services

    Marker = messages.WriteTxnMarkersRequest.WritableTxnMarker

MARKERS_PER_PIECE = 50  # about a millisecond
VERSION_THAT_RAISES_EPOCHS = 2

Outcome = list[AppendResult] | Pending[list[AppendResult]]


class _Place(NamedTuple):
    """The partition that a marker is written to."""

    marker: Marker
    topic: str
    partition: int
    topic_id: bytes = NO_TOPIC_ID


class _Answers:
    """The error of each partition, by producer."""

    def __init__(self) -> None:
        self._errors: dict[int, dict[str, dict[int, ErrorCode]]] = {}

    def add(self, place: _Place, error: ErrorCode) -> None:
        """Add one. Of a partition that is named twice for a producer, the last one counts, as in Kafka."""
        self._errors.setdefault(place.marker.producer_id, {}).setdefault(place.topic, {})[place.partition] = error

    def response(self) -> messages.WriteTxnMarkersResponse:
        response = messages.WriteTxnMarkersResponse
        return response(
            markers=[
                response.WritableTxnMarkerResult(
                    producer_id=producer_id,
                    topics=[
                        response.WritableTxnMarkerTopicResult(
                            name=topic,
                            partitions=[
                                response.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                                for index, error in partitions.items()
                            ],
                        )
                        for topic, partitions in topics.items()
                    ],
                )
                for producer_id, topics in self._errors.items()
            ]
        )


def write_txn_markers_failed(
    request: messages.WriteTxnMarkersRequest, error: ErrorCode
) -> messages.WriteTxnMarkersResponse:
    answers = _Answers()
    for marker in request.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                answers.add(_Place(marker, topic.name, index), error)
    return answers.response()


@api(
    ApiKey.WRITE_TXN_MARKERS,
    versions=(1, 2),
    access=transactions_access.write_txn_markers,
    failure=write_txn_markers_failed,
    is_wide=True,
    is_of_brokers=True,
)
def write_txn_markers(services: Services, request: messages.WriteTxnMarkersRequest, context: RequestContext) -> Reply:
    """Append the markers; the answer comes when the outcome of all is known, at the latest after request.timeout.ms."""
    return services.env.turns.run(_write(services, request), to_the_end=True)


def _write(services: Services, request: messages.WriteTxnMarkersRequest) -> Pieces[messages.WriteTxnMarkersResponse]:
    answers = _Answers()
    appended: list[tuple[list[_Place], Outcome]] = []
    ended: list[tuple[_Place, Pending[ErrorCode]]] = []
    seen = 0
    for marker in request.markers:
        places: list[_Place] = []
        for topic in marker.topics:
            for index in topic.partition_indexes:
                place = _Place(marker, topic.name, index, topic.topic_id)
                refused = _refused(services, place)
                if refused:
                    answers.add(place, refused)
                elif topic.name == OFFSETS_TOPIC:
                    ended.append((place, _end_in_offsets(services, place)))
                else:
                    places.append(place)
                seen += 1
                if not seen % MARKERS_PER_PIECE:
                    if places:
                        appended.append((places, _append(services, marker, places)))
                        places = []
                    yield
        if places:
            appended.append((places, _append(services, marker, places)))
    for places, outcome in appended:
        results = (yield outcome) if isinstance(outcome, Pending) else outcome
        for place, result in zip(places, results, strict=True):
            answers.add(place, result.error)
    for place, end in ended:
        answers.add(place, (yield end))
    return answers.response()


def _refused(services: Services, place: _Place) -> ErrorCode:
    """Why a marker is not appended at all, if it is not."""
    partition = services.replica_manager.partitions.get((place.topic, place.partition))
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # also if another broker has it: the sender looks where it is
    if place.topic_id != NO_TOPIC_ID and partition.topic_id not in (place.topic_id, None):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # the topic was made again while the marker was under way
    if place.marker.producer_id < 0 or place.marker.producer_epoch < 0:
        return ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka, whose batch builder raises
    return ErrorCode.NONE


def _end_in_offsets(services: Services, place: _Place) -> Pending[ErrorCode]:
    marker = place.marker
    return services.group_coordinator.write_marker(
        *(place.partition, _batch(services, marker), _origin(marker)), marker.producer_id, marker.transaction_result
    )


def _append(services: Services, marker: Marker, places: Sequence[_Place]) -> Outcome:
    batch = _batch(services, marker)
    return services.replica_manager.append(
        [(place.topic, place.partition, bytearray(batch)) for place in places],
        required_acks=ALL_IN_SYNC,
        timeout_ms=services.config.request_timeout_ms,
        origin=_origin(marker),
        internal_topics_allowed=True,
    )


def _batch(services: Services, marker: Marker) -> bytearray:
    return build_marker(
        CONTROL_COMMIT if marker.transaction_result else CONTROL_ABORT,
        base_offset=0,
        partition_leader_epoch=-1,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=services.env.clock.now_ms(),
    )


def _origin(marker: Marker) -> AppendOrigin:
    raises_epochs = marker.transaction_version >= VERSION_THAT_RAISES_EPOCHS
    return AppendOrigin.COORDINATOR_OF_VERSION_2 if raises_epochs else AppendOrigin.COORDINATOR
