"""Scenes of `python -m bench stalls` with large groups of the consumer protocol (KIP-848)."""

import asyncio

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey

from bench.consumer_members import Member, converge
from bench.stalls import Bench

MEMBERS = PARTITIONS = 2_000
READERS, TOPICS = 500, 10_000
TOPICS_IN_A_REQUEST = 1_000


async def consumers(bench: Bench) -> None:
    """A group of the consumer protocol, 2,000 members and 2,000 partitions: one joins, one leaves."""
    await bench.create_topics(("large", PARTITIONS))
    await _until_coordinated(bench)
    members = [Member("large", f"member-{index:04}", subscribed_topic_names=["large"]) for index in range(MEMBERS)]

    async def all_join() -> None:
        for member in members:
            await member.beat(bench)
        await converge(bench, members, PARTITIONS)

    async def one_joins() -> None:
        members.append(Member("large", "newcomer", subscribed_topic_names=["large"]))
        await members[-1].beat(bench)
        await converge(bench, members, PARTITIONS)

    async def one_leaves() -> None:
        await members.pop(7).beat(bench, member_epoch=-1)
        await converge(bench, members, PARTITIONS)

    async def nothing_new() -> None:
        await converge(bench, members, PARTITIONS)

    await bench.work("consumers-all-join", all_join)
    await bench.work("consumers-calm", nothing_new)
    await bench.work("consumers-one-joins", one_joins)
    await bench.work("consumers-one-leaves", one_leaves)


async def expressions(bench: Bench) -> None:
    """500 members with regular expressions over 10,000 topics; then a topic that some of them match."""
    for first in range(0, TOPICS, TOPICS_IN_A_REQUEST):
        names = range(first, first + TOPICS_IN_A_REQUEST)
        await bench.create_topics(*((f"region-{index % 100}.orders-{index}", 1) for index in names))
    await _until_coordinated(bench)
    members = [
        Member("readers", f"member-{index:03}", subscribed_topic_names=[], subscribed_topic_regex=expression)
        for index in range(READERS)
        for expression in [f"region-{index % 100}\\.(orders|bills)-[0-9]+"]
    ]

    async def all_join() -> None:
        for member in members:
            await member.beat(bench)
        await converge(bench, members, TOPICS)

    async def a_topic_is_made() -> None:
        await converge(bench, members, TOPICS + 1)

    await bench.work("expressions-all-join", all_join)
    await bench.create_topics(("region-7.bills-1", 1))
    await bench.work("expressions-new-topic", a_topic_is_made)


async def _until_coordinated(bench: Bench) -> None:
    request = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=["large", "readers"])
    while any(row.error_code for row in (await bench.ask(ApiKey.FIND_COORDINATOR, 4, request)).coordinators):
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)  # until the partition of the offsets topic is led here
