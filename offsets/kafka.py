"""Offset storage in `__consumer_offsets`. An offset is committed when the high watermark has passed its record.

The group coordinator owns the partitions (append, replay, loading), because groups live in the same log. This module
uses them through `OffsetShard`.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.append_errors import commit_error
from barnabas.offsets.expiry import Kept, expired_offsets, forecast, may_have_expired, warning_ms
from barnabas.offsets.journal import Cause, encode_origin
from barnabas.offsets.manager import Done, Offsets, OffsetShard, OffsetsOfTable, Partitions
from barnabas.offsets.records import OffsetRemovals, TopicPartition
from barnabas.offsets.table import OffsetTable, partitions_of
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import Pieces, chunks
from barnabas.runtime.upkeep import Task

logger = logging.getLogger("barnabas.offsets")

REMOVALS_AT_ONCE: Final = 1_000  # tombstones in one batch
WARNINGS_MAX = 100  # groups that the log names in one look at all of them
CLOCK_JUMP_MS: Final = 3_600_000.0  # more than summer time, or a small correction
ODD_CLOCK_MS: Final = 24 * 3_600_000  # so long no offset expires by a clock that may be wrong

S = TypeVar("S", bound=OffsetShard)


class GroupInShard(NamedTuple, Generic[S]):
    """A group and the shard that owns it: an item of the upkeep."""

    shard: S
    group_id: str

    @property
    def name(self) -> str:
        """The group, as the log names it."""
        return f"group {self.group_id}"


class KafkaOffsetManager:
    """`OffsetManager` over the offsets partitions.

    `shards` are those that this broker owns now, by partition number. Calls about one group name its shard, because
    their caller has looked it up already.
    """

    def __init__(self, env: Env, config: BrokerConfig, shards: Mapping[int, OffsetShard]) -> None:
        self._env = env
        self._config = config
        self._shards = shards
        self.expiry: Task[GroupInShard[OffsetShard]] | None = None  # of the upkeep, while that goes on
        self._ahead_ms = 0.0  # the wall clock, compared with the one that does not jump
        self._asleep_ms = 0.0  # the machine, since its start
        self._expires_from_ms = 0.0  # by the clock that does not jump; 0: there is no doubt about the other one
        self.keep_doubt: Callable[[int], None] = lambda left_ms: None  # writes it down for the next start
        self._warned: dict[str, None] = {}  # groups whose offsets will expire soon, as the log has said
        self._warned_before: dict[str, None] = {}  # in the round before
        self._warnings = 0  # in this round

    def startup(self) -> None:
        """Start looking for expired offsets, every offsets.retention.check.interval.ms."""
        clock = self._env.clock
        self._ahead_ms = clock.now_ms() - clock.moved_ms - clock.elapsed_ms()
        self._asleep_ms = clock.elapsed_ms() - clock.monotonic_ms()
        self.expiry = self._env.upkeep.every(
            "offset expiry", lambda: self._config.offsets_retention_check_interval_ms, self._all_groups, self._clean
        )

    def doubt_the_clock(self, span_ms: int = ODD_CLOCK_MS) -> None:
        """The wall clock may be wrong: no offset expires by it for a day, of this life and of later ones."""
        self._expires_from_ms = self._env.clock.elapsed_ms() + span_ms
        self.keep_doubt(span_ms)

    def shutdown(self) -> None:
        if self.expiry is not None:
            self.expiry.stop()
            self.expiry = None

    def get(
        self,
        shard: OffsetShard,
        group_id: str,
        partitions: Partitions | None,
        *,
        require_stable: bool = False,
    ) -> Offsets | Pending[Offsets]:
        """The offsets in the table. With `require_stable`: after the writes that are now in flight in the partition.

        What waits for replicas that are missing is not waited for: it may take for ever. While the partition loads,
        what is not committed may have been acknowledged by the leader before, so the offset in the table could be old.
        """
        if shard.loading or (require_stable and shard.log.shortage):
            return _certain(shard, group_id, partitions, require_stable)
        if not require_stable:
            return OffsetsOfTable(shard.offsets, group_id)
        if shard.is_quiet(group_id):
            return _stable(shard.offsets, group_id)
        pending: Pending[Offsets] = Pending()

        def written(error: ErrorCode) -> None:
            if error:
                pending.complete(Offsets(commit_error(error), {}))
            else:
                pending.complete(_stable(shard.offsets, group_id))

        shard.write(group_id, None, written)
        return pending

    def remove(
        self,
        shard: OffsetShard,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        done: Done,
        origin: bytes = b"",
    ) -> None:
        """Append a tombstone for each partition that has an offset, committed or in an open transaction."""
        committed = partitions_of(shard.offsets.of_group(group_id))
        known = dict.fromkeys([*committed, *sorted(shard.offsets.pending_of_group(group_id))])
        chosen = list(known) if partitions is None else [key for key in dict.fromkeys(partitions) if key in known]
        self._write_tombstones(shard, group_id, chosen, done, origin)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Append tombstones for these partitions in every group of this broker that has offsets of them."""
        gone: dict[str, set[int]] = {}
        for topic, index in partitions:
            gone.setdefault(topic, set()).add(index)
        for shard in self._shards.values():
            begin = partial(self._env.turns.begin, self._forget(shard, gone, shard.log.log_end_offset))
            if shard.loading:
                shard.after_loading.append(begin)
            else:
                begin()

    def _forget(self, shard: OffsetShard, gone: dict[str, set[int]], before_offset: int) -> Pieces[None]:
        """One group after the other. Offsets from `before_offset` on belong to a new topic of that name, and stay."""
        for group_id in shard.offsets.groups():
            yield
            if shard.closed:
                return
            if shard.offsets.partitions_before(group_id, gone, before_offset):
                yield self._forget_in_group(shard, group_id, gone, before_offset)

    def _forget_in_group(
        self, shard: OffsetShard, group_id: str, gone: dict[str, set[int]], before_offset: int
    ) -> Pending[None]:
        forgotten: Pending[None] = Pending()

        def act() -> None:
            def end(error: ErrorCode) -> None:
                if error:
                    logger.warning("group %s: offsets of deleted topics remain: %s", group_id, error.name)
                shard.release(group_id)
                forgotten.complete(None)

            chosen = shard.offsets.partitions_before(group_id, gone, before_offset)
            self.remove(shard, group_id, chosen, end, encode_origin(Cause.TOPIC_GONE, principal=""))

        shard.hold(group_id, act)
        return forgotten

    def _write_tombstones(
        self, shard: OffsetShard, group_id: str, partitions: Sequence[TopicPartition], done: Done, origin: bytes
    ) -> None:
        """Write one piece after the other, because one batch with all could be too large for the log."""
        if not partitions:
            done(ErrorCode.NONE)
            return
        pieces = chunks(partitions, REMOVALS_AT_ONCE)

        def write_next(error: ErrorCode = ErrorCode.NONE) -> None:
            piece = None if error else next(pieces, None)
            if piece is None:
                done(error)
            else:
                shard.write(group_id, OffsetRemovals(group_id, piece, origin), write_next, patient=True)

        write_next()

    def _all_groups(self) -> Iterator[GroupInShard[OffsetShard]]:
        if self._waits_after_a_jump():
            return
        self._warned_before, self._warned, self._warnings = self._warned, {}, 0
        for shard in list(self._shards.values()):
            if not shard.loading:
                for group_id in shard.group_ids():
                    yield GroupInShard(shard, group_id)
        if self._warnings > WARNINGS_MAX:
            logger.warning("committed offsets of %s expire soon", counted(self._warnings - WARNINGS_MAX, "more group"))

    def _waits_after_a_jump(self) -> bool:
        """Whether the wall clock was set forward not long ago: a wrong one must not expire everything at once.

        It may be right now, because it was wrong before. So offsets expire when there was time to set it right. How
        long the machine was asleep, it knows from a clock that may be wrong, too: that counts as at a start, where it
        is longer than offsets are kept. Where the clock jumps each night, that time must come to its end.
        """
        clock = self._env.clock
        now_ms = clock.elapsed_ms()
        ahead_ms = clock.now_ms() - clock.moved_ms - now_ms
        jump_ms, self._ahead_ms = ahead_ms - self._ahead_ms, ahead_ms
        asleep_ms = now_ms - clock.monotonic_ms()
        slept_ms, self._asleep_ms = asleep_ms - self._asleep_ms, asleep_ms
        retention_ms = self._config.offsets_retention_minutes * 60_000
        is_odd = jump_ms > CLOCK_JUMP_MS or slept_ms > retention_ms
        if jump_ms > retention_ms or (is_odd and not self._expires_from_ms):
            self.doubt_the_clock()
            logger.error(
                "The wall clock of this machine has jumped forward by %.1f hours. Old records expire by this clock, "
                "and committed offsets in %.0f hours: if it is wrong, set it right before",
                *((jump_ms + slept_ms) / 3_600_000, ODD_CLOCK_MS / 3_600_000),
            )
        elif self._expires_from_ms:
            left_ms = max(int(self._expires_from_ms - now_ms), 0)
            self.keep_doubt(left_ms)
            if not left_ms:
                self._expires_from_ms = 0.0
        return now_ms < self._expires_from_ms

    def _clean(self, item: GroupInShard[OffsetShard]) -> Pieces[None] | None:
        """Clean one group, and end when that is committed. So only one group of this task is held at a time."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        shard, group_id = item
        if shard.closed or not shard.is_quiet(group_id):
            return None
        cleaning = self._clean_group(shard, group_id, self._env.clock.now_ms(), retention_ms)
        return None if cleaning is None else _ended(cleaning)

    def _warn(self, group_id: str, soon: list[TopicPartition], first_ms: int) -> None:
        """Say once that offsets of a group will expire soon, the first of them in `first_ms`."""
        self._warned[group_id] = None
        if group_id in self._warned_before:
            return
        self._warnings += 1
        if self._warnings > WARNINGS_MAX:
            return
        topic, partition = soon[0]
        logger.warning(
            "group %s: %s soon (%s-%d%s), the first in %s: no member reads the topic, and "
            "nobody has committed for long. What is committed stays if its consumers come back or commit",
            group_id,
            counted(len(soon), "committed offset expires", "committed offsets expire"),
            topic,
            partition,
            f" and {len(soon) - 1} more" if len(soon) > 1 else "",
            f"{first_ms / 3_600_000:.1f} hours" if first_ms >= 3_600_000 else f"{first_ms / 60_000:.1f} minutes",
        )

    def _clean_group(self, shard: OffsetShard, group_id: str, now_ms: int, retention_ms: int) -> Pending[None] | None:
        """Begin to remove the expired offsets of a group; completed at the end. None: nothing has expired."""
        situation = shard.situation(group_id)
        if situation is None:
            return None
        ahead_ms = warning_ms(retention_ms, self._config.offsets_retention_check_interval_ms)
        oldest_ms = shard.offsets.oldest_ms(group_id)
        if oldest_ms is not None and not may_have_expired(situation, oldest_ms, now_ms + ahead_ms, retention_ms):
            return None
        is_warned = group_id in self._warned_before
        if is_warned and oldest_ms is not None and not may_have_expired(situation, oldest_ms, now_ms, retention_ms):
            self._warned[group_id] = None
            return None
        offsets = shard.offsets.of_group(group_id)
        pending = shard.offsets.pending_of_group(group_id)
        expired = expired_offsets(situation, offsets, pending, now_ms + ahead_ms, retention_ms)
        if expired:
            soon, expired = expired, expired_offsets(situation, offsets, pending, now_ms, retention_ms)
            gone = set(expired)
            soon = [key for key in soon if key not in gone]
            if soon:
                times = (
                    forecast(situation, topic, offsets[topic][index], False, retention_ms) for topic, index in soon
                )
                self._warn(group_id, soon, min(each for each in times if not isinstance(each, Kept)) - now_ms)
        group_ends = situation.is_empty and not pending and len(expired) == sum(map(len, offsets.values()))
        if not expired and not group_ends:
            return None
        cleaned: Pending[None] = Pending()

        def clean() -> None:
            def removed(error: ErrorCode) -> None:
                if error:
                    logger.warning("group %s: expired offsets could not be removed: %s", group_id, error.name)
                shard.release(group_id)
                cleaned.complete(None)

            origin = encode_origin(Cause.EXPIRY, principal="")
            if expired:
                logger.info("group %s: %s expired", group_id, counted(len(expired), "offset"))
            if not group_ends:
                self._write_tombstones(shard, group_id, expired, removed, origin)
                return
            both: tuple[Pending[ErrorCode], Pending[ErrorCode]] = (Pending(), Pending())
            Pending.all(both).then(lambda errors: removed(next(filter(None, errors), ErrorCode.NONE)))
            # Both writes go out in one pass of the loop.
            self._write_tombstones(shard, group_id, expired, both[0].complete, origin)
            shard.remove_group(group_id, both[1].complete)

        shard.hold(group_id, clean)
        return cleaned


def _ended(cleaning: Pending[None]) -> Pieces[None]:
    yield cleaning


def _certain(shard: OffsetShard, group_id: str, partitions: Partitions | None, require_stable: bool) -> Offsets:
    """The offsets of the table without those that are in doubt: these are unstable, or the answer is an error that each
    client repeats, also one that knows no unstable offsets."""
    in_doubt = shard.uncommitted_offsets(group_id)
    if in_doubt and (partitions is None or (not require_stable and _is_any(in_doubt, partitions))):
        return Offsets(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, {})
    if not require_stable:
        return OffsetsOfTable(shard.offsets, group_id)
    stable = _stable(shard.offsets, group_id)
    stable.unstable = {*stable.unstable, *in_doubt}
    return stable


def _is_any(chosen: set[TopicPartition], partitions: Partitions) -> bool:
    """Whether any of these partitions is a chosen one."""
    return any(not chosen.isdisjoint([(topic, index) for index in indexes]) for topic, indexes in partitions)


def _stable(table: OffsetTable, group_id: str) -> Offsets:
    return OffsetsOfTable(table, group_id, table.pending_of_group(group_id))
