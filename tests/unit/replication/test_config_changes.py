"""Settings follow the change notices, whatever the tree does meanwhile."""

import pytest
from barnabas.cluster import registration
from barnabas.cluster.config_changes import ConfigChanges
from barnabas.cluster.tree.port import Create, Set
from barnabas.config.broker import BrokerConfig
from barnabas.runtime.ports import Env
from simulator.coordination import Fate, SimCoordination, SimTree


class Followed:
    """Settings in a tree whose operations can fail, and a ConfigChanges that follows them."""

    def __init__(self, env):
        self.env = env
        self.tree = SimTree(env.clock)
        self.coordination = SimCoordination(env.clock, self.tree)
        self.told = []
        self.is_registered = True
        config = BrokerConfig.of({"node.id": "1"})
        self.changes = ConfigChanges(env, config, 1, self.coordination, lambda: self.is_registered)
        self.changes.on_topic_change = self.told.append

    async def start(self):
        await self.coordination.start()
        await registration.make_persistent_paths(self.coordination, 1)
        await self.changes.start()

    async def set_topic(self, name, data, notice=b'{"version":2,"entity_path":"topics/t"}'):
        path = f"/config/topics/{name}"
        exists = await self.coordination.exists(path) is not None
        await self.coordination.multi(
            [
                Set(path, data) if exists else Create(path, data),
                Create("/config/changes/config_change_", notice, sequential=True),
            ]
        )


@pytest.fixture
def followed(env):
    followed = Followed(env)
    env.run(followed.start())
    yield followed
    env.run(followed.changes.stop())


@pytest.mark.parametrize("lost_read", range(4))
def test_a_lost_connection_loses_no_change(env, followed, lost_read):
    """Whichever read of those that follow a notice is the one that fails."""

    async def story():
        await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"5"}}')
        left = lost_read

        def trouble(name):
            nonlocal left
            left -= 1
            return Fate.LOST_BEFORE if left == -1 else Fate.DONE

        followed.tree.trouble = trouble
        await env.clock.sleep(1_000)
        assert left < 0, "there are fewer reads than this test thinks"
        assert followed.changes.topic_overrides("t") == {"retention.ms": "5"}
        assert followed.told == ["t"]

    env.run(story())


@pytest.mark.parametrize("name", ["0", "notes", "config_change_", "config_change_000000000x"])
def test_a_node_that_is_no_notice_hides_none(env, name):
    """Somebody made it by hand, before the start or after it."""
    followed = Followed(env)

    async def story():
        await followed.coordination.start()
        await followed.coordination.create(f"/config/changes/{name}", make_parents=True)
        await followed.start()
        for retention in ("5", "6"):
            await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"%s"}}' % retention.encode())
            await env.clock.sleep(1_000)
            assert followed.changes.topic_overrides("t") == {"retention.ms": retention}
        await followed.changes.stop()

    env.run(story())


@pytest.mark.parametrize(
    "notice", [b"", b"{", b"[]", b'{"version":2}', b"\xff", b'{"version":1,"entity_type":"topics"}']
)
def test_a_notice_that_cannot_be_read_stops_nothing(env, followed, notice):
    async def story():
        await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"5"}}', notice)
        await env.clock.sleep(1_000)
        await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"6"}}')
        await env.clock.sleep(1_000)
        assert followed.changes.topic_overrides("t") == {"retention.ms": "6"}

    env.run(story())


def test_settings_that_cannot_be_read_leave_what_was(env, followed):
    async def story():
        await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"5"}}')
        await env.clock.sleep(1_000)
        await followed.set_topic("t", b"{")
        await env.clock.sleep(1_000)
        assert followed.changes.topic_overrides("t") == {"retention.ms": "5"}
        await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"6"}}')
        await env.clock.sleep(1_000)
        assert followed.changes.topic_overrides("t") == {"retention.ms": "6"}

    env.run(story())


def test_a_deleted_topic_leaves_no_settings_behind(env, followed):
    async def story():
        await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"5"}}')
        await env.clock.sleep(1_000)
        followed.changes.forget_topics([("t", 0), ("t", 1), ("u", 0)])
        assert followed.changes.topic_overrides("t") == {}

    env.run(story())


def test_what_changed_while_the_session_was_lost_is_found_although_its_notices_are_gone(env, followed):
    async def story():
        await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"5"}}')
        await followed.set_topic("u", b'{"version":1,"config":{"retention.ms":"6"}}', b"by hand")
        await env.clock.sleep(100)
        followed.told.clear()
        other = SimCoordination(env.clock, followed.tree)
        await other.start()
        followed.tree.trouble = lambda name: Fate.LOST_BEFORE  # it hears nothing for long
        trouble, followed.tree.trouble = followed.tree.trouble, lambda name: Fate.DONE
        await other.set("/config/topics/t", b'{"version":1,"config":{"retention.ms":"7"}}')
        await other.delete("/config/topics/u")
        await other.create("/config/brokers/1", b'{"version":1,"config":{"message.max.bytes":"2000"}}')
        followed.tree.trouble = trouble
        followed.tree.expire(followed.coordination.session_id)
        await env.clock.sleep(1_000)
        assert followed.told == []
        followed.tree.trouble = lambda name: Fate.DONE
        await env.clock.sleep(1_000)
        assert sorted(followed.told) == ["t"], "u was never told"
        assert followed.changes.topic_overrides("t") == {"retention.ms": "7"}
        assert followed.changes._config.message_max_bytes == 2_000
        await followed.set_topic("t", b'{"version":1,"config":{}}')
        await env.clock.sleep(100)
        assert followed.changes.topic_overrides("t") == {}, "the watch is there again"

    env.run(story())


def test_a_tree_that_this_broker_has_not_accepted_changes_no_setting(env, followed):
    """An older copy was put back, in which the topic keeps nothing: retention would delete what was acknowledged."""

    async def story():
        await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"-1"}}')
        await env.clock.sleep(100)
        other = SimCoordination(env.clock, followed.tree)
        await other.start()
        followed.is_registered = False
        followed.tree.expire(followed.coordination.session_id)
        await other.delete("/config/topics/t")
        await other.create("/config/brokers/1", b'{"version":1,"config":{"message.max.bytes":"2000"}}')
        await env.clock.sleep(10_000)
        assert followed.changes.topic_overrides("t") == {"retention.ms": "-1"}
        assert followed.changes._config.message_max_bytes > 2_000
        followed.is_registered = True
        await env.clock.sleep(1_000)
        assert followed.changes.topic_overrides("t") == {}
        assert followed.changes._config.message_max_bytes == 2_000

    env.run(story())


class _Ahead:
    """The clock of a machine that is an hour ahead of the tree."""

    def __init__(self, clock):
        self._clock = clock

    def __getattr__(self, name):
        return getattr(self._clock, name)

    def now_ms(self):
        return self._clock.now_ms() + 3_600_000


def test_notices_are_removed_by_the_clock_of_the_tree(env):
    ahead = Env(clock=_Ahead(env.clock), disk=env.disk, network=env.network, rng=env.rng)
    followed = Followed(env)
    followed.changes = ConfigChanges(ahead, BrokerConfig.of({"node.id": "1"}), 1, followed.coordination, lambda: True)

    async def story():
        await followed.start()
        counts = []
        for value, wait_ms in ((5, 1_000), (6, 16 * 60_000), (7, 1_000)):
            await followed.set_topic("t", b'{"version":1,"config":{"retention.ms":"%d"}}' % value)
            await env.clock.sleep(wait_ms)
            counts.append(len(await followed.coordination.children("/config/changes")))
        assert counts == [1, 2, 1], "other brokers have not read them yet"
        await followed.changes.stop()

    env.run(story())
