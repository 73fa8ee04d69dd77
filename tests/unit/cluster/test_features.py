"""Which changes of levels are allowed, in Kafka 4's words, and what a broker does with the levels that hold."""

import logging

import pytest
from barnabas.cluster import features
from barnabas.cluster.features import (
    ALL_FAILED,
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    Features,
    Finalised,
    LevelRange,
    UnsupportedFeatureError,
    Update,
    decide,
    unsupported,
)
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.port import CoordinationError
from simulator.coordination import Fate, SimCoordination, SimTree
from simulator.env import SimEnv, sim_env

TV, GV, MV = features.TRANSACTION_VERSION, features.GROUP_VERSION, features.METADATA_VERSION
HOLD = {MV: 30, TV: 2}
DOWN_BY_UPGRADE = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
)
UNKNOWN_TYPE = "The controller does not support the given upgrade type."


@pytest.mark.parametrize(
    ("updates", "expected"),
    [  # what Apache Kafka 4.1.0 answered, except about metadata.version, which has four levels here
        ([(TV, 2, UPGRADE)], HOLD),
        ([(TV, 2, SAFE_DOWNGRADE)], HOLD),
        ([(TV, 2, UNSAFE_DOWNGRADE)], HOLD),
        ([(TV, 1, SAFE_DOWNGRADE)], {MV: 30, TV: 1}),
        ([(TV, 1, UNSAFE_DOWNGRADE)], {MV: 30, TV: 1}),
        ([(TV, 0, SAFE_DOWNGRADE)], {MV: 30}),
        ([(TV, 2, UPGRADE), (GV, 0, SAFE_DOWNGRADE)], HOLD),
        ([(MV, 30, UPGRADE)], HOLD),
        ([(MV, 27, SAFE_DOWNGRADE)], {MV: 27, TV: 2}),  # Kafka's has more conditions
        ([(MV, 0, SAFE_DOWNGRADE)], (MV, 0, "Local controller 1 only supports versions 27-30")),
        ([(MV, 0, UNSAFE_DOWNGRADE)], {TV: 2}),  # Kafka's has no level below 7
        ([], HOLD),
        ([(TV, 2, 0)], (TV, 2, UNKNOWN_TYPE)),
        ([(TV, 2, 4)], (TV, 2, UNKNOWN_TYPE)),
        ([("nope", 1, 0)], ("nope", 1, UNKNOWN_TYPE)),
        ([(TV, -1, UPGRADE)], (TV, -1, "A feature version cannot be less than 0.")),
        ([("nope", -1, UPGRADE)], ("nope", -1, "A feature version cannot be less than 0.")),
        ([(TV, 3, UPGRADE)], (TV, 3, "Local controller 1 only supports versions 0-2")),
        ([(TV, 3, SAFE_DOWNGRADE)], (TV, 3, "Local controller 1 only supports versions 0-2")),
        ([(TV, 1, UPGRADE)], (TV, 1, DOWN_BY_UPGRADE)),
        ([(TV, 0, UPGRADE)], (TV, 0, DOWN_BY_UPGRADE)),
        ([("nope", 0, UPGRADE)], ("nope", 0, "Feature nope not found.")),
        ([("nope", 0, SAFE_DOWNGRADE)], ("nope", 0, "Feature nope not found.")),
        ([("nope", 1, UPGRADE)], ("nope", 1, "Local controller 1 does not support this feature.")),
        ([("", 1, UPGRADE)], ("", 1, "Local controller 1 does not support this feature.")),
        ([(GV, 2, UPGRADE)], (GV, 2, "Local controller 1 only supports versions 0-1")),
        ([(MV, 26, SAFE_DOWNGRADE)], (MV, 26, "Local controller 1 only supports versions 27-30")),
        ([(TV, 1, SAFE_DOWNGRADE), ("nope", 0, UPGRADE)], ("nope", 0, "Feature nope not found.")),
    ],
)
def test_a_change_is_decided_as_kafka_does(updates, expected):
    if isinstance(expected, tuple):
        name, level, reason = expected
        expected = f"{ALL_FAILED}Invalid update version {level} for feature {name}. {reason}"
    every = {1: features.SUPPORTED, 2: features.SUPPORTED}
    assert decide(HOLD, [Update(*update) for update in updates], 1, every) == expected


def test_a_level_must_be_higher_for_an_upgrade_and_not_for_a_downgrade():
    found = decide({}, [Update(TV, 1, SAFE_DOWNGRADE)], 1, {})
    assert found == f"{ALL_FAILED}Invalid update version 1 for feature {TV}. Can't downgrade to a newer version."
    assert decide({}, [Update(TV, 1, UPGRADE)], 1, {}) == {TV: 1}


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ({}, "Broker 2 does not support this feature."),  # an earlier Barnabas tells of no features
        ({TV: LevelRange(0, 1)}, "Broker 2 only supports versions 0-1"),
    ],
)
def test_every_broker_has_to_support_a_level(ranges, reason):
    found = decide({}, [Update(TV, 2, UPGRADE)], 1, {1: features.SUPPORTED, 2: ranges})
    assert found == f"{ALL_FAILED}Invalid update version 2 for feature {TV}. {reason}"
    assert decide(HOLD, [Update(TV, 0, SAFE_DOWNGRADE)], 1, {2: ranges}) == {MV: 30}, "off is known to all"


def test_the_newest_levels_are_supported():
    assert features.NEWEST == {**HOLD, GV: 1}
    assert unsupported(features.NEWEST) is None
    assert unsupported({}) is None


def test_what_is_not_supported_is_said_with_what_to_do():
    said = unsupported({MV: 27, TV: 3})
    assert said is not None
    assert "transaction.version=3, and this broker supports transaction.version 0 to 2" in said
    assert "barnabas features downgrade --feature transaction.version=2" in said
    said = unsupported({"share.version": 1})
    assert said is not None
    assert "does not know share.version" in said
    assert "--feature share.version=0" in said


@pytest.fixture
def env() -> SimEnv:
    return sim_env(3)


@pytest.fixture
def tree(env: SimEnv) -> EmbeddedCoordination:
    tree = EmbeddedCoordination(env, ":memory:")
    env.run(tree.start())
    return tree


def node(**levels: int) -> bytes:
    return payloads.encode_feature({name.replace("_", "."): level for name, level in levels.items()})


def test_the_node_is_followed_from_before_it_exists(env, tree):
    held = Features(env, tree)
    env.run(held.start())
    assert held.finalised == Finalised({}, -1)
    assert held.transaction_version == 0
    env.run(tree.create(paths.FEATURE, node(transaction_version=2)))
    env.clock.advance(100)
    assert held.finalised == Finalised({TV: 2}, 0)
    assert held.transaction_version == 2
    for level in (1, 0, 2):
        env.run(tree.set(paths.FEATURE, node(transaction_version=level) if level else node()))
        env.clock.advance(100)
        assert held.transaction_version == level
    assert held.finalised.epoch == 3
    env.run(held.stop())


def test_levels_that_cannot_be_read_or_are_not_supported_change_nothing_while_the_broker_runs(env, tree, caplog):
    held = Features(env, tree)
    env.run(tree.create(paths.FEATURE, node(transaction_version=2)))
    env.run(held.start())
    for bad in (node(transaction_version=9), node(share_version=1), b"{", b"[]", b'{"status":1,"features":{"a":1}}'):
        caplog.clear()
        with caplog.at_level(logging.ERROR, "barnabas.cluster"):
            env.run(tree.set(paths.FEATURE, bad))
            env.clock.advance(100)
        assert len(caplog.messages) == 1, bad
        assert held.finalised == Finalised({TV: 2}, 0)
    env.run(tree.set(paths.FEATURE, node(transaction_version=1)))
    env.clock.advance(100)
    assert held.transaction_version == 1, "it is followed on"
    env.run(held.stop())


@pytest.mark.parametrize(
    ("data", "error"), [(node(transaction_version=3), UnsupportedFeatureError), (b"{", CoordinationError)]
)
def test_a_start_is_refused_by_levels_that_are_not_supported(env, tree, data, error):
    env.run(tree.create(paths.FEATURE, data))
    with pytest.raises(error) as refused:
        env.run(Features(env, tree).start())
    assert str(refused.value)


def test_an_older_reading_that_comes_late_changes_nothing(env, tree):
    env.run(tree.create(paths.FEATURE, node(transaction_version=1)))
    older = env.run(tree.get(paths.FEATURE))
    env.run(tree.set(paths.FEATURE, node(transaction_version=2)))
    held = Features(env, tree)
    env.run(held.start())
    held.take(older)
    held.take(None)
    assert held.transaction_version == 2
    env.run(held.stop())


def test_levels_are_read_again_in_a_new_session(env):
    server = SimTree(env.clock)
    server.watch_delay_ms = lambda: 10.0
    tree, other = SimCoordination(env.clock, server), SimCoordination(env.clock, server)
    env.run(tree.start())
    env.run(other.start())
    env.run(other.create(paths.FEATURE, node(transaction_version=1)))
    held = Features(env, tree)
    env.run(held.start())
    assert held.transaction_version == 1
    env.run(other.set(paths.FEATURE, node(transaction_version=2)))
    server.expire(tree.session_id)  # before the watch is told
    env.clock.advance(1_000)
    assert held.transaction_version == 2
    env.run(other.set(paths.FEATURE, node()))
    env.clock.advance(1_000)
    assert held.transaction_version == 0, "and followed"
    env.run(held.stop())


def test_a_tree_that_does_not_answer_is_asked_again(env):
    server = SimTree(env.clock)
    tree = SimCoordination(env.clock, server)
    env.run(tree.start())
    env.run(tree.create(paths.FEATURE, node(transaction_version=1)))
    held = Features(env, tree)
    env.run(held.start())
    env.run(tree.set(paths.FEATURE, node(transaction_version=2)))
    server.trouble = lambda name: Fate.LOST_AFTER
    env.clock.advance(1_000)
    assert held.transaction_version == 1
    server.trouble = lambda name: Fate.DONE
    env.clock.advance(1_000)
    assert held.transaction_version == 2
    env.run(held.stop())
