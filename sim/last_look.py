"""When all is calm again: every log is read from its start to its end, and everything compared with the ledger."""

from typing import TYPE_CHECKING

from barnabas.sim.clients.client import Client
from barnabas.sim.clients.committer import Committer
from barnabas.sim.clients.connection import LostError
from barnabas.sim.clients.member import Member
from barnabas.sim.clients.reader import Reader
from barnabas.sim.ledger import TopicPartition
from barnabas.sim.violation import Violation

if TYPE_CHECKING:
    from barnabas.sim.world import World


def check_progress(clients: list[Client], before: list[int], span_ms: float) -> None:
    """Everybody has got on in a span of calm."""
    for client, progress in zip(clients, before, strict=True):
        if client.must_get_on and client.progress == progress:
            raise Violation("clients get on", f"{client.name} has not, for {span_ms / 1000:.0f} s of calm")
        if isinstance(client, Member) and not client.is_stable:
            raise Violation("clients get on", f"{client.name} is no member after {span_ms / 1000:.0f} s of calm")


def check_groups(clients: list[Client], keys: list[TopicPartition]) -> None:
    """Every partition has exactly one owner in each group that has members."""
    owned: dict[str, list[TopicPartition]] = {}
    generations: dict[str, dict[int, None]] = {}
    for client in clients:
        if isinstance(client, Member):
            owned.setdefault(client.group_id, []).extend(client.owned)
            generations.setdefault(client.group_id, {})[client.generation] = None
    for group_id, partitions in owned.items():
        if len(generations[group_id]) > 1:
            continue  # a rebalance is under way
        if sorted(partitions) != sorted(keys):
            raise Violation("every partition has an owner", f"{group_id}: {sorted(partitions)}")


async def check_logs(world: "World", keys: list[TopicPartition]) -> None:
    """Read everything, and every committed offset."""
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
    """From the log start to the high watermark: it must all be there."""
    ledger = world.ledger
    compacted = key[0] in world.compacted
    if compacted:  # what compaction has thrown away need not be found again
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
