"""A follower's half of an incremental fetch session with one leader (KIP-227): the requests, by what has changed.

A request names the partitions that have something new to say: they were added, or their log has moved. So the cost of
a request follows the news, not the number of partitions.
"""

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import FetchRequest, FetchResponse
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.replication.follower import Follower

EPOCH_INITIAL = 0
EPOCH_MAX = 2**31 - 1
VERSION = 17  # what Apache Kafka 3.9 sends between brokers
VERSION_WITHOUT_TOPIC_IDS = 12

# The leader does not know the session any more, or another request has used it: begin again, at once.
SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

Key = tuple[str, int]


class Limits(NamedTuple):
    """The settings of a fetch. Sizes are in bytes."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int


class LeaderSession:
    """The partitions that one fetcher asks of one leader, and what the leader knows of them."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._id = 0
        self._epoch = EPOCH_INITIAL
        self._uses_topic_ids = True
        self._without_topic_id = 0
        self._members: dict[Key, Follower] = {}
        self._changed: dict[Key, Follower] = {}
        self._known: set[Key] = set()  # to the leader, in this session
        self._dropped: dict[tuple[str, int, bytes | None], None] = {}  # known to the leader still
        self._names: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._members)

    def add(self, follower: Follower) -> None:
        """Ask for this partition from the next request on."""
        key = (follower.topic, follower.index)
        self.remove(key)
        dropped = (*key, follower.topic_id)
        if dropped in self._dropped:
            del self._dropped[dropped]
            self._known.add(key)
        follower.asked = None  # an answer that is under way is not for it
        self._members[key] = self._changed[key] = follower
        if follower.topic_id is None:
            self._without_topic_id += 1
        else:
            self._names[follower.topic_id] = follower.topic

    def remove(self, key: Key) -> None:
        """Do not ask for this partition any more."""
        follower = self._members.pop(key, None)
        if follower is not None:
            self._changed.pop(key, None)
            if key in self._known:
                self._known.discard(key)
                self._dropped[follower.topic, follower.index, follower.topic_id] = None
            if follower.topic_id is None:
                self._without_topic_id -= 1

    def take_all(self) -> list[Follower]:
        """Remove all partitions, for another session to ask for them."""
        taken = list(self._members.values())
        for follower in taken:
            self.remove((follower.topic, follower.index))
        return taken

    def note(self, follower: Follower) -> None:
        """The answer for a partition was handled: the next request says what is new in its log."""
        key = (follower.topic, follower.index)
        if self._members.get(key) is follower and follower.ask() != follower.asked:
            self._changed[key] = follower

    def member(self, topic: str, index: int) -> Follower | None:
        """Who asked for this partition."""
        return self._members.get((topic, index))

    @property
    def has_request(self) -> bool:
        """Whether there is anything to ask, or to take back."""
        return bool(self._members) or bool(self._dropped)

    @property
    def version(self) -> int:
        return VERSION_WITHOUT_TOPIC_IDS if self._without_topic_id else VERSION

    def request(self, limits: Limits, broker_epoch: int) -> FetchRequest:
        """The next request. What it tells is noted as told."""
        by_id = not self._without_topic_id
        if by_id != self._uses_topic_ids:
            self._uses_topic_ids = by_id
            self.begin_again()
        if self._epoch == EPOCH_INITIAL:
            asking = self._members
            self._known.clear()
            self._dropped.clear()
            self._names = {
                follower.topic_id: topic for (topic, _), follower in asking.items() if follower.topic_id is not None
            }
        else:
            asking = self._changed
        request = FetchRequest(
            max_wait_ms=limits.max_wait_ms if self._members else 0,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=self._topics(asking, limits.partition_max_bytes),
            forgotten_topics_data=self._forgotten(),
        )
        if self.version == VERSION:
            request.replica_state = FetchRequest.ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch)
        else:
            request.replica_id = self._node_id
        self._changed = {}
        return request

    def _topics(self, asking: dict[Key, Follower], partition_max_bytes: int) -> list[FetchRequest.FetchTopic]:
        topics: dict[str, FetchRequest.FetchTopic] = {}
        for key, follower in asking.items():
            told = follower.asked = follower.ask()
            self._known.add(key)
            topic = topics.get(follower.topic)
            if topic is None:
                topic = topics[follower.topic] = FetchRequest.FetchTopic(topic=follower.topic)
                if follower.topic_id is not None:
                    topic.topic_id = follower.topic_id
            topic.partitions.append(
                FetchRequest.FetchPartition(
                    partition=follower.index,
                    current_leader_epoch=follower.leader_epoch,
                    fetch_offset=told.fetch_offset,
                    last_fetched_epoch=told.last_fetched_epoch,
                    log_start_offset=told.log_start_offset,
                    partition_max_bytes=partition_max_bytes,
                )
            )
        return list(topics.values())

    def _forgotten(self) -> list[FetchRequest.ForgottenTopic]:
        topics: dict[tuple[str, bytes | None], FetchRequest.ForgottenTopic] = {}
        for topic, index, topic_id in self._dropped:
            entry = topics.get((topic, topic_id))
            if entry is None:
                entry = topics[topic, topic_id] = FetchRequest.ForgottenTopic(topic=topic)
                if topic_id is not None:
                    entry.topic_id = topic_id
            entry.partitions.append(index)
        self._dropped.clear()
        return list(topics.values())

    def answered(self, response: FetchResponse) -> ErrorCode:
        """Note the answer to the last request; its error for the whole request. Session errors begin a new session."""
        error = response.error_code
        if error:
            self.begin_again()
            if error in SESSION_ERRORS:
                self._id = 0
            return ErrorCode.of(error)
        self._id = response.session_id
        if response.session_id == 0:  # the leader has no room for a session, or has closed this one
            self._epoch = EPOCH_INITIAL
        else:
            self._epoch = 1 if self._epoch in (EPOCH_INITIAL, EPOCH_MAX) else self._epoch + 1
        return ErrorCode.NONE

    def begin_again(self) -> None:
        """The next request names everything. It closes the session that there may be."""
        self._epoch = EPOCH_INITIAL
        self._known.clear()
        self._dropped.clear()
        self._changed = {}

    def topic_of(self, answered: FetchResponse.FetchableTopicResponse) -> str | None:
        """The name of a topic in the answer to the last request; None if it is not one of those asked for."""
        return self._names.get(answered.topic_id) if self._uses_topic_ids else answered.topic
