"""Live reset: commit other offsets for a group whose members are reading, and make them read on from there.

A member reads from positions of its own. It asks for committed offsets only when it gets a partition that it did not
have. So the coordinator must take every partition from every member, and refuse all commits of positions from before:

| the group is | what a live reset does |
| --- | --- |
| unknown, or Empty | the offsets are written; nobody reads |
| Stable | as below; the next request of each client gets UNKNOWN_MEMBER_ID: it loses its partitions |
| PreparingRebalance, CompletingRebalance | as below; parked requests get that at once, and newcomers are stale |
| with members, in each of these states | all members are thrown out, the generation grows, the group is Empty |
| of the consumer protocol (KIP-848) | the same: its members are unknown, the epoch grows, the group is Empty |
| of a later protocol, or Dead | refused |

`Shard.hold` comes first: it waits for commits in flight, and commits and joins that come later wait for the outcome.
Then the group changes in memory (`Rebalance.fence`), and one batch is written: the offsets and the group without
members (`ResetRecords`). After a crash the log has both or neither. If the write fails, members only join again and
read on from what was committed. So whatever happens, no commit of a thrown-out member is accepted any more: it is
unknown, and if it commits as nobody (generation -1, as librdkafka and aiokafka do after they have lost their id), the
group refuses this too, although it is Empty, until somebody has joined.

**Stale members.** A client that is in the middle of a join keeps its partitions when it is told UNKNOWN_MEMBER_ID: Java
and franz-go clients with a cooperative assignor, kafka-python with any. It joins under a new id, and would read on, and
commit. So a newcomer is *stale* if it says that it owns partitions (KIP-429), or if any client was in the middle of a
join at the live reset, or has joined or synced since with an id that is gone. A stale member takes part in one
generation with an empty assignment, its commits are refused, and the next rebalance begins at once. It is stale no
longer when it joins again without partitions that it had named before, or after a heartbeat that followed the empty
assignment. It is not in the group's record, so a coordinator that starts again sees a newcomer.

A member of the consumer protocol that is unknown gives all its partitions up before it joins again, under whatever
id, so it is never stale. It is in a later epoch then, so commits of before are too old, also those with the same id. In
its group, a classic member may be stale. As nobody waits for others there, each one that joins gets nothing at first,
may commit nothing of that, and is told at its next heartbeat to join once more. If the group changes its protocol,
these rules go with it.

How long: the record of the group carries the generation of its last live reset (a tagged field), so that these rules
survive a restart, which makes newcomers stale because nobody knows who was in the middle of a join. `FENCE_MS` after
the live reset, or after the start, the group forgets it. An application that commits explicit offsets as a member of
the new generation, and has them from records of before, cannot be told from one that has read them since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.append_errors import commit_error
from barnabas.coordinators.groups.events import Identity, identity
from barnabas.coordinators.groups.records import ResetRecords
from barnabas.coordinators.groups.requests import Asker, Gate, Origins
from barnabas.coordinators.groups.states import State
from barnabas.offsets.journal import Cause
from barnabas.offsets.records import GroupOffsets, OffsetCommits
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.pending import Pending

logger = logging.getLogger("barnabas.groups")


class LiveReset(NamedTuple):
    """The outcome. `members`: those that were thrown out. `generation`: every later one has the new offsets."""

    error: ErrorCode
    generation: int
    members: tuple[Identity, ...]


class LiveResets:
    """Does live resets. Offsets must be in the topic alone: in the tree they cannot be written with the group."""

    def __init__(self, config: BrokerConfig, gate: Gate, origins: Origins) -> None:
        self._gate = gate
        self._origins = origins
        self._is_in_topic_alone = config.offsets_storage != "zookeeper" and not config.dual_commit_enabled

    def begin(self, group_id: str, offsets: GroupOffsets, asker: Asker) -> ErrorCode | Pending[LiveReset]:
        """Begin a live reset of partitions that exist. Completed when the offsets are committed.

        NOT_COORDINATOR as an outcome: the coordinator has moved meanwhile, and it is not known whether it was done.
        """
        if not self._gate.is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not group_id or not offsets:
            return ErrorCode.INVALID_REQUEST
        if not self._is_in_topic_alone:
            return ErrorCode.INVALID_CONFIG  # offsets in the tree cannot be written together with the group
        shard = self._gate.shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        origin = self._origins.of(Cause.LIVE_RESET, asker)

        def act(end: Callable[[LiveReset], None]) -> None:
            group = shard.groups.get(group_id)
            if group_id in shard.foreign_groups or (group is not None and group.state is State.DEAD):
                end(_failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
                return
            commits = OffsetCommits(group_id, offsets, origin)
            members: tuple[Identity, ...] = ()
            generation = 0

            def written(error: ErrorCode) -> None:
                if error:
                    logger.warning("group %s: live reset could not be written: %s", group_id, error.name)
                end(LiveReset(commit_error(error), generation, members))

            consumer = shard.consumer.by_id.get(group_id)
            if consumer is not None:
                change, members = shard.consumer.live_reset(consumer, commits)
                generation = consumer.epoch
                shard.consumer.write(change, written, patient=True)
                return
            if group is None:
                records = ResetRecords(commits, None)
            else:
                effects = shard.effects()
                thrown = group.rebalance.fence(commits.count, effects)
                members = tuple(map(identity, thrown))
                generation = group.generation
                # Also if nobody was thrown out now: the record of an earlier live reset may not have been written.
                records = ResetRecords(commits, group.rebalance.record() if group.generation else None)
                shard.run_effects(group, effects)
            shard.write(group_id, records, written, patient=True)

        late, closed = _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE), _failed(ErrorCode.NOT_COORDINATOR)
        return shard.alone(group_id, late, closed, act)


def _failed(error: ErrorCode) -> LiveReset:
    return LiveReset(error, -1, ())
