"""The checks at the end of a run, when all is calm: every log is read in full and compared with the ledger."""

from typing import TYPE_CHECKING

from simulator.clients.client import Client
from simulator.clients.committer import Committer
from simulator.clients.connection import LostError
from simulator.clients.member import Member
from simulator.clients.reader import Reader
from simulator.ledger import TopicPartition
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.cluster_world import ClusterWorld
    from simulator.world import World

LOOKS_AT_GROUPS = 12
BETWEEN_LOOKS_MS = 3_000.0  # all looks together take longer than the longest rebalance


def check_progress(clients: list[Client], before: list[int], span_ms: float, *, whims: bool = False) -> None:
    """Check that every client has achieved something in `span_ms` of calm.

    With `whims` the members of groups still pause and leave as they like.
    """
    for client, progress in zip(clients, before, strict=True):
        if client.must_get_on and client.progress == progress:
            raise Violation("clients get on", f"{client.name} has not, for {span_ms / 1000:.0f} s of calm")
        if isinstance(client, Member) and not client.is_stable and not whims:
            raise Violation("clients get on", f"{client.name} is no member after {span_ms / 1000:.0f} s of calm")


async def check_groups(world: "World | ClusterWorld", keys: list[TopicPartition]) -> None:
    """Check that in each group with members every partition has one owner, as soon as no rebalance is under way."""
    for _ in range(LOOKS_AT_GROUPS):
        members = [client for client in world.clients if isinstance(client, Member)]
        moving = groups_that_rebalance(members)
        for group_id in dict.fromkeys(member.group_id for member in members):
            owned = sorted(key for member in members if member.group_id == group_id for key in member.owned)
            if group_id not in moving and owned != sorted(keys):
                raise Violation("every partition has an owner", f"{group_id}: {owned}")
        if not moving:
            return
        await world.clock.sleep(BETWEEN_LOOKS_MS)
    raise Violation("a rebalance ends", f"{', '.join(moving)}: members have different generations, though all is calm")


def groups_that_rebalance(members: list[Member]) -> list[str]:
    """The groups whose members are not all in one generation."""
    generations: dict[str, dict[int, None]] = {}
    for member in members:
        generations.setdefault(member.group_id, {})[member.generation] = None
    return [group_id for group_id, found in generations.items() if len(found) > 1 or -1 in found]


async def check_logs(world: "World", keys: list[TopicPartition]) -> None:
    """Read all records and all committed offsets, and compare them with the ledger."""
    for key in keys:
        while True:
            reader = Reader(world, "checker", [key])
            try:
                start = await reader.list_offset(key, -2)
                end = await reader.list_offset(key, -1)
                if start is None or end is None:
                    raise Violation("the log can be read", f"{key} has no leader")
                await _read_all(world, reader, key, start, end)
            except LostError:
                continue
            finally:
                reader.hang_up()
            break
    for client in world.clients:
        if isinstance(client, Committer):
            await client.look()
            client.hang_up()


async def _read_all(world: "World", reader: Reader, key: TopicPartition, start: int, end: int) -> None:
    """Read from the log start to the high watermark: no offset may be missing."""
    ledger = world.ledger
    compacted = key[0] in world.compacted
    if compacted:  # records that compaction has removed need not be found again
        ledger.read[key] = {}
    position = start
    while position < end:
        following = await reader.fetch(key, position, 0, 100_000)
        if following is None or following == position:
            raise Violation("the log can be read", f"{key}: stuck at {position} of {end}")
        position = following
    log = {offset: value for offset, value in ledger.read.get(key, {}).items() if start <= offset < end}
    if compacted:
        ledger.check_compacted(key, log)
        return
    if sorted(log) != list(range(start, end)):
        raise Violation("no gap", f"{key}: {len(log)} records from {start} to {end}")
    for offset in ledger.acknowledged.get(key, {}):
        if offset >= end:
            raise Violation("what was acknowledged is there", f"{key} {offset}: the log ends at {end}")
    ledger.check_partition(key, log, start)
