"""Random steps of consumer groups (KIP-848), told to an Apache Kafka and to a broker in memory at the same time.

    python tests/replay/consumer_groups.py --bootstrap 127.0.0.1:9092 --steps 5000 --seed 1
    python tests/replay/consumer_groups.py --bootstrap 127.0.0.1:9092 --steps 400 --regexes

Run it by hand: it needs an Apache Kafka 4.3.1, alone and with these lines in its server.properties:

    group.consumer.min.assignment.interval.ms=0
    group.consumer.assignment.interval.ms=0
    group.consumer.max.session.timeout.ms=7200000
    group.consumer.session.timeout.ms=3600000
    group.consumer.max.heartbeat.interval.ms=7200000
    group.consumer.migration.policy=bidirectional
    group.max.session.timeout.ms=7200000
    group.initial.rebalance.delay.ms=0
    offsets.topic.num.partitions=1

After each step both are asked what the group is now. Topics have the ids, and classic members the ids, that Kafka has
chosen, because assignments depend on them. What is known to differ (docs/differences.md) is not done, or waited for:
expressions mean new topics to Kafka only after ten seconds, so `--regexes` waits; no consumer joins in the midst of a
rebalance of a classic group; and no classic member takes the place of the last consumer while others miss partitions.
A group in which there was a difference is left alone, and another one begun. Exit code 1 when there was a difference.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from consumer_classic_steps import ClassicSteps, Member
from consumer_pair import (
    EXPRESSIONS,
    MEMBERS_MAX,
    NO_ID,
    REFRESH_SECONDS,
    STEPS_OF_A_GROUP,
    Differs,
    Pair,
    Topics,
    Unlucky,
    differing,
    plain,
)
from consumer_transaction_steps import TransactionSteps


class Group(ClassicSteps, TransactionSteps):
    """One group, and its members."""

    def __init__(self, name: str, pair: Pair, topics: Topics, rng: random.Random, *, with_regexes: bool) -> None:
        self.name, self._pair, self._topics, self._rng = name, pair, topics, rng
        self._with_regexes = with_regexes
        self._with_classic = rng.random() < 0.5
        self._is_mixed = rng.random() < 0.6  # members read different topics
        self.members: list[Member] = []
        self.story: list[str] = []
        self.made = 0
        self.kinds: Counter[str] = Counter()
        self.seen_changes = -1
        self.refreshed = 0.0
        self.settled = False
        self.last_look: Any = None  # what the group was after the last step
        self.classic_state = ""  # if it was a classic group then
        self.told_changes = -1  # of topics, when the group was asked last what follows from them

    # -- what a member may do

    def step(self) -> None:
        """Do something, then ask what the group is now. Differs."""
        consumers = [member for member in self.members if not member.is_classic]
        classics = [member for member in self.members if member.is_classic]
        deeds: list[tuple[float, Callable[..., str], tuple[Member, ...]]] = [(0.2, self._others, ())]
        if len(self.members) < MEMBERS_MAX:
            deeds.append((1.5, self._join, ()))
        if consumers:
            member = self._rng.choice(consumers)
            deeds += [
                (9, self._beat, (member,)),
                (1, self._change, (member,)),
                (0.5, self._wrong_epoch, (member,)),
                (0.6, self._leave, (member,)),
                (0.4, self._join_again, (member,)),
                (0.8, self._commit, (member,)),
                (0.4, self._fetch, (member,)),
                (0.5, self._transaction, (member,)),
            ]
            if member.instance_id is not None:
                deeds.append((2, self._go_and_come, (member,)))
        if self._with_classic and len(self.members) < MEMBERS_MAX:
            deeds.append((0.8, self._join_classic, ()))
        if self._with_classic and any(each.instance_id is not None for each in consumers):
            deeds.append((0.4, self._replace_by_classic, ()))
        if classics:
            old = self._rng.choice(classics)
            deeds += [
                (5, self._beat_classic, (old,)),
                (0.5, self._leave_classic, (old,)),
                (0.3, self._commit, (old,)),
                (0.2, self._transaction, (old,)),
            ]
        ((_, deed, who),) = self._rng.choices(deeds, [weight for weight, _, _ in deeds])
        self.kinds[deed.__name__.removeprefix("_")] += 1
        self.story.append(deed(*who))
        self.look()

    def _is_rebalancing(self) -> bool:
        """Whether it is a classic group in the midst of a rebalance."""
        return self.classic_state in ("PreparingRebalance", "CompletingRebalance")

    def look(self) -> None:
        """Ask both what the group is."""
        make = messages.ConsumerGroupDescribeRequest
        answer = self._pair.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, make(group_ids=[self.name]))
        self.last_look = plain(answer)
        self.classic_state = ""
        if answer.groups[0].error_code:
            make_classic = messages.DescribeGroupsRequest
            found = self._pair.ask(ApiKey.DESCRIBE_GROUPS, 5, make_classic(groups=[self.name]))
            self.classic_state = found.groups[0].group_state

    def _heartbeat(self, member: Member, **fields: Any) -> Any:
        if self._with_regexes:
            self._wait_for_refresh(fields)
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.name,
            member_id=member.member_id,
            **{"member_epoch": member.epoch, "instance_id": member.instance_id, **fields},
        )
        self.story.append(f"    {_told(request)}")
        answer = self._pair.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        if self._with_regexes:
            time.sleep(0.05)
        if not answer.error_code and answer.member_epoch >= 0:
            member.epoch = answer.member_epoch
            self.told_changes = self._topics.changes
            if answer.assignment is not None:
                member.before = member.assignment
                member.assignment = {
                    row.topic_id: frozenset(row.partitions) for row in answer.assignment.topic_partitions
                }
        return answer

    def _wait_for_refresh(self, fields: dict[str, Any]) -> None:
        """Kafka resolves expressions not more often than each ten seconds; we do it at once."""
        if fields.get("subscribed_topic_regex") or self.seen_changes != self._topics.changes or not self.settled:
            time.sleep(max(self.refreshed + REFRESH_SECONDS - time.monotonic(), 0))
            self.refreshed = time.monotonic()
            self.settled = self.seen_changes == self._topics.changes
            self.seen_changes = self._topics.changes

    def _owned(self, owned: dict[bytes, frozenset[int]]) -> list[Any]:
        make = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
        return [make(topic_id=topic_id, partitions=sorted(parts)) for topic_id, parts in sorted(owned.items())]

    def _saying(self, member: Member) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "rebalance_timeout_ms": 300_000,
            "topic_partitions": [],
            "subscribed_topic_names": member.names,
        }
        if member.regex:
            fields["subscribed_topic_regex"] = member.regex
        if self._rng.random() < 0.3:
            fields["server_assignor"] = self._rng.choice(("uniform", "range", "range", "sticky"))
        return fields

    def _join(self) -> str:
        if self._is_rebalancing():
            return self._join_together()
        self.made += 1
        member = Member(f"{self.name}-m{self.made}", names=self._topics_to_read())
        if self._with_regexes and self._rng.random() < 0.6:
            member.regex = self._rng.choice(EXPRESSIONS)
        if self._rng.random() < 0.3:
            member.instance_id = f"i{self._rng.randint(1, 3)}"
        answer = self._heartbeat(member, **self._saying(member))
        if not answer.error_code:
            if member.instance_id is not None:  # it may have taken the place of one that was away
                self.members = [each for each in self.members if each.instance_id != member.instance_id]
            self.members.append(member)
        return f"{member.member_id} joins: {_error(answer)}"

    def _beat(self, member: Member) -> str:
        if member.is_away:
            return self._come(member)
        draw = self._rng.random()
        fields: dict[str, Any] = {}
        if draw < 0.6:
            fields["topic_partitions"] = self._owned(member.assignment)
        elif draw < 0.7:
            fields["topic_partitions"] = self._owned({**member.before, **member.assignment})
        elif draw < 0.75:
            fields["topic_partitions"] = []
        elif draw < 0.8:
            fields = {**self._saying(member), "topic_partitions": self._owned(member.assignment)}
        answer = self._heartbeat(member, **fields)
        if answer.error_code in (25, 110):  # UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH
            self.members.remove(member)
        return f"{member.member_id} beats: {_error(answer)}"

    def _change(self, member: Member) -> str:
        if member.is_away:
            return self._come(member)
        fields: dict[str, Any] = {}
        names, regex = self._topics_to_read(), member.regex
        if self._rng.random() < 0.7:
            fields["subscribed_topic_names"] = names
        if self._with_regexes and self._rng.random() < 0.5:
            fields["subscribed_topic_regex"] = regex = self._rng.choice([*EXPRESSIONS, ""])
        if self._rng.random() < 0.3:
            fields["server_assignor"] = self._rng.choice(("uniform", "range"))
        if self._rng.random() < 0.3:
            fields["topic_partitions"] = self._owned(member.assignment)
        if self._rng.random() < 0.2:
            fields["rack_id"] = self._rng.choice("ab")
        answer = self._heartbeat(member, **fields)
        if not answer.error_code:
            member.names, member.regex = fields.get("subscribed_topic_names", member.names), regex
        return f"{member.member_id} says more: {_error(answer)}"

    def _wrong_epoch(self, member: Member) -> str:
        epoch = self._rng.choice((member.epoch - 1, member.epoch + 1, 1, -3, 99))
        copy = Member(member.member_id, member.instance_id)
        fields: dict[str, Any] = {"member_epoch": epoch}
        if self._rng.random() < 0.7:
            fields["topic_partitions"] = self._owned(
                self._rng.choice((member.assignment, member.before, dict[bytes, frozenset[int]]()))
            )
        if epoch in (0, -1, -2):
            return "nothing"
        if self._rng.random() < 0.2:
            copy.instance_id = self._rng.choice(("i1", "i9", None))
        answer = self._heartbeat(copy, **fields)
        if not answer.error_code:
            member.epoch, member.assignment = copy.epoch, copy.assignment or member.assignment
        return f"{member.member_id} with epoch {epoch}: {_error(answer)}"

    def _leave(self, member: Member) -> str:
        if self._rng.random() < 0.3:  # as an administrator removes it
            return self._leave_classic(member)
        answer = self._heartbeat(member, member_epoch=-1)
        if not answer.error_code:
            self.members.remove(member)
        return f"{member.member_id} leaves: {_error(answer)}"

    def _join_again(self, member: Member) -> str:
        answer = self._heartbeat(member, **{**self._saying(member), "member_epoch": 0})
        member.is_away = member.is_away and bool(answer.error_code)
        return f"{member.member_id} joins again: {_error(answer)}"

    def _go_and_come(self, member: Member) -> str:
        if member.is_away:
            return self._come(member)
        answer = self._heartbeat(member, member_epoch=-2)
        member.is_away = not answer.error_code
        return f"{member.member_id} leaves for a while: {_error(answer)}"

    def _come(self, member: Member) -> str:
        self.made += 1
        back = Member(f"{self.name}-m{self.made}", member.instance_id, names=member.names, regex=member.regex)
        if self._rng.random() < 0.3:
            back.names = self._topics_to_read()
        answer = self._heartbeat(back, **self._saying(back))
        if not answer.error_code:
            self.members[self.members.index(member)] = back
        return f"{back.member_id} is back for {member.member_id}: {_error(answer)}"

    # -- offsets

    def _commit(self, member: Member) -> str:
        version = self._rng.choice((9, 10, 8)) if not member.is_classic else 9
        epoch = member.epoch + self._rng.choice((0, 0, 0, -1, -2, 1))
        make = messages.OffsetCommitRequest
        names = self._rng.sample(sorted(self._topics.ids), min(2, len(self._topics.ids)))
        request = make(
            group_id=self.name,
            member_id=self._rng.choice((member.member_id, member.member_id, member.member_id, "nobody", "")),
            generation_id_or_member_epoch=self._rng.choice((epoch, epoch, epoch, -1)),
            group_instance_id=member.instance_id,
            topics=[
                make.OffsetCommitRequestTopic(
                    name=name if version < 10 else "",
                    topic_id=NO_ID if version < 10 else self._topics.ids[name],
                    partitions=[
                        make.OffsetCommitRequestPartition(
                            partition_index=self._rng.randrange(self._topics.counts[name]),
                            committed_offset=self._rng.randrange(100),
                        )
                    ],
                )
                for name in names
            ],
        )
        answer = self._pair.ask(ApiKey.OFFSET_COMMIT, version, request)
        return f"{_told(request)} version {version}: {[row.partitions[0].error_code for row in answer.topics]}"

    def _fetch(self, member: Member) -> str:
        make = messages.OffsetFetchRequest
        epoch = self._rng.choice((member.epoch, member.epoch, member.epoch - 1, member.epoch + 1, -1))
        member_id = self._rng.choice((member.member_id, member.member_id, "nobody"))
        row = make.OffsetFetchRequestGroup(
            group_id=self.name,
            member_id=member_id if epoch >= 0 else None,  # Kafka fails if there is an epoch, and no member
            member_epoch=epoch,
            topics=None,
        )
        answer = self._pair.ask(ApiKey.OFFSET_FETCH, 9, make(groups=[row]))
        return f"{_told(row)}: {answer.groups[0].error_code}"

    def _others(self) -> str:
        """What tools do."""
        draw = self._rng.randrange(4)
        if draw == 0:
            make = messages.ListGroupsRequest
            answer = self._pair.kafka, self._pair.ours
            found = []
            for broker in answer:
                broker.send("one", ApiKey.LIST_GROUPS, 5, make(states_filter=[], types_filter=[]))
                rows = broker.receive("one").groups
                found.append(plain([row for row in rows if row.group_id == self.name]))
            differences = list(differing("", *found))
            if differences:
                raise Differs("\n".join(differences))
            return f"is listed as {found[0]}"
        if draw == 1:
            delete = messages.DeleteGroupsRequest
            gone = self._pair.ask(ApiKey.DELETE_GROUPS, 2, delete(groups_names=[self.name]))
            return f"is deleted: {gone.results[0].error_code}"
        if draw == 2 and self._topics.ids:
            make_offsets = messages.OffsetDeleteRequest
            name = self._rng.choice(sorted(self._topics.ids))
            rows = [make_offsets.OffsetDeleteRequestPartition(partition_index=0)]
            topic = make_offsets.OffsetDeleteRequestTopic(name=name, partitions=rows)
            self._pair.ask(ApiKey.OFFSET_DELETE, 0, make_offsets(group_id=self.name, topics=[topic]))
            return f"offsets of {name} are deleted"
        describe = messages.DescribeGroupsRequest
        self._pair.ask(ApiKey.DESCRIBE_GROUPS, 6, describe(groups=[self.name]))
        return "is described"


def _error(answer: Any) -> str:
    return f"epoch {answer.member_epoch}" if not answer.error_code else f"error {answer.error_code}"


def _told(request: Any) -> str:
    values = {name: plain(getattr(request, name)) for name in request._FIELDS}
    return " ".join(f"{name}={value}" for name, value in values.items() if value not in (None, -1) and name != "rack")


# ---- the run ----


def run(options: argparse.Namespace) -> int:
    """Do the steps; returns in how many groups there was a difference."""
    rng = random.Random(options.seed)
    pair = Pair(options.bootstrap)
    topics = Topics(pair, rng)
    for broker in (pair.kafka, pair.ours):
        for key_type in (0, 1):
            find = messages.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"])
            broker.send("one", ApiKey.FIND_COORDINATOR, 4, find)
            while broker.receive("one").coordinators[0].error_code:
                time.sleep(1)
                broker.send("one", ApiKey.FIND_COORDINATOR, 4, find)
    time.sleep(2)
    topics.clear()
    for _ in range(6):
        topics.change()
    groups: list[Group] = []
    begun = differences = 0
    kinds: Counter[str] = Counter()
    run_name = f"{int(time.time()) % 1_000_000:x}"
    for number in range(options.steps):
        if rng.random() < (0.03 if not options.regexes else 0.01):
            done = topics.change()
            for group in groups:
                group.story.append(done)
        if len(groups) < options.groups:
            begun += 1
            name = f"{run_name}-{options.seed}-{begun}"
            groups.append(Group(name, pair, topics, rng, with_regexes=options.regexes))
        group = groups[number % len(groups)]
        is_over = len(group.story) > STEPS_OF_A_GROUP * 2
        try:
            group.step()
        except Unlucky:
            is_over = True
        except Differs as error:
            differences += 1
            is_over = True
            print(
                f"\n==== {group.name}, step {number}",
                *group.story[-options.show :],
                group.last_look,
                error,
                sep="\n",
                flush=True,
            )
        if is_over:
            kinds += group.kinds
            groups.remove(group)
        if number % 500 == 499:
            print(f"{number + 1} steps, {begun} groups, {differences} differences", flush=True)
    print(dict(kinds))
    pair.ours.stop()
    return differences


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="an Apache Kafka 4.3.1")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=1, help="at a time")
    parser.add_argument("--regexes", action="store_true", help="members with regular expressions, which takes long")
    parser.add_argument("--show", type=int, default=12, metavar="LINES", help="of the story before a difference")
    options = parser.parse_args()
    if options.regexes and options.groups > 1:
        parser.error("--regexes waits for what one group knows of topics")
    return min(run(options), 1)


if __name__ == "__main__":
    sys.exit(main())
