"""A broker whose disks are newer than the tree says where its logs end, once for each restored tree."""

import asyncio
import errno
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker import restored_tree
from barnabas.broker.later_numbers import (
    LEADER_EPOCH_STEP,
    MARGIN,
    PRODUCER_ID_STEP,
    beyond,
    give_no_number_again,
    last_producer_id,
)
from barnabas.broker.old_settings import REST_MS, OldSettings
from barnabas.broker.restored_tree import RestoredTree
from barnabas.broker.tree_mark import BETWEEN_MS, QUIET_MS, SYNC_MS, OwnMark
from barnabas.cluster import registration
from barnabas.cluster.leader_and_isr import LeaderAndIsr, LogEnd
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import RestoredTree as RestoredNode
from barnabas.cluster.tree.payloads import TreeMark
from barnabas.cluster.tree.port import ConnectionLossError, Operation, OperationResult
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import record_batch
from barnabas.runtime.turns import ended
from barnabas.storage.checkpoints import TREE_MARK, TreeKnowledge, read_tree_knowledge, write_numbers
from barnabas.storage.log_manager import LogManager
from barnabas.storage.validation import AppendOrigin
from simulator.coordination import SimCoordination, SimTree
from simulator.env import SimEnv, sim_env

ID = 1
KEYS = [("t", 0), ("t", 1), ("t", 2)]
ASSIGNMENT = b'{"version":1,"partitions":{"0":[1,2,3],"1":[2,3,1],"2":[1]}}'
BEFORE = LeaderAndIsr(2, 3, (1, 2, 3))


@pytest.fixture
def env() -> SimEnv:
    return sim_env(3)


class Undecided:
    """The first partition, of which the controller has said that nobody is in sync."""

    topic, index, leader_id, replicas = "t", 0, -1, (1, 2, 3)

    def __init__(self, log: Any) -> None:
        self.log = log


class World:
    """Broker 1 before it registers: logs of 10 records in epoch 3, and a tree that knows of epoch 3."""

    def __init__(self, env: SimEnv, on_disk: int = 0, leader_epoch: int = -1, producer_id: int = -1) -> None:
        self.env = env
        self.tree = SimTree(env.clock, 1_000)
        self.coordination = self.connect()
        config = BrokerConfig.of({"node.id": str(ID), "log.dirs": "/data", "min.insync.replicas": "2"})
        if on_disk:
            env.disk.make_directory("/data")
            known = TreeKnowledge(on_disk, leader_epoch, producer_id)
            write_numbers(env.disk, f"/data/{TREE_MARK}", known).close()
        self.logs = LogManager(env, "/data", config, lambda topic: {})
        self.logs.start()
        for key in KEYS:
            self.append(key, 10, epoch=3)
        self.run(self.coordination.create(paths.topic("t"), ASSIGNMENT))
        for key in KEYS:
            self.run(self.coordination.create(paths.partition_state(*key), BEFORE.encode(), make_parents=True))
        self.partitions: dict[Any, None] = {}
        self.told = -1
        self.is_in_its_tree = True
        self.heard: list[None] = []
        self.mark, self.restored = self.parts()

    def parts(self) -> tuple[OwnMark, RestoredTree]:
        mark = OwnMark(
            self.env, self.coordination, ID, self.logs, lambda: self.is_in_its_tree, lambda: True, lambda: self.told
        )
        manager: Any = SimpleNamespace(undecided=self.partitions)
        self.settings = OldSettings(self.env.clock, self.coordination)
        return mark, RestoredTree(
            *(self.env, self.coordination, ID, self.logs, manager, mark, self.settings),
            lambda: self.heard.append(None),
        )

    def connect(self) -> SimCoordination:
        coordination = SimCoordination(self.env.clock, self.tree)
        self.run(coordination.start())
        self.run(registration.make_persistent_paths(coordination, ID))
        return coordination

    def append(self, key: tuple[str, int], count: int, epoch: int) -> None:
        log = self.logs.get_or_create(*key, None)
        records = [record_batch.Record(index, 1, None, b"value", []) for index in range(count)]
        log.append_as_leader(record_batch.build(records), leader_epoch=epoch, origin=AppendOrigin.CLIENT, now_ms=1)

    def run(self, work: Any) -> Any:
        return self.env.run(work)

    def state(self, key: tuple[str, int]) -> LeaderAndIsr:
        data, stat = self.run(self.coordination.get(paths.partition_state(*key)))
        return LeaderAndIsr.decode(data, stat.version)

    def set_state(self, key: tuple[str, int], state: LeaderAndIsr) -> None:
        self.run(self.coordination.set(paths.partition_state(*key), state.encode()))

    def register(self, broker_id: int) -> None:
        self.run(self.connect().create(paths.broker(broker_id), ephemeral=True))


@pytest.mark.parametrize("how", ["mark", "leader epoch", "it says so"])
def test_a_broker_that_knows_more_than_the_tree_has_the_logs_decide(
    env: SimEnv, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(env, 7 if how == "mark" else 0)
    if how == "leader epoch":
        world.append(KEYS[1], 5, epoch=4)
    if how == "it says so":
        world.run(world.coordination.create(paths.RESTORED, RestoredNode(5).encode(), make_parents=True))
    world.run(world.restored.report())
    length = 15 if how == "leader epoch" else 10
    for key, end in ((KEYS[0], LogEnd(True, 3, 10)), (KEYS[1], LogEnd(True, 3 + (length == 15), length))):
        state = world.state(key)
        assert (state.leader, state.isr, state.log_ends) == (-1, (), {ID: end})
    assert world.state(KEYS[2])[:3] == (2, LEADER_EPOCH_STEP, BEFORE.isr), "it has no other replica"
    assert len(world.run(world.coordination.children(paths.ISR_CHANGES))) == 2, "the controller reads them"
    assert "no leader until brokers 2, 3 have said where the logs end there" in caplog.text
    world.run(world.mark.count())
    before = [world.state(key) for key in KEYS]
    world.run(world.parts()[1].report())
    assert [world.state(key) for key in KEYS] == before, "once for each restored tree"


def test_nothing_is_deleted_by_settings_of_an_older_tree_for_a_day_or_until_they_are_set(env: SimEnv) -> None:
    """Also after a restart. Somebody may have had a topic keep everything since the copy was made."""
    world = World(env, 7)
    assert world.settings.rests("t"), "not before the tree has been looked at"
    for topic in ("t", "u"):
        world.run(world.coordination.create(paths.config(f"topics/{topic}"), b"", make_parents=True))
    world.run(world.restored.report())
    world.run(world.settings.read())
    assert world.settings.rests("t")
    env.clock.advance(10)
    world.run(world.coordination.set(paths.config("topics/t"), b""))
    world.settings.set_anew("t")
    world.run(world.coordination.create(paths.config("brokers/<default>"), b"", make_parents=True))
    assert (world.settings.rests("t"), world.settings.rests("u")) == (False, True)
    world.parts()
    world.run(world.settings.read())
    assert (world.settings.rests("t"), world.settings.rests("u")) == (False, True)
    env.clock.advance(REST_MS)
    assert not world.settings.rests("u")


def test_two_brokers_that_notice_an_older_tree_at_once_both_start(env: SimEnv) -> None:
    """Each of them has seen that there is no note yet."""
    world = World(env, 7)
    other = OldSettings(env.clock, world.connect())
    world.tree.latency_ms = 1

    async def note() -> None:
        await asyncio.gather(world.settings.note(), other.note())

    world.run(note())
    world.run(world.settings.read())
    assert world.settings.rests("t")


def test_a_tree_that_knows_as_much_is_believed(env: SimEnv) -> None:
    world = World(env, 7)
    world.run(world.coordination.set(world.mark.path, TreeMark(7).encode()))
    world.run(world.restored.report())
    world.run(world.settings.read())
    assert not world.settings.rests("t")
    assert [world.state(key)[:3] for key in KEYS] == [BEFORE[:3]] * 3
    assert world.run(last_producer_id(world.coordination)) == -1


def test_leader_epochs_and_producer_ids_go_on_beyond_all_that_was_given(env: SimEnv) -> None:
    """Also those of which no log knows; and brokers that come later, and know about as much, change nothing more."""
    world = World(env, 7, leader_epoch=40, producer_id=8_999)
    world.run(world.restored.report())
    assert [world.state(key).leader_epoch // LEADER_EPOCH_STEP for key in KEYS] == [1, 1, 1]
    assert world.run(last_producer_id(world.coordination)) == PRODUCER_ID_STEP - 1
    before = [world.state(key) for key in KEYS]
    for known in (TreeKnowledge(9, 45, 9_999), TreeKnowledge(9, 45, -1)):
        world.run(give_no_number_again(world.coordination, world.logs.all(), known, 2))
    assert [world.state(key) for key in KEYS] == before
    assert world.run(last_producer_id(world.coordination)) == PRODUCER_ID_STEP - 1


def test_a_tree_that_is_put_back_again_gets_other_numbers(env: SimEnv) -> None:
    world = World(env, 7, leader_epoch=LEADER_EPOCH_STEP + 2, producer_id=PRODUCER_ID_STEP + 999)
    world.run(world.restored.report())
    assert [world.state(key).leader_epoch // LEADER_EPOCH_STEP for key in KEYS] == [2, 2, 2]
    assert world.run(last_producer_id(world.coordination)) == 2 * PRODUCER_ID_STEP - 1


def test_a_tree_that_does_not_know_the_last_ids_is_older(env: SimEnv) -> None:
    world = World(env, 7, producer_id=999)
    world.run(world.coordination.set(world.mark.path, TreeMark(7).encode()))
    world.run(world.restored.report())
    assert world.run(last_producer_id(world.coordination)) == PRODUCER_ID_STEP - 1


@pytest.mark.parametrize("step", [LEADER_EPOCH_STEP, PRODUCER_ID_STEP])
def test_between_steps_is_room_for_what_others_were_given(step: int) -> None:
    assert beyond(-1, step) == step
    for known in (0, step * 8 // 10, step * 95 // 100, step - 1, step, step + 1, 7 * step - 1):
        assert beyond(known, step) > known + step // MARGIN - 1
        assert beyond(known, step) % step == 0


def test_who_finds_itself_registered_has_not_counted(env: SimEnv) -> None:
    """Else its disks would know more than the tree, and it would take that for an older copy."""
    world = World(env, 7)
    world.run(world.coordination.set(world.mark.path, TreeMark(7).encode()))
    world.mark.counting()
    world.run(world.mark.registered())
    assert world.mark.on_disk == 7


def test_what_is_known_survives_a_power_loss(env: SimEnv) -> None:
    """It is on the disks before a broker that has registered is told anything, and before an id is used."""
    world = World(env)
    world.run(world.coordination.multi(world.mark.counting()))
    world.run(world.mark.registered())
    world.told = 5
    given = world.mark.given(1_999)
    assert not given.done
    world.run(ended(given))
    world.told = 6
    env.disk.crash("lost")
    assert read_tree_knowledge(env.disk, f"/data/{TREE_MARK}") == TreeKnowledge(1, 5, 1_999)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_the_tree_hears_which_mark_is_durable(env: SimEnv, is_wanted: bool) -> None:
    world = World(env)
    mark = OwnMark(env, world.coordination, ID, world.logs, lambda: True, lambda: is_wanted, lambda: -1)

    def in_tree() -> TreeMark:
        found: TreeMark = world.run(mark.in_tree())[0]
        return found

    world.run(world.coordination.multi(mark.counting()))
    assert in_tree() == TreeMark(1), "it is not on the disks yet"
    world.run(mark.registered())
    mark.start()
    env.clock.advance(1)
    assert in_tree() == TreeMark(2, durable=1)
    env.clock.advance(SYNC_MS - 2 * QUIET_MS)
    assert in_tree().durable == 1
    env.clock.advance(3 * QUIET_MS)
    mark.stop()
    if not is_wanted:
        assert in_tree() == TreeMark(2, durable=1)
        return
    now = in_tree()
    assert 1 < now.durable < now.number
    env.disk.crash("lost")
    assert read_tree_knowledge(env.disk, f"/data/{TREE_MARK}").mark == now.durable
    world.run(world.parts()[0].write(now._replace(number=90)))
    assert in_tree().durable == now.durable


def test_a_tree_that_was_put_back_under_the_broker_gets_no_mark(env: SimEnv) -> None:
    """Once, it was told there which mark is durable; then the copy was as new as the disks, and the broker went on."""
    world = World(env)
    world.run(world.coordination.multi(world.mark.counting()))
    world.run(world.mark.registered())
    copied, _ = world.run(world.mark.in_tree())
    world.run(world.mark.count())
    world.run(world.coordination.set(world.mark.path, copied.encode()))
    assert world.run(world.mark.in_tree())[0] == copied
    world.is_in_its_tree = False
    world.run(world.mark.count())
    assert world.run(world.mark.in_tree())[0] == copied
    world.is_in_its_tree = True
    world.run(world.mark.count())
    assert world.run(world.mark.in_tree())[0].durable == 1


def test_a_mark_that_a_disk_refuses_is_not_durable(env: SimEnv) -> None:
    world = World(env)
    world.run(world.mark.count())
    env.disk.fail("sync", f"/data/{TREE_MARK}", OSError(errno.EIO, "simulated"))
    world.run(ended(world.mark.given(1_999)))
    world.run(world.mark.count())
    assert world.run(world.mark.in_tree())[0].durable == 0


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("12                 \n", TreeKnowledge(12)),
        ("12\n-1\n1999\n", TreeKnowledge(12, -1, 1_999)),
        ("1x\n4\n", TreeKnowledge(0, 4)),
        ("", TreeKnowledge()),
    ],
)
def test_the_file_of_what_is_known_is_read_as_far_as_it_can_be(env: SimEnv, text: str, known: TreeKnowledge) -> None:
    env.disk.make_directory("/data")
    with closing(env.disk.open("/data/known", create=True)) as file:
        file.write(0, text.encode())
    assert read_tree_knowledge(env.disk, "/data/known") == known


def test_whom_others_ask_reports_before_it_registers(env: SimEnv) -> None:
    world = World(env)
    world.set_state(KEYS[0], BEFORE.with_log_end(2, LogEnd(True, 5, 30), (1, 2, 3)))
    world.run(world.restored.report())
    assert world.state(KEYS[0]).log_ends == {1: LogEnd(False, 3, 10), 2: LogEnd(True, 5, 30)}
    assert world.state(KEYS[1])[:3] == BEFORE[:3]


def test_who_dies_on_the_way_goes_on_and_ends_no_lead_that_was_decided(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restored_tree, "PARTITIONS_PER_WRITE", 1)
    world = World(env, 7)
    multi, done = world.coordination.multi, []

    async def multi_until_it_dies(operations: list[Operation]) -> list[OperationResult]:
        if len(done) == 2:  # later epochs, and the first log end
            raise ConnectionLossError("")
        done.append(operations)
        return await multi(operations)

    world.coordination.multi = multi_until_it_dies  # type: ignore[assignment]
    with pytest.raises(ConnectionLossError):
        world.run(world.restored.report())
    world.coordination.multi = multi  # type: ignore[method-assign]
    assert ID in world.state(KEYS[0]).log_ends
    assert not world.state(KEYS[1]).log_ends
    decided = LeaderAndIsr(3, LEADER_EPOCH_STEP + 8, (3,))
    world.set_state(KEYS[0], decided)
    world.run(world.parts()[1].report())
    assert world.state(KEYS[0])[:3] == decided[:3]
    assert world.state(KEYS[1]).log_ends == {ID: LogEnd(True, 3, 10)}


@pytest.mark.parametrize(
    ("isr", "is_since", "goes_on"),
    [((2, 3), True, True), ((2,), True, False), ((2, 3), False, False), ((1, 2), True, False)],
)
def test_a_lead_stays_if_nothing_can_be_acknowledged_without_those_in_sync(
    env: SimEnv, isr: tuple[int, ...], is_since: bool, goes_on: bool
) -> None:
    """A registration of the time before the copy is of a broker that is dead.

    Until 2026-11 this broker kept its log: records of an epoch of the same number were taken for those of the leader.
    """
    world = World(env, 7)
    if not is_since:
        world.register(2)
    world.run(world.coordination.set(world.mark.path, TreeMark(5).encode()))
    if is_since:
        world.register(2)
    world.set_state(KEYS[0], LeaderAndIsr(2, 5, isr))
    world.run(world.restored.report())
    assert (world.state(KEYS[0]).leader == 2) is goes_on
    log = world.logs.get(*KEYS[0])
    assert (log.log_start_offset, log.log_end_offset) == (0, 0 if goes_on else 10)
    assert world.logs.get(*KEYS[1]).log_end_offset == 10


def test_who_did_not_know_cuts_what_it_has_written_since_and_reports(env: SimEnv) -> None:
    world = World(env)
    world.run(world.restored.report())
    world.append(KEYS[0], 5, epoch=4)
    state = BEFORE.with_log_end(2, LogEnd(True, 4, 30), (1, 2, 3))
    world.set_state(KEYS[0], state)
    world.restored.start()
    env.clock.advance(5_000)
    assert world.state(KEYS[0]).log_ends.keys() == {2}, "the controller has told nothing yet"
    world.partitions[Undecided(world.logs.get(*KEYS[0]))] = None
    env.clock.advance(2_000)
    world.restored.stop()
    assert len(world.heard) == 1, "its producer ids are given up, once"
    assert world.state(KEYS[0]).log_ends == {1: LogEnd(False, 3, 10), 2: LogEnd(True, 4, 30)}


def test_who_reports_because_disks_are_old_copies_cuts_nothing(env: SimEnv) -> None:
    """The tree is as it was, so what was written in this life may be acknowledged, and has epochs of its own."""
    world = World(env)
    world.run(world.restored.report())
    world.append(KEYS[0], 5, epoch=4)
    world.set_state(KEYS[0], BEFORE.with_log_end(2, LogEnd(False, 3, 5), (1, 2, 3)))
    world.partitions[Undecided(world.logs.get(*KEYS[0]))] = None
    world.restored.start()
    env.clock.advance(2_000)
    world.restored.stop()
    assert world.state(KEYS[0]).log_ends == {1: LogEnd(False, 4, 15), 2: LogEnd(False, 3, 5)}
    assert not world.heard, "its producer ids are good"


@pytest.mark.parametrize(("said", "stays"), [(LogEnd(True, 3, 10), True), (LogEnd(True, 4, 30), False)])
def test_who_has_another_disk_since_it_reported_reports_again(env: SimEnv, said: LogEnd, stays: bool) -> None:
    world = World(env)
    world.set_state(KEYS[0], BEFORE.with_log_end(1, said, (1, 2, 3)))
    world.run(world.restored.report())
    assert world.state(KEYS[0]).log_ends == {1: said if stays else LogEnd(False, 3, 10)}


def test_of_two_logs_with_the_same_end_one_with_a_hole_has_less(env: SimEnv) -> None:
    log = World(env).logs.get(*KEYS[0])
    whole = restored_tree.end_of(log, is_newer=False)
    log.missing_from = 10
    assert restored_tree.end_of(log, is_newer=False) == whole, "only its end is missing"
    log.missing_from = 4
    assert restored_tree.end_of(log, is_newer=False) < whole


def test_the_mark_is_counted_up_at_once_and_now_and_then(env: SimEnv) -> None:
    world = World(env)

    def mark() -> int:
        found: TreeMark = world.run(world.mark.in_tree())[0]
        return found.number

    world.mark.start()
    env.clock.advance(1)
    first = mark()
    for _ in range(5):
        world.mark.note_news()
        env.clock.advance(BETWEEN_MS / 10)
    assert mark() == first
    env.clock.advance(BETWEEN_MS)
    assert mark() == first + 1
    env.clock.advance(QUIET_MS)
    assert mark() == first + 2
    world.mark.stop()
    assert read_tree_knowledge(env.disk, f"/data/{TREE_MARK}").mark == first + 2


@pytest.mark.parametrize("life", ["the same", "the next"])
def test_a_mark_whose_answer_was_lost_is_not_used_again(
    env: SimEnv, life: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that was made then has it, and would be taken for a tree in which all is that came afterwards."""
    world = World(env)
    world.run(world.mark.count())
    write = world.coordination.set

    async def lost(*arguments: Any) -> Any:
        await write(*arguments)
        raise ConnectionLossError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(world.coordination, "set", lost)
        with pytest.raises(ConnectionLossError):
            world.run(world.mark.count())
    copy, _ = world.run(world.parts()[0].in_tree())
    assert copy.number == world.mark.on_disk + 1
    if life == "the next":
        world.mark, world.restored = world.parts()
        world.run(world.restored.report())
        world.run(world.coordination.multi(world.mark.counting()))
        world.run(world.mark.registered())
    else:
        world.run(world.mark.count())
    assert copy.is_behind(world.mark.on_disk, -1)
