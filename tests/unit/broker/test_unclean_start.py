"""After an unclean stop a broker registers when the controller has taken it out of the ISRs that it may not be in."""

import json
from collections.abc import Sequence

import pytest
from barnabas.broker import before_registering
from barnabas.broker.before_registering import Loss
from barnabas.broker.broker import Broker
from barnabas.cluster import registration
from barnabas.cluster.leader_and_isr import LeaderAndIsr, LogEnd
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import TopicAssignment
from barnabas.cluster.tree.port import Coordination, Operation, OperationResult
from simulator.coordination import Fate, SimCoordination, SimTree
from simulator.env import SimEnv, sim_env
from simulator.host import Host

SETTINGS = {"listeners": "PLAINTEXT://127.0.0.1:9092", "offsets.topic.num.partitions": "1"}


@pytest.fixture
def env() -> SimEnv:
    return sim_env(3)


def keeps(topic: str, index: int) -> Loss:
    return Loss.NOTHING


def ends(topic: str, index: int) -> LogEnd:
    return LogEnd(False, 3, 20)


def process(env: SimEnv, tree: SimTree) -> SimCoordination:
    coordination = SimCoordination(env.clock, tree)
    env.run(coordination.start())
    env.run(registration.make_persistent_paths(coordination, 1))
    return coordination


def loses_all(topic: str, index: int) -> Loss:
    return Loss.ALL


async def write(tree: Coordination, index: int, leader: int, isr: list[int]) -> None:
    data = json.dumps({"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": 4, "isr": isr}).encode()
    path = paths.partition_state("t", index)
    if await tree.exists(path) is None:
        await tree.create(path, data, make_parents=True)
    else:
        await tree.set(path, data)


def test_it_waits_until_no_isr_counts_on_it(env: SimEnv, caplog: pytest.LogCaptureFixture) -> None:
    tree = SimTree(env.clock, 1_000)
    coordination = process(env, tree)
    other = process(env, tree)
    env.run(other.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1,2],"1":[2,1],"2":[2],"3":[1,2]}}'))
    for index, (leader, isr) in enumerate([(1, [1, 2]), (2, [2, 1]), (2, [2]), (1, [1])]):
        env.run(write(other, index, leader, isr))
    env.run(other.create(paths.broker(1), ephemeral=True))

    waiting = env.clock.loop.create_task(before_registering.until_taken_out(env, coordination, 1, keeps, ends))
    env.clock.advance(500)
    assert "stopped uncleanly" not in caplog.text, "its former life is registered still"
    env.run(other.delete(paths.broker(1)))
    for index, (leader, isr) in enumerate([(2, [2]), (2, [2]), (2, [2]), (-1, [1])]):
        env.clock.advance(100)
        assert not waiting.done()
        env.run(write(other, index, leader, isr))
    tree.trouble = lambda name: Fate.LOST_BEFORE
    env.clock.advance(100)
    assert not waiting.done(), "it does not know"
    tree.trouble = lambda name: Fate.DONE
    env.clock.advance(100)
    assert waiting.done()
    assert caplog.text.count("taken it out of the ISRs of 3 partitions") == 1


def test_what_counts_on_it_again_while_it_waits_holds_it_up(env: SimEnv) -> None:
    """The controller may write what a leader asked for before it hears that this broker is gone."""
    tree = SimTree(env.clock, 1_000)
    coordination, other = process(env, tree), process(env, tree)
    env.run(other.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}'))
    env.run(write(other, 0, 2, [2]))
    env.run(write(other, 1, 2, [2, 1]))
    waiting = env.clock.loop.create_task(before_registering.until_taken_out(env, coordination, 1, keeps, ends))
    env.clock.advance(100)
    env.run(write(other, 0, 2, [2, 1]))
    env.run(write(other, 1, 2, [2]))
    env.clock.advance(100)
    assert not waiting.done()
    env.run(write(other, 0, 2, [2]))
    env.clock.advance(100)
    assert waiting.done()


def test_a_topic_that_is_deleted_while_it_waits_does_not_hold_it_up(env: SimEnv) -> None:
    """The topic waits for this broker, so this broker must not wait for the topic."""
    tree = SimTree(env.clock, 1_000)
    coordination, other = process(env, tree), process(env, tree)
    env.run(other.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1,2]}}'))
    env.run(write(other, 0, 2, [2, 1]))
    waiting = env.clock.loop.create_task(before_registering.until_taken_out(env, coordination, 1, keeps, ends))
    env.clock.advance(100)
    assert not waiting.done()
    env.run(other.create(paths.delete_topic("t")))
    env.clock.advance(100)
    assert waiting.done()


def test_whose_records_are_lost_gives_way_to_those_that_were_in_sync_before(env: SimEnv) -> None:
    def loses_but_one(topic: str, index: int) -> Loss:
        return Loss.NOTHING if index == 1 else Loss.ALL

    coordination = process(env, SimTree(env.clock, 1_000))
    env.run(
        coordination.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1,2],"1":[1,2],"2":[1,2],"3":[1]}}')
    )
    eligible = {0: (2,), 1: (2,), 2: (2,), 3: ()}
    for index, members in eligible.items():
        state = LeaderAndIsr(-1, 4, (1,), eligible=members)
        env.run(coordination.create(paths.partition_state("t", index), state.encode(), make_parents=True))
    env.run(before_registering.until_taken_out(env, coordination, 1, loses_but_one, ends))
    for index, isr in enumerate([(2,), (1,), (2,), (1,)]):
        data, stat = env.run(coordination.get(paths.partition_state("t", index)))
        state = LeaderAndIsr.decode(data, stat.version)
        assert (state.leader, state.leader_epoch, state.isr) == (-1, 4, isr)
        assert state.eligible == (eligible[index] if index == 1 else ())
    assert len(env.run(coordination.children(paths.ISR_CHANGES))) == 1, "the controller reads them again"


def test_who_gives_way_waits_until_its_lead_is_over_and_names_the_controller_of_now(env: SimEnv) -> None:
    tree = SimTree(env.clock, 1_000)
    coordination, other = process(env, tree), process(env, tree)
    env.run(other.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1,2]}}'))
    env.run(other.create(paths.CONTROLLER_EPOCH, b"3"))
    path = paths.partition_state("t", 0)
    led = LeaderAndIsr(1, 4, (1,), controller_epoch=3, eligible=(2,))
    env.run(other.create(path, led.encode(), make_parents=True))

    multi = coordination.multi

    async def multi_after_an_election(operations: Sequence[Operation]) -> list[OperationResult]:
        coordination.multi = multi  # type: ignore[method-assign]
        await other.set(paths.CONTROLLER_EPOCH, b"5")
        return await multi(operations)

    coordination.multi = multi_after_an_election  # type: ignore[method-assign]
    waiting = env.clock.loop.create_task(before_registering.until_taken_out(env, coordination, 1, loses_all, ends))
    env.clock.advance(500)
    assert env.run(other.get(path))[0] == led.encode(), "only the controller ends a lead: it begins an epoch"
    env.run(other.set(path, led.changed(-1, (1,)).remembering(led).encode()))
    env.clock.advance(100)
    assert waiting.done()
    data, stat = env.run(other.get(path))
    assert LeaderAndIsr.decode(data, stat.version)[:5] == (-1, 5, (2,), 2, 5)


@pytest.mark.parametrize("registers", [2, 3, None])
def test_whose_end_may_be_lost_waits_as_long_as_a_session_for_those_that_were_in_sync_before(
    env: SimEnv, registers: int | None
) -> None:
    """All have lost their sessions, so that the last leader alone is left in the ISR, and then it lost its power."""
    tree = SimTree(env.clock, 1_000)
    coordination, other = process(env, tree), process(env, tree)
    env.run(other.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1,2,4],"1":[1,2,4],"2":[1]}}'))
    for index, members in enumerate([(2, 4), (2, 4), ()]):
        state = LeaderAndIsr(-1, 4, (1,), eligible=members)
        env.run(other.create(paths.partition_state("t", index), state.encode(), make_parents=True))

    def lacks_end(topic: str, index: int) -> Loss:
        return Loss.NOTHING if index == 1 else Loss.END

    waiting = env.clock.loop.create_task(before_registering.until_taken_out(env, coordination, 1, lacks_end, ends))
    env.clock.advance(500)
    assert not waiting.done()
    if registers is not None:
        env.run(other.create(paths.broker(registers), ephemeral=True))
    env.clock.advance(100)
    assert waiting.done() is (registers == 2)
    env.clock.advance(600)
    assert waiting.done()
    for index in range(3):
        data, stat = env.run(coordination.get(paths.partition_state("t", index)))
        gives_way = registers == 2 and index == 0
        assert LeaderAndIsr.decode(data, stat.version).isr == ((2, 4) if gives_way else (1,))


@pytest.mark.parametrize(("leader", "leader_epoch"), [(-1, 4), (2, 5)])
def test_nobody_gives_way_to_an_eligible_replica_that_has_lost_records_itself(
    env: SimEnv, leader: int, leader_epoch: int
) -> None:
    """Broker 1 begins empty; then broker 2, alone in sync, loses its power. Its disk has nearly everything."""
    tree = SimTree(env.clock, 1_000)
    coordination, other = process(env, tree), process(env, tree)
    env.run(other.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1,2]}}'))
    state = LeaderAndIsr(leader, 4, (2,), eligible=(1,))
    env.run(other.create(paths.partition_state("t", 0), state.encode(), make_parents=True))

    def lacks_end(topic: str, index: int) -> Loss:
        return Loss.END

    def read() -> LeaderAndIsr:
        data, stat = env.run(coordination.get(paths.partition_state("t", 0)))
        return LeaderAndIsr.decode(data, stat.version)

    env.run(before_registering.until_taken_out(env, coordination, 1, loses_all, ends))
    assert read()[:3] == (leader, leader_epoch, (2,)), "a leader hears of the change in a new epoch"
    assert read().eligible == ()
    env.run(other.create(paths.broker(1), ephemeral=True))
    env.run(other.set(paths.partition_state("t", 0), read()._replace(leader=-1).encode()))
    began_ms = env.clock.monotonic_ms()
    env.run(before_registering.until_taken_out(env, other, 2, lacks_end, ends))
    assert read().isr == (2,)
    assert env.clock.monotonic_ms() == began_ms, "nor waits for it"
    env.run(before_registering.until_taken_out(env, other, 2, loses_all, ends))
    assert (read().isr, read().log_ends) == ((), {2: ends("t", 0)}), "but who has lost all lets the logs decide"


@pytest.mark.parametrize(
    ("loss", "eligible", "replicas", "becomes"),
    [
        (Loss.ALL, (2,), (1, 2, 3), (2,)),
        (Loss.ALL, (), (1, 2, 3), ()),
        (Loss.SOME, (2,), (1, 2, 3), ()),
        (Loss.SOME, (), (1, 2, 3), ()),
        (Loss.END, (), (1, 2, 3), (1,)),
        (Loss.NOTHING, (2,), (1, 2, 3), (1,)),
        (Loss.ALL, (), (1,), (1,)),
        (Loss.SOME, (), (1,), (1,)),
    ],
)
def test_who_was_in_sync_alone_and_is_an_old_copy(
    env: SimEnv,
    loss: Loss,
    eligible: tuple[int, ...],
    replicas: tuple[int, ...],
    becomes: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Until 2026-12 it led, or one that had lost records before it did, and cut off what a newer copy had."""
    coordination = process(env, SimTree(env.clock, 1_000))
    env.run(coordination.create(paths.topic("t"), TopicAssignment({0: replicas}, bytes(16)).encode()))
    path = paths.partition_state("t", 0)
    state = LeaderAndIsr(-1, 4, (1,), eligible=eligible)
    env.run(coordination.create(path, state.encode(), make_parents=True))
    env.run(before_registering.until_taken_out(env, coordination, 1, lambda topic, index: loss, ends))
    state = LeaderAndIsr.decode(env.run(coordination.get(path))[0], 0)
    assert (state.leader, state.isr) == (-1, becomes)
    assert state.log_ends == ({} if becomes else {1: ends("t", 0)})
    assert ("where the logs of all replicas end decides" in caplog.text) is (not becomes)


def test_topics_that_are_being_deleted_and_those_that_cannot_be_read_do_not_hold_it_up(env: SimEnv) -> None:
    coordination = process(env, SimTree(env.clock, 1_000))
    for topic, data in (("t", b'{"version":1,"partitions":{"0":[1,2]}}'), ("u", b"by hand")):
        env.run(coordination.create(paths.topic(topic), data))
    env.run(write(coordination, 0, 1, [1, 2]))
    env.run(coordination.create(paths.delete_topic("t")))
    env.run(coordination.create(paths.topic("v"), b'{"version":1,"partitions":{"0":[1,2]}}'))
    env.run(coordination.create(paths.partition_state("v", 0), b"by hand", make_parents=True))
    env.run(before_registering.until_taken_out(env, coordination, 1, keeps, ends))


@pytest.mark.parametrize("session_ms", [1.0, 1_000.0])
def test_a_single_broker_takes_itself_out_and_leads_again_in_a_new_epoch(env: SimEnv, session_ms: float) -> None:
    host = Host(1, env.clock, env.disk, env.network, SimTree(env.clock, session_ms), SETTINGS)

    async def story() -> None:
        assert await host.start()
        assert host.life is not None
        host.life.broker.auto_topics.create("t")
        await env.clock.sleep(1_000)
        manager = host.life.broker.replica_manager
        partition = manager.partitions["t", 0]
        assert (partition.is_leader, partition.leader_epoch) == (True, 0)
        host.kill()
        before_ms = env.clock.monotonic_ms()
        assert await host.start()
        assert env.clock.monotonic_ms() - before_ms < 1_000 + 100, "a start after a kill is quick"
        again = host.life.broker.replica_manager
        assert again.broker_epoch > manager.broker_epoch
        partition = again.partitions["t", 0]
        assert (partition.is_leader, partition.leader_epoch, partition.isr) == (True, 2, (0,))
        await host.stop()

    env.run(story())


def test_what_comes_before_elections_comes_before_this_broker_makes_itself_controller(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until 2026-11 a restored broker took over partitions whose leader epochs another one was about to raise."""
    host = Host(1, env.clock, env.disk, env.network, SimTree(env.clock, 1.0), SETTINGS)
    has_controller: list[bool] = []

    async def before_elections(broker: Broker) -> None:
        has_controller.append(await broker.coordination.exists(paths.CONTROLLER) is not None)

    async def story() -> None:
        assert await host.start()
        host.kill()
        monkeypatch.setattr(Broker, "before_elections", before_elections)
        assert await host.start()
        await host.stop()

    env.run(story())
    assert has_controller == [False]
