"""A broker starts even if an answer of the tree is lost, and it never registers without its data."""

import pytest
from barnabas.broker.broker import Broker
from barnabas.broker.later_numbers import PRODUCER_ID_STEP
from barnabas.cluster.tree import paths
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record
from barnabas.replication.partition import Partition
from barnabas.storage.directory_contents import DataDirectoryError
from simulator.coordination import Fate, SimCoordination, SimTree
from simulator.env import SimEnv, sim_env
from simulator.host import Host

SETTINGS = {"listeners": "PLAINTEXT://127.0.0.1:9092", "offsets.topic.num.partitions": "1"}


def batch() -> bytearray:
    return record_batch.build([Record(offset=0, timestamp=1, key=None, value=b"v", headers=[])])


async def start_losing(host: Host, lost: int, fate: Fate) -> int:
    """Start while the answer number `lost` is lost; how many there were."""
    asked = 0

    def trouble(name: str) -> Fate:
        nonlocal asked
        asked += 1
        return fate if asked - 1 == lost else Fate.DONE

    host.tree.trouble = trouble
    assert await host.start()
    host.tree.trouble = lambda name: Fate.DONE
    return asked


def partition_of(host: Host) -> Partition | ErrorCode:
    assert host.life is not None
    return host.life.broker.replica_manager.leader_partition("t", 0)


@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
@pytest.mark.parametrize("start", ["new", "after a kill", "adopting"])
def test_whichever_answer_is_lost_the_broker_starts(fate: Fate, start: str) -> None:
    async def story(env: SimEnv, lost: int) -> bool:
        host = Host(1, env.clock, env.disk, env.network, SimTree(env.clock), SETTINGS)
        if start == "new":
            asked = await start_losing(host, lost, fate)
        if start != "new":
            assert await host.start()
        assert host.life is not None
        host.life.broker.auto_topics.create("t")
        await env.clock.sleep(1_000)
        if start != "new":
            host.life.broker.replica_manager.append([("t", 0, batch())], required_acks=-1, timeout_ms=1000)
            host.kill()
            await env.clock.sleep(2_000)
            if start == "adopting":
                host.tree = SimTree(env.clock)
            asked = await start_losing(host, lost, fate)
        await env.clock.sleep(1_000)
        partition = partition_of(host)
        assert isinstance(partition, Partition), (lost, partition)
        assert partition.high_watermark == (start != "new")
        assert host.life is not None
        assert list(host.tree.ephemerals().values()) == [host.life.coordination.session_id] * 2
        await host.stop()
        return asked > lost

    lost = 0
    while True:
        env = sim_env(3)
        if not env.run(story(env, lost)):
            break
        lost += 1
    assert lost > 15


@pytest.mark.parametrize("data", [b"junk", b"[]", b'{"version":1,"block_start":"0","block_end":"999"}'])
def test_a_broker_starts_when_nobody_can_read_which_producer_ids_were_given(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(env: SimEnv) -> None:
        host = Host(1, env.clock, env.disk, env.network, SimTree(env.clock), SETTINGS)

        async def producer_id() -> int | None:
            assert host.life is not None
            assert host.life.broker.producer_ids.next() is None
            await env.clock.sleep(1_000)
            return host.life.broker.producer_ids.next()

        assert await host.start()
        assert await producer_id() == 0
        assert host.life is not None
        await host.life.coordination.set(paths.PRODUCER_ID_BLOCK, data)
        await host.stop()
        assert await host.start()
        assert await producer_id() == PRODUCER_ID_STEP
        assert f"{paths.PRODUCER_ID_BLOCK} cannot be read: producer ids continue from {PRODUCER_ID_STEP}" in caplog.text
        await host.stop()

    env = sim_env(3)
    env.run(story(env))


def test_a_tree_that_does_not_answer_at_all_ends_the_start() -> None:
    env = sim_env(3)
    tree = SimTree(env.clock)
    tree.trouble = lambda name: Fate.LOST_BEFORE if name != "start" else Fate.DONE
    broker = Broker(env, BrokerConfig.of(SETTINGS), "/data", SimCoordination(env.clock, tree))
    with pytest.raises(Exception, match="simulated, before"):
        env.run(broker.start())
    assert env.disk.locks == set()


def test_a_broker_without_the_lock_opens_no_session() -> None:
    env = sim_env(3)
    tree = SimTree(env.clock)
    env.disk.make_directory("/data")
    another = env.disk.lock("/data/.lock")
    broker = Broker(env, BrokerConfig.of(SETTINGS), "/data", SimCoordination(env.clock, tree))
    with pytest.raises(DataDirectoryError, match="Another broker uses the data directory /data"):
        env.run(broker.start())
    assert tree.sessions == {}
    another.release()


def test_a_start_that_ends_at_the_tree_leaves_the_data_as_it_was() -> None:
    env = sim_env(3)

    async def story() -> None:
        host = Host(1, env.clock, env.disk, env.network, SimTree(env.clock), SETTINGS)
        assert await host.start()
        assert host.life is not None
        host.life.broker.auto_topics.create("t")
        await env.clock.sleep(1_000)
        host.life.broker.replica_manager.append([("t", 0, batch())], required_acks=-1, timeout_ms=1000)
        await host.stop()
        before = {name: contents(name) for name in env.disk.list_directory("/data") if "checkpoint" in name}
        assert b"t 0 1" in before["recovery-point-offset-checkpoint"]
        host.tree.trouble = lambda name: Fate.LOST_BEFORE if name != "start" else Fate.DONE
        with pytest.raises(Exception, match="simulated, before"):
            await host.start()
        assert before == {name: contents(name) for name in before}
        assert env.disk.exists("/data/.kafka_cleanshutdown")
        host.tree.trouble = lambda name: Fate.DONE
        assert await host.start()
        await env.clock.sleep(1_000)
        partition = partition_of(host)
        assert isinstance(partition, Partition)
        assert partition.high_watermark == 1
        await host.stop()

    def contents(name: str) -> bytes:
        file = env.disk.open(f"/data/{name}", read_only=True)
        return file.read(0, file.size())

    env.run(story())
