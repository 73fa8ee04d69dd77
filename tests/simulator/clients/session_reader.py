"""A consumer with an incremental fetch session (KIP-227): it names its partitions once, then only changes."""

from typing import TYPE_CHECKING, Any

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import FetchRequest

from simulator.clients.client import RETRIABLE
from simulator.clients.reader import FETCH_LIMIT_MS, Reader
from simulator.ledger import TopicPartition
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

FIRST_VERSION_WITH_TOPIC_IDS = 13
_NOTHING_TOLD = (-1, -1)


class SessionReader(Reader):
    """Asks for all partitions in one request; the answers hold only news."""

    def __init__(self, world: "World", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name, keys)
        self._session_id = 0
        self._epoch = 0  # of the next request
        self._version = 7
        self._life = 0  # of the broker that gave the session
        self._asked: dict[TopicPartition, int] = {}  # the partitions of the session, and the position last asked for
        self._told: dict[TopicPartition, tuple[int, int]] = {}  # high watermark and log start, as last answered
        self._end: tuple[TopicPartition, int] | None = None  # a partition is known to end here or later

    def hang_up(self) -> None:
        super().hang_up()
        self._epoch = 0  # an answer may be lost whose values the session counts as sent

    async def turn(self) -> None:
        if self._end is None and self.rng.random() < 0.2:
            key = self.rng.choice(list(self.positions))
            end = await self.list_offset(key, -1)
            self._end = None if end is None else (key, end)
        await self._fetch(self.rng.choice((0, 100, 500)))
        await self.sleep(100, 2_000)
        if self.rng.random() < 0.05:
            self.positions[self.rng.choice(list(self.positions))] = 0

    async def rest(self) -> None:
        await self._fetch(30_000)
        await self.sleep(1_000, 5_000)

    async def _fetch(self, max_wait_ms: int) -> None:
        is_new = self._epoch == 0
        if is_new:
            self._version = self.rng.randint(7, 18)
            self._asked.clear()
            self._told.clear()
        wanted = dict(self.positions)
        if not is_new and self.rng.random() < 0.05:  # leaves out one of them for a while
            del wanted[self.rng.choice(list(wanted))]
        changed = {key: at for key, at in wanted.items() if self._asked.get(key) != at}
        forgotten = [key for key in self._asked if key not in wanted]
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=self.rng.choice((500, 20_000, 1 << 20)),
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=[
                FetchRequest.FetchTopic(
                    topic=key[0],
                    topic_id=self.world.topic_ids[key[0]],
                    partitions=[
                        FetchRequest.FetchPartition(partition=key[1], fetch_offset=at, partition_max_bytes=20_000)
                    ],
                )
                for key, at in changed.items()
            ],
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic=topic, topic_id=self.world.topic_ids[topic], partitions=[index])
                for topic, index in forgotten
            ],
        )
        for key in forgotten:
            del self._asked[key]
            self._told.pop(key, None)
        self._asked.update(changed)
        life = self.world.host.lives
        response = await self.ask(ApiKey.FETCH, self._version, request, max_wait_ms + FETCH_LIMIT_MS)
        if not self._take_error(response, life):
            return
        await self._take_all(response, wanted, is_new)

    def _take_error(self, response: Any, life: int) -> bool:
        """Take over the answer's session and epoch. False if the session is gone: then a new one begins."""
        error = ErrorCode(response.error_code)
        if error is ErrorCode.NONE:
            if self._epoch == 0:
                self._session_id, self._life = response.session_id, life
            elif response.session_id != self._session_id:
                raise Violation("a session stays", f"{self.name}: {response.session_id} for {self._session_id}")
            self._epoch = self._epoch + 1 if self._session_id else 0
            return True
        if error is not ErrorCode.FETCH_SESSION_ID_NOT_FOUND or self._life == self.world.host.lives:
            raise Violation("a session stays", f"{self.name}: {error.name} in epoch {self._epoch}")
        self._epoch = self._session_id = 0
        return False

    async def _take_all(self, response: Any, wanted: dict[TopicPartition, int], is_new: bool) -> None:
        answered: dict[TopicPartition, bool] = {}
        for topic in response.responses:
            name = topic.topic
            if self._version >= FIRST_VERSION_WITH_TOPIC_IDS:
                name = self.world.topic_names.get(topic.topic_id, str(topic.topic_id))
            for partition in topic.partitions:
                key = (name, partition.partition_index)
                if key not in wanted:
                    raise Violation("a session answers what it was asked", f"{self.name}: {key}")
                if key in answered:
                    raise Violation("a session answers once", f"{self.name}: {key}")
                answered[key] = bool(partition.error_code) or bool(len(partition.records or b""))
                self._look_at_news(key, partition, is_new)
                at = await self.take(key, wanted[key], partition)
                if partition.error_code and ErrorCode(partition.error_code) in RETRIABLE:
                    await self.sleep(50, 300)
                if at is not None:
                    self.positions[key] = at
        if is_new and answered.keys() != wanted.keys():
            raise Violation("a session leaves nothing out", f"{self.name}: {sorted(answered)} of {sorted(wanted)}")
        if self._end is not None:
            key, end = self._end
            if key in wanted and wanted[key] < end and not any(answered.values()):
                detail = f"{self.name}: nothing of {key} from {wanted[key]} on, it goes to {end}"
                raise Violation("a session leaves nothing out", detail)
            if key in wanted:
                self._end = None

    def _look_at_news(self, key: TopicPartition, partition: Any, is_new: bool) -> None:
        told = (partition.high_watermark, partition.log_start_offset)
        if partition.error_code:
            self._told[key] = _NOTHING_TOLD
            return
        if not is_new and not len(partition.records or b"") and self._told.get(key) == told:
            raise Violation("a session tells only news", f"{self.name}: {key} {told} again")
        self._told[key] = told
