"""Fetch (key 1), versions 4-18: consumers, and followers by replica id; long polls; incremental sessions (KIP-227).

Left out: the fields of tiered storage and of KRaft's quorum (SnapshotId, the check of the cluster id, directory ids,
the high watermark in requests of version 18), which consumers and followers of topics do not need.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from barnabas.broker.access import records as records_access
from barnabas.broker.fetch_sessions import EPOCH_FINAL, EPOCH_INITIAL, FetchSession, PartitionKey, SessionPartition
from barnabas.broker.requests import Reply, RequestContext, api, note_no_right
from barnabas.broker.services import Services
from barnabas.cluster.metadata_cache import NO_TOPIC_ID
from barnabas.cluster.security.acls import AclOperation, ResourceType
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.frames import EncodedResponse, encode_response_in_pieces
from barnabas.protocol.messages import FetchRequest, FetchResponse
from barnabas.replication.fetch_values import FetchParams, FetchResult, SharedResults
from barnabas.replication.follower_fetches import FollowerFetches, Reads
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, chunks

FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
FIRST_VERSION_WITH_REPLICA_STATE: Final = 15
FIRST_VERSION_WITH_ENDPOINTS: Final = 16
LAST_VERSION_WITHOUT_STORAGE_ERROR: Final = 5
AT_ONCE_MAX = 500  # partitions; any more are read and answered in pieces
PARTITIONS_PER_PIECE = 50

Answer = FetchResponse.PartitionData


def fetch_failed(request: FetchRequest, error: ErrorCode) -> FetchResponse:
    """The error at the top level and for every partition that was named."""
    return FetchResponse(
        error_code=error,
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[refused(partition.partition, error) for partition in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def refused(index: int, error: ErrorCode) -> FetchResponse.PartitionData:
    """The answer for a partition that was not read: no offsets. Lists are empty, not null, because of old clients."""
    return Answer(partition_index=index, error_code=error, high_watermark=-1, aborted_transactions=[], records=b"")


class _Fetch:
    """One Fetch request: what it asks to read, what is refused, and its answer."""

    __slots__ = ("asked", "context", "refusals", "services", "session", "session_epoch", "session_is_new")

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        session: FetchSession | None,
        session_is_new: bool,
    ) -> None:
        self.services = services
        self.context = context
        self.session = session
        self.session_epoch = -1 if session is None else session.epoch  # of the request behind this one
        self.session_is_new = session_is_new
        self.asked: list[SessionPartition] = []
        self.refusals: list[tuple[SessionPartition, ErrorCode]] = []

    def to_read(self, wanted: Iterable[SessionPartition]) -> list[SessionPartition]:
        """The partitions that the replica manager is asked for. Others, missing or not allowed, go into `refusals`."""
        cache, replicas = self.services.metadata_cache, self.services.replica_manager
        rights = self.context.rights
        for partition in wanted:
            topic = partition.topic or self.name(partition)
            if topic is None:
                self.refusals.append((partition, ErrorCode.UNKNOWN_TOPIC_ID))
            elif rights is not None and not rights.may(AclOperation.READ, ResourceType.TOPIC, topic):
                right = (AclOperation.READ, ResourceType.TOPIC, topic)
                note_no_right(self.services.refusals, self.context, rights, *right)
                self.refusals.append((partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            elif not cache.contains(topic, partition.index) and (topic, partition.index) not in replicas.partitions:
                is_gone = partition.topic_id != NO_TOPIC_ID and cache.topic_name(partition.topic_id) is None
                error = ErrorCode.UNKNOWN_TOPIC_ID if is_gone else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                self.refusals.append((partition, error))
            else:
                self.asked.append(partition)
        return self.asked

    def name(self, partition: SessionPartition) -> str | None:
        """The name of a partition's topic. LeaderAndIsr may tell it before UpdateMetadata does."""
        if partition.topic is None:
            topic_id = partition.topic_id
            partition.topic = self.services.metadata_cache.topic_name(
                topic_id
            ) or self.services.replica_manager.hosted_topic(topic_id)
        return partition.topic

    def read_as_follower(self, follower: FollowerFetches[SessionPartition], params: FetchParams) -> Reply:
        """Read what has news in a follower's session. What was refused is asked for again, or forgotten, by name."""
        for partition in follower.asked:
            self.name(partition)
        reads = follower.fetch(params)
        return reads.map(self.answer_to_follower) if isinstance(reads, Pending) else self.answer_to_follower(reads)

    def answer_to_follower(self, reads: Reads[SessionPartition]) -> FetchResponse:
        self.asked = list(reads[0])
        return self.response(reads[1])

    def answer(self, results: list[FetchResult]) -> FetchResponse | EncodedResponse:
        """The answer after a wait. Requests that waited for the same share one answer, unless they have a session."""
        if not isinstance(results, SharedResults) or self.session is not None or self.refusals:
            return self.response(results)
        if results.answer is None:
            results.answer = EncodedResponse(ApiKey.FETCH, self.context.api_version, self.response(results))
        answer: EncodedResponse = results.answer
        return answer

    def response(self, results: list[FetchResult]) -> FetchResponse:
        """The answer: all partitions, or in an incremental session those with news."""
        response = FetchResponse(session_id=0 if self.session is None else self.session.id)
        if self.session is not None and self._is_overtaken(self.session):
            response.error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return response
        last_key = self._add_results(response, None, zip(self.asked, results, strict=True))
        if self.refusals:
            self._add_refusals(response, last_key, self.refusals)
        return response

    def in_pieces(self, params: FetchParams, wanted: Sequence[SessionPartition]) -> Pieces[Reply]:
        """Read very many partitions of a consumer, and answer."""
        for piece in chunks(wanted, PARTITIONS_PER_PIECE):
            yield
            self.to_read(piece)
        results = yield from self.services.replica_manager.fetching.fetch_in_pieces(params, self.asked)
        response = FetchResponse(session_id=0 if self.session is None else self.session.id)
        last_key: bytes | str | None = None
        for first in range(0, len(results), PARTITIONS_PER_PIECE):
            yield
            if self.session is not None and self._is_overtaken(self.session):
                return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=response.session_id)
            end = first + PARTITIONS_PER_PIECE
            last_key = self._add_results(
                response, last_key, zip(self.asked[first:end], results[first:end], strict=True)
            )
        for refusals in chunks(self.refusals, PARTITIONS_PER_PIECE):
            yield
            last_key = self._add_refusals(response, last_key, refusals)
        version, correlation_id = self.context.api_version, self.context.correlation_id
        return (yield from encode_response_in_pieces(ApiKey.FETCH, version, correlation_id, response))

    def _is_overtaken(self, session: FetchSession) -> bool:
        """Whether a later request, of another connection, has changed the session: what this one asked is not in it."""
        return session.epoch != self.session_epoch

    def _add_results(
        self,
        response: FetchResponse,
        last_key: bytes | str | None,
        read: Iterable[tuple[SessionPartition, FetchResult]],
    ) -> bytes | str | None:
        """Add what was read. Returns the key of the last topic in the answer."""
        session = self.session
        for partition, result in read:
            if session is not None:
                has_records = len(result.records) > 0
                has_more = has_records or result.preferred_read_replica >= 0 or result.diverging_epoch is not None
                news = partition.note_result(result.error, result.high_watermark, result.log_start_offset, has_more)
                if has_records:
                    session.move_to_end(partition)
                if not news and not self.session_is_new:
                    continue
            last_key = self._add(response.responses, last_key, partition, self._answer(response, partition, result))
        return last_key

    def _add_refusals(
        self,
        response: FetchResponse,
        last_key: bytes | str | None,
        refusals: Iterable[tuple[SessionPartition, ErrorCode]],
    ) -> bytes | str | None:
        """The same with partitions that were not read."""
        for partition, error in refusals:
            if self.session is not None:
                partition.note_result(error, -1, -1, False)
            last_key = self._add(response.responses, last_key, partition, refused(partition.index, error))
        return last_key

    @staticmethod
    def _add(
        topics: list[FetchResponse.FetchableTopicResponse],
        last_key: bytes | str | None,
        partition: SessionPartition,
        answer: FetchResponse.PartitionData,
    ) -> bytes | str:
        """Add a partition to the last topic if it belongs there, or else begin a new one. Returns the topic's key."""
        key = partition.key[0]
        if key == last_key:
            topics[-1].partitions.append(answer)
        elif isinstance(key, str):
            topics.append(FetchResponse.FetchableTopicResponse(topic=key, partitions=[answer]))
        else:
            topics.append(FetchResponse.FetchableTopicResponse(topic_id=key, partitions=[answer]))
        return key

    def _answer(
        self, response: FetchResponse, partition: SessionPartition, result: FetchResult
    ) -> FetchResponse.PartitionData:
        error = result.error
        version = self.context.api_version
        if error == ErrorCode.KAFKA_STORAGE_ERROR and version <= LAST_VERSION_WITHOUT_STORAGE_ERROR:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = Answer(
            partition_index=partition.index,
            error_code=error,
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            aborted_transactions=None
            if result.aborted_transactions is None
            else [
                FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                for producer_id, first_offset in result.aborted_transactions
            ],
            preferred_read_replica=result.preferred_read_replica,
            records=result.records,
        )
        if result.diverging_epoch is not None:
            epoch, end_offset = result.diverging_epoch
            answer.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        if version >= FIRST_VERSION_WITH_ENDPOINTS and result.leader is not None:
            self.services.addresses.tell_leader(response, answer, result.leader, self.context)
        return answer


def is_of_follower(request: FetchRequest) -> bool:
    return request.replica_id >= 0 or request.replica_state.replica_id >= 0


@api(ApiKey.FETCH, versions=(4, 18), access=records_access.fetch, failure=fetch_failed, is_of_brokers=is_of_follower)
def fetch(services: Services, request: FetchRequest, context: RequestContext) -> Reply:
    """Read now; or park the request until there are MinBytes to read, or MaxWaitMs have passed."""
    if context.is_long:
        return services.env.turns.run(_fetch_long(services, request, context))
    by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    asked: Sequence[SessionPartition] = [
        each for topic in request.topics for each in _asked(topic, topic.partitions, by_id)
    ]
    session: FetchSession | None = None
    is_first = request.session_epoch == EPOCH_INITIAL
    if request.session_epoch != EPOCH_FINAL or request.session_id:
        found = _session(services, request, context, {each.key: each for each in asked} if is_first else {})
        if isinstance(found, ErrorCode):
            return FetchResponse(error_code=found)
        if found is not None:
            if not is_first:
                found.update(asked, _forgotten(request, by_id))
            asked = found.to_read()
            session = _if_it_goes_on(services, found, is_first)
    params = _params(services, request, context)
    work = _Fetch(services, context, session, is_first)
    if session is not None and session.follower is not None:
        return work.read_as_follower(session.follower, params)
    if len(asked) > AT_ONCE_MAX:
        return services.env.turns.run(work.in_pieces(params, asked))
    to_read = work.to_read(asked)
    if not to_read:
        return work.response([])
    outcome = services.replica_manager.fetching.fetch(params, to_read)
    return outcome.map(work.answer) if isinstance(outcome, Pending) else work.response(outcome)


def _fetch_long(services: Services, request: FetchRequest, context: RequestContext) -> Pieces[Reply]:
    """The same for a long request. What is asked twice is answered once, for the later request, as in Kafka."""
    by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    asked: dict[PartitionKey, SessionPartition] = {}
    for topic in request.topics:
        for partitions in chunks(topic.partitions, PARTITIONS_PER_PIECE):
            yield
            asked.update({each.key: each for each in _asked(topic, partitions, by_id)})
    is_first = request.session_epoch == EPOCH_INITIAL
    session = _session(services, request, context, asked)
    if isinstance(session, ErrorCode):
        return FetchResponse(error_code=session)
    wanted: Sequence[SessionPartition] = list(asked.values())
    if session is not None:
        if not is_first:
            for piece in chunks(wanted, PARTITIONS_PER_PIECE):
                yield
                session.update(piece, ())
            for forgotten in chunks(_forgotten(request, by_id), PARTITIONS_PER_PIECE):
                yield
                session.update((), forgotten)
        wanted = session.to_read()
        session = _if_it_goes_on(services, session, is_first)
    params = _params(services, request, context)
    work = _Fetch(services, context, session, is_first)
    if session is None or session.follower is None:
        return (yield from work.in_pieces(params, wanted))
    reply = work.read_as_follower(session.follower, params)
    return (yield reply) if isinstance(reply, Pending) else reply


def _asked(
    topic: FetchRequest.FetchTopic, partitions: Iterable[FetchRequest.FetchPartition], by_id: bool
) -> list[SessionPartition]:
    return [
        SessionPartition(
            None if by_id else topic.topic,
            partition.partition,
            partition.fetch_offset,
            partition.partition_max_bytes,
            topic_id=topic.topic_id,
            log_start_offset=partition.log_start_offset,
            current_leader_epoch=partition.current_leader_epoch,
            last_fetched_epoch=partition.last_fetched_epoch,
        )
        for partition in partitions
    ]


def _replica_id(request: FetchRequest, version: int) -> int:
    return request.replica_id if version < FIRST_VERSION_WITH_REPLICA_STATE else request.replica_state.replica_id


def _session(
    services: Services,
    request: FetchRequest,
    context: RequestContext,
    asked: dict[PartitionKey, SessionPartition],
) -> FetchSession | ErrorCode | None:
    """The session of the request: a new one for what is asked, the one that it names, or none."""
    sessions = services.fetch_sessions
    by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    now_ms = services.env.clock.monotonic_ms()
    named = sessions.of(request.session_id)
    is_of_another = named is not None and named.privileged and not is_of_follower(request)
    if request.session_epoch not in (EPOCH_FINAL, EPOCH_INITIAL):
        if is_of_another:  # a follower reads every topic, and nobody else does so by its session
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return sessions.resume(request.session_id, request.session_epoch, uses_topic_ids=by_id, now_ms=now_ms)
    if request.session_id and not is_of_another:
        sessions.close(request.session_id)
    if request.session_epoch == EPOCH_FINAL:
        return None
    replica_id = _replica_id(request, context.api_version)
    session = sessions.open(asked, privileged=replica_id >= 0, uses_topic_ids=by_id, now_ms=now_ms)
    if session is not None and replica_id >= 0:
        session.follow(FollowerFetches(services.replica_manager.fetching, replica_id))
    return session


def _if_it_goes_on(services: Services, session: FetchSession, is_first: bool) -> FetchSession | None:
    """The session, unless it is closed now because it has no partitions any more."""
    if is_first or session.partitions:
        return session
    services.fetch_sessions.close(session.id)
    return None


def _params(services: Services, request: FetchRequest, context: RequestContext) -> FetchParams:
    return FetchParams(  # by place: a named tuple takes names slowly
        _replica_id(request, context.api_version),
        request.replica_state.replica_epoch,
        request.max_wait_ms,
        request.min_bytes,
        min(request.max_bytes, services.config.fetch_max_bytes),
        request.isolation_level,
        context.api_version,
        request.rack_id,
        context.listener_name,
    )


def _forgotten(request: FetchRequest, by_id: bool) -> list[PartitionKey]:
    return [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
