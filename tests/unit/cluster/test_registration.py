"""A broker registers itself: its node, its epoch, and what it does when a node of its id is there."""

import asyncio

import pytest
from barnabas.cluster.metadata_cache import Endpoint
from barnabas.cluster.registration import SAID_AGAIN_MS, BrokerIdInUseError, OtherTreeError, Registration
from barnabas.cluster.tree import paths
from simulator.coordination import Fate, SimCoordination, SimTree
from simulator.env import sim_env


class Cluster:
    """A simulated tree with the parents of registrations."""

    def __init__(self) -> None:
        self.env = sim_env()
        self.tree = SimTree(self.env.clock, session_timeout_ms=500.0)

    async def broker(self) -> tuple[SimCoordination, Registration]:
        """A process with a session, which may register as broker 1."""
        session = SimCoordination(self.env.clock, self.tree)
        await session.start()
        if await session.exists(paths.BROKER_IDS) is None:
            await session.create(paths.BROKER_IDS, make_parents=True)
        return session, Registration(self.env, session, 1, (Endpoint("PLAINTEXT", "host", 9092, 0),))


def test_a_broker_waits_for_the_session_of_its_former_life() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        former, place = await cluster.broker()
        epoch = await place.register()
        session, again = await cluster.broker()
        cluster.env.clock.call_later(300.0, lambda: cluster.tree.end(former.session_id))
        began_ms = cluster.env.clock.monotonic_ms()
        assert await again.register() > epoch
        assert cluster.env.clock.monotonic_ms() - began_ms >= 300.0
        stat = await session.exists(paths.broker(1))
        assert stat is not None
        assert stat.ephemeral_owner == session.session_id

    cluster.env.run(scenario())


def test_an_id_that_another_living_broker_has_is_refused_after_a_session() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        other, place = await cluster.broker()
        epoch = await place.register()
        _, again = await cluster.broker()
        began_ms = cluster.env.clock.monotonic_ms()
        with pytest.raises(BrokerIdInUseError, match="A broker with id 1 is running already"):
            await again.register()
        assert cluster.env.clock.monotonic_ms() - began_ms >= cluster.tree.session_timeout_ms
        stat = await other.exists(paths.broker(1))
        assert stat is not None
        assert stat.czxid == epoch

    cluster.env.run(scenario())


def test_the_node_of_the_session_before_is_replaced_at_once() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        session, place = await cluster.broker()
        epoch = await place.register()
        session.session_id = cluster.tree.open(session)  # the server has kept the session before
        assert await place.register() > epoch
        stat = await session.exists(paths.broker(1))
        assert stat is not None
        assert stat.ephemeral_owner == session.session_id

    cluster.env.run(scenario())


def test_each_session_has_a_later_epoch_whatever_answers_are_lost() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        session, place = await cluster.broker()
        epoch = await place.register()
        assert await place.register() == epoch, "again in the same session changes nothing"
        for fate in (Fate.LOST_BEFORE, Fate.LOST_AFTER):
            cluster.tree.expire(session.session_id)
            assert not place.is_of_this_session
            fates = iter([fate, fate])
            cluster.tree.trouble = lambda name, fates=fates: next(fates, Fate.DONE)  # type: ignore[misc]
            assert await place.register_again() > epoch
            assert place.is_of_this_session
            assert cluster.tree.ephemerals()[paths.broker(1)] == session.session_id

    cluster.env.run(scenario())


def test_who_lost_its_place_tries_until_it_has_it_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        session, place = await cluster.broker()
        epoch = await place.register()
        other, thief = await cluster.broker()
        cluster.tree.expire(session.session_id)
        assert await thief.register() > epoch
        assert await place.former_epoch() == thief.broker_epoch
        registering = cluster.env.clock.loop.create_task(place.register_again())
        await cluster.env.clock.sleep(20_000)
        assert "cannot register, trying again: A broker with id 1 is running already" in caplog.text
        assert not registering.done()
        await other.close()
        await cluster.env.clock.sleep(10_000)
        assert registering.result() > thief.broker_epoch

    cluster.env.run(scenario())


def test_who_is_deleted_by_hand_hears_of_it_and_registers_again() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        deleted: list[float] = []
        session, _ = await cluster.broker()
        clock = cluster.env.clock
        place = Registration(
            *(cluster.env, session, 1, (Endpoint("PLAINTEXT", "host", 9092, 0),)),
            on_deleted=lambda: deleted.append(clock.monotonic_ms()),
        )
        other, _ = await cluster.broker()
        epoch = await place.register()
        await other.set(paths.broker(1), b"changed")
        await clock.sleep(10)
        assert not deleted, "it is there"
        await other.delete(paths.broker(1))
        await clock.sleep(10)
        assert len(deleted) == 1
        assert await place.register_again() > epoch
        await other.delete(paths.broker(1))
        await clock.sleep(10)
        assert len(deleted) == 2

    cluster.env.run(scenario())


def test_who_is_deleted_by_hand_hears_of_it_although_answers_are_lost() -> None:
    """Until 2026-11 the first lost answer left it unregistered for ever, and no replica of it came into sync."""
    cluster = Cluster()

    async def scenario() -> None:
        deleted: list[str] = []
        session, _ = await cluster.broker()
        place = Registration(
            *(cluster.env, session, 1, (Endpoint("PLAINTEXT", "host", 9092, 0),)),
            on_deleted=lambda: deleted.append("node"),
        )
        other, _ = await cluster.broker()
        epoch = await place.register()
        for fate in (Fate.LOST_BEFORE, Fate.LOST_AFTER):
            await other.delete(paths.broker(1))
            fates = iter([fate] * 3)
            cluster.tree.trouble = lambda name, fates=fates: next(fates, Fate.DONE)  # type: ignore[misc]
            await cluster.env.clock.sleep(5_000)
            assert deleted == ["node"]
            deleted.clear()
            epoch, former = await place.register_again(), epoch
            assert epoch > former
        await other.delete(paths.broker(1))
        fates = iter([Fate.LOST_BEFORE] * 3)
        cluster.tree.trouble = lambda name: next(fates, Fate.DONE)
        await cluster.env.clock.sleep(50)
        cluster.tree.expire(session.session_id)
        await cluster.env.clock.sleep(5_000)
        assert not deleted, "a new session registers anyhow"
        await place.register_again()
        cluster.tree.trouble = lambda name: Fate.LOST_BEFORE
        cluster.tree.change(lambda zxid: cluster.tree.delete(paths.broker(1), -1, zxid))
        await cluster.env.clock.sleep(50)
        place.stop()
        cluster.tree.trouble = lambda name: Fate.DONE
        await cluster.env.clock.sleep(5_000)
        assert not deleted, "it was told to stop"

    cluster.env.run(scenario())


def test_in_another_tree_it_does_not_register_and_says_why_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        is_other = True

        async def check() -> None:
            if is_other:
                raise OtherTreeError("the tree is empty")

        session, _ = await cluster.broker()
        place = Registration(cluster.env, session, 1, (Endpoint("PLAINTEXT", "host", 9092, 0),), None, check)
        registering = asyncio.get_running_loop().create_task(place.register_again())
        await cluster.env.clock.sleep(SAID_AGAIN_MS * 1.5)
        assert await session.exists(paths.broker(1)) is None
        assert [record.getMessage().endswith("the tree is empty") for record in caplog.records] == [True, True]
        is_other = False
        await cluster.env.clock.sleep(SAID_AGAIN_MS)
        assert registering.result() == place.broker_epoch > 0

    cluster.env.run(scenario())
