"""Offsets that a member commits in a transaction, told to a Kafka and to a broker in memory (consumer_groups.py)."""

import random
import time
from typing import Any

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from consumer_classic_steps import Member
from consumer_pair import Differs, Pair, Topics, differing, plain

BUSY = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
BUSY_PAUSE_SECONDS = 0.05
VERSIONS = (3, 4, 5)  # of TxnOffsetCommit; from 5 on the group need not be added to the transaction first
TIMEOUT_MS = 600_000


class TransactionSteps:
    """What a member does in a transaction. Each broker gives the producer an id of its own."""

    name: str
    story: list[str]
    _pair: Pair
    _topics: Topics
    _rng: random.Random

    def _transaction(self, member: Member) -> str:
        """Begin, commit once or twice, look at what is pending, end, and look again."""
        producers = [(answer.producer_id, answer.producer_epoch) for answer in self._begin()]
        done = []
        version = self._rng.choice(VERSIONS)
        if version < 5:
            self._same(ApiKey.ADD_OFFSETS_TO_TXN, 3, [self._adding(*producer) for producer in producers])
        for _ in range(self._rng.randint(1, 2)):
            fields = self._said(member)
            self.story.append(f"    {fields}")
            answers = self._same(
                ApiKey.TXN_OFFSET_COMMIT, version, [self._committing(*producer, fields) for producer in producers]
            )
            done.append([row.partitions[0].error_code for row in answers[0].topics])
            self._look_at_offsets()
        committed = self._rng.random() < 0.7
        if version < 5 or any(0 in codes for codes in done):  # else there is nothing to end
            make = messages.EndTxnRequest
            ends = [
                make(transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=committed)
                for producer_id, epoch in producers
            ]
            self._same(ApiKey.END_TXN, 3 if version < 5 else 5, ends)
            self._begin()  # which is refused until the markers are written
        self._look_at_offsets()
        return (
            f"transaction of {member.member_id}, version {version}: {done}, {'committed' if committed else 'aborted'}"
        )

    def _begin(self) -> list[Any]:
        request = messages.InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=TIMEOUT_MS)
        while True:
            answers = self._pair.ask_each(ApiKey.INIT_PRODUCER_ID, 4, [request, request])
            if not any(answer.error_code in BUSY for answer in answers):
                assert not any(answer.error_code for answer in answers), answers
                return answers
            time.sleep(BUSY_PAUSE_SECONDS)

    def _adding(self, producer_id: int, epoch: int) -> Any:
        return messages.AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, group_id=self.name
        )

    def _said(self, member: Member) -> dict[str, Any]:
        make = messages.TxnOffsetCommitRequest
        names = self._rng.sample(sorted(self._topics.ids), min(2, len(self._topics.ids)))
        epoch = member.epoch + self._rng.choice((0, 0, 0, -1, -2, 1))
        instances = (member.instance_id, member.instance_id, member.instance_id, "i9", None)
        return {
            "generation_id_or_member_epoch": self._rng.choice((epoch, epoch, epoch, -1)),
            "member_id": self._rng.choice((member.member_id, member.member_id, member.member_id, "nobody", "")),
            "group_instance_id": self._rng.choice(instances),
            "topics": [
                make.TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        make.TxnOffsetCommitRequestPartition(
                            partition_index=self._rng.randrange(self._topics.counts[name]),
                            committed_offset=self._rng.randrange(100),
                            committed_metadata="in a transaction",
                        )
                    ],
                )
                for name in names
            ],
        }

    def _committing(self, producer_id: int, epoch: int, fields: dict[str, Any]) -> Any:
        return messages.TxnOffsetCommitRequest(
            transactional_id=self.name, group_id=self.name, producer_id=producer_id, producer_epoch=epoch, **fields
        )

    def _same(self, key: ApiKey, version: int, requests: list[Any]) -> list[Any]:
        """Each broker's answer, which must be the same but for the producer."""
        answers = self._pair.ask_each(key, version, requests)
        while any(getattr(answer, "error_code", 0) in BUSY for answer in answers):
            time.sleep(BUSY_PAUSE_SECONDS)
            answers = self._pair.ask_each(key, version, requests)
        found = [plain(answer) for answer in answers]
        for each in found:
            each.pop("producer_id", None)
            each.pop("producer_epoch", None)
        if found[0] != found[1]:
            raise Differs("\n".join([f"{key.name} {version}", *differing("", *found)]))
        return answers

    def _look_at_offsets(self) -> None:
        make = messages.OffsetFetchRequest
        row = make.OffsetFetchRequestGroup(group_id=self.name, topics=None)
        for is_stable in (False, True):
            self._pair.ask(ApiKey.OFFSET_FETCH, 9, make(groups=[row], require_stable=is_stable))
