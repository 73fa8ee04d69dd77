"""What clients hear of features, how they change them, and what a change does to the requests that follow."""

import sys
from pathlib import Path

import pytest
from barnabas.broker.broker import Broker
from barnabas.cluster.features import UnsupportedFeatureError
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import encode_feature
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    UpdateFeaturesRequest,
)
from simulator.coordination import SimCoordination, SimTree
from simulator.env import sim_env

sys.path.insert(0, str(Path(__file__).parent))
from transaction_requests import Lasting, add, describe, end, init, sleep

TV = "transaction.version"
UPGRADE, SAFE_DOWNGRADE = 1, 2
NEW = (0, {"group.version": 1, "metadata.version": 30, TV: 2})


@pytest.fixture
def world(own_world):
    """A broker for each test, because levels change."""
    return own_world


def told(world, version=4):
    """(epoch, levels) that ApiVersions tells."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = world.ask(ApiKey.API_VERSIONS, version, request)
    assert all(each.min_version_level == each.max_version_level for each in answer.finalized_features)
    return answer.finalized_features_epoch, {each.name: each.max_version_level for each in answer.finalized_features}


def update(world, level, upgrade_type=SAFE_DOWNGRADE, version=1, feature=TV, validate_only=False):
    key = UpdateFeaturesRequest.FeatureUpdateKey(feature=feature, max_version_level=level)
    if version:
        key.upgrade_type = upgrade_type
    request = UpdateFeaturesRequest(timeout_ms=5_000, feature_updates=[key], validate_only=validate_only)
    answer = world.ask(ApiKey.UPDATE_FEATURES, version, request)
    return answer.error_code, answer.error_message, [(r.feature, r.error_code, r.error_message) for r in answer.results]


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        (3, [("metadata.version", 27, 30)]),  # KIP-1022: older clients cannot read a range that begins with 0
        (4, [("group.version", 0, 1), ("metadata.version", 27, 30), (TV, 0, 2)]),
    ],
)
def test_api_versions_tells_features(world, version, supported):
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = world.ask(ApiKey.API_VERSIONS, version, request)
    assert [(each.name, each.min_version, each.max_version) for each in answer.supported_features] == supported
    assert told(world, version) == NEW


def test_the_bytes_are_those_of_kafka(world):
    """Kafka 4 ends its answer so, with its own levels: tags 0, 1 and 2, each array with lengths as varints."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    (answer,) = world.exchange(frames.encode_request(ApiKey.API_VERSIONS, 3, 1, "test", request)[4:])
    name = b"metadata.version"
    levels = ((b"group.version", 1), (name, 30), (TV.encode(), 2))
    supported = b"\x02" + bytes([len(name) + 1]) + name + b"\x00\x1b\x00\x1e\x00"
    finalised = b"\x04" + b"".join(
        bytes([len(each) + 1]) + each + bytes([0, level, 0, level, 0]) for each, level in levels
    )
    tags = [(0, supported), (1, bytes(8)), (2, finalised)]
    assert answer.endswith(b"\x03" + b"".join(bytes([tag, len(data)]) + data for tag, data in tags))


def test_versions_before_3_tell_nothing(world):
    for version in (0, 1, 2):
        answer = world.ask(ApiKey.API_VERSIONS, version, ApiVersionsRequest())
        assert (answer.supported_features, answer.finalized_features, answer.finalized_features_epoch) == ([], [], -1)


@pytest.mark.parametrize("version", [1, 2])
def test_a_level_that_has_changed_is_told_at_once(world, version):
    results = [(TV, 0, "NONE")] if version == 1 else []
    assert update(world, 1, version=version) == (0, None, results)
    assert told(world) == (1, {"group.version": 1, "metadata.version": 30, TV: 1})
    assert update(world, 2, UPGRADE, version=version, validate_only=True) == (0, None, results)
    assert told(world)[0] == 1
    assert update(world, 0, version=version) == (0, None, results)
    assert told(world) == (2, {"group.version": 1, "metadata.version": 30})
    assert update(world, 2, UPGRADE, version=version) == (0, None, results)
    assert told(world) == (3, {"group.version": 1, "metadata.version": 30, TV: 2})
    code, message, results = update(world, 3, UPGRADE, version=version)
    assert (code, results) == (ErrorCode.INVALID_UPDATE_VERSION, [])
    assert message == (
        "The update failed for all features since the following feature had an error: "
        "Invalid update version 3 for feature transaction.version. Local controller 0 only supports versions 0-2"
    )


def test_of_several_updates_of_a_feature_the_last_one_counts(world):
    key = UpdateFeaturesRequest.FeatureUpdateKey
    updates = [key(feature=TV, max_version_level=level, upgrade_type=SAFE_DOWNGRADE) for level in (0, 3, 1)]
    answer = world.ask(ApiKey.UPDATE_FEATURES, 1, UpdateFeaturesRequest(feature_updates=updates))
    assert (answer.error_code, [row.feature for row in answer.results]) == (ErrorCode.NONE, [TV, TV, TV])
    assert told(world) == (1, {"group.version": 1, "metadata.version": 30, TV: 1})


def test_version_0_of_the_request_raises_levels_only(world):
    code, message, _ = update(world, 1, version=0)
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert "Can't downgrade the version of this feature" in message
    update(world, 1)
    assert update(world, 2, version=0) == (ErrorCode.NONE, None, [(TV, 0, "NONE")])
    assert told(world) == (2, {"group.version": 1, "metadata.version": 30, TV: 2})


def test_another_broker_than_the_controller_says_so(world):
    term, world.broker.controller.term = world.broker.controller.term, None
    assert update(world, 1) == (ErrorCode.NOT_CONTROLLER, None, [])
    world.broker.controller.term = term
    assert told(world) == NEW


def test_levels_outlive_the_broker_and_are_known_before_it_serves():
    env = sim_env(5)
    tree = SimTree(env.clock)
    tree.watch_delay_ms = lambda: 10_000.0
    for expected in ({"group.version": 1, "metadata.version": 30, TV: 2}, {"group.version": 1, "metadata.version": 30}):
        broker = Broker(env, BrokerConfig.of({}), "/data", SimCoordination(env.clock, tree))
        env.run(broker.start())
        assert dict(broker.features.finalised.levels) == expected
        assert broker.features.transaction_version == expected.get(TV, 0)
        env.run(broker.coordination.set(paths.FEATURE, encode_feature({"group.version": 1, "metadata.version": 30})))
        env.run(broker.stop())


def test_a_start_reads_the_levels_once_more_than_the_other_nodes(monkeypatch):
    env = sim_env(5)
    tree = SimTree(env.clock)
    read = []
    for name in ("get", "exists"):
        original = getattr(SimCoordination, name)

        async def noted(self, path, watch=None, original=original):
            read.append(path)
            return await original(self, path, watch)

        monkeypatch.setattr(SimCoordination, name, noted)
    for expected in ([paths.FEATURE] * 2, [paths.FEATURE]):  # the first controller looks whether it must make the node
        read.clear()
        broker = Broker(env, BrokerConfig.of({}), "/data", SimCoordination(env.clock, tree))
        env.run(broker.start())
        assert [path for path in read if path == paths.FEATURE] == expected
        env.run(broker.stop())


def test_a_broker_that_does_not_support_a_level_refuses_to_start_and_changes_nothing():
    env = sim_env(5)
    tree = SimTree(env.clock)
    broker = Broker(env, BrokerConfig.of({}), "/data", SimCoordination(env.clock, tree))
    env.run(broker.start())
    env.run(broker.coordination.set(paths.FEATURE, encode_feature({"group.version": 1, "metadata.version": 30, TV: 3})))
    env.run(broker.stop())
    zxid = tree.zxid
    with pytest.raises(UnsupportedFeatureError, match=r"supports transaction\.version 0 to 2"):
        env.run(Broker(env, BrokerConfig.of({}), "/data", SimCoordination(env.clock, tree)).start())
    assert tree.zxid == zxid


def test_a_level_that_was_raised_during_the_start_refuses_it_too():
    env = sim_env(5)
    tree = SimTree(env.clock)
    broker = Broker(env, BrokerConfig.of({}), "/data", SimCoordination(env.clock, tree))
    hear = broker._hear_from_the_controller

    async def hear_late():
        await hear()
        await broker.coordination.set(
            paths.FEATURE, encode_feature({"group.version": 1, "metadata.version": 30, TV: 3})
        )

    broker._hear_from_the_controller = hear_late
    with pytest.raises(UnsupportedFeatureError):
        env.run(broker.start())


def test_a_cluster_from_before_features_keeps_its_behaviour_until_somebody_raises_it():
    env = sim_env(5)
    tree = SimTree(env.clock)
    earlier = SimCoordination(env.clock, tree)
    env.run(earlier.start())
    env.run(earlier.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[0]}}', make_parents=True))
    env.run(earlier.close())
    broker = Broker(env, BrokerConfig.of({}), "/data", SimCoordination(env.clock, tree))
    env.run(broker.start())
    assert (broker.features.finalised.epoch, dict(broker.features.finalised.levels)) == (0, {})
    env.run(broker.stop())


# --- transactions at each level; what Apache Kafka 4.1.0 answered, except where a comment says so ---


@pytest.fixture
def transactions(make_world):
    """A broker that coordinates transactions, and has the topic t. It can be started again."""
    lasting = Lasting(make_world)
    yield lasting
    lasting.world.end()


def opened(world, transactional_id):
    """A transaction of version 2 with a partition."""
    error, *producer = init(world, transactional_id)
    assert error == ErrorCode.NONE
    assert add(world, transactional_id, producer, [("t", 0)], version=5) == [ErrorCode.NONE]
    return producer


def added(world, transactional_id, producer, version=5, verify_only=False):
    """AddPartitionsToTxn as a broker sends it: the error of the whole, or of the partition."""
    asked = AddPartitionsToTxnRequest
    transaction = asked.AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        verify_only=verify_only,
        topics=[asked.AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    answer = world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, asked(transactions=[transaction]))
    if answer.error_code:
        return ErrorCode(answer.error_code)
    return ErrorCode(answer.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code)


def test_at_level_1_version_2_works_on(transactions):
    world = transactions.world
    producer = opened(world, "open")
    assert update(world, 1)[0] == ErrorCode.NONE
    producer_id, epoch = producer
    assert end(world, "open", producer, True, version=5) == (ErrorCode.NONE, producer_id, epoch + 1)
    sleep(world, 100)
    assert end(world, "open", producer, True, version=5) == (ErrorCode.NONE, producer_id, epoch + 1), "a repeat"
    assert end(world, "open", producer, True, version=4)[0] == ErrorCode.PRODUCER_FENCED
    assert added(world, "open", (producer_id, epoch + 1)) == ErrorCode.NONE
    assert end(world, "open", (producer_id, epoch + 1), False, version=5)[0] == ErrorCode.NONE


def test_at_level_0_version_2_is_refused_and_nothing_stays_busy(transactions):
    """Kafka's ids stay busy for good after such a refusal (CONCURRENT_TRANSACTIONS to everything)."""
    world = transactions.world
    assert update(world, 0)[0] == ErrorCode.NONE
    error, *producer = init(world, "new")
    assert error == ErrorCode.NONE
    assert added(world, "new", producer) == ErrorCode.UNSUPPORTED_VERSION
    assert added(world, "new", producer, verify_only=True) == ErrorCode.TRANSACTION_ABORTABLE
    assert end(world, "new", producer, False, version=5)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert add(world, "new", producer, [("t", 0)], version=3) == [ErrorCode.NONE]
    assert end(world, "new", producer, True, version=5)[0] == ErrorCode.UNSUPPORTED_VERSION, "begun as version 0"
    assert end(world, "new", producer, True, version=4)[0] == ErrorCode.NONE
    sleep(world, 100)
    assert describe(world, "new").transaction_state == "CompleteCommit"
    assert update(world, 2, UPGRADE)[0] == ErrorCode.NONE
    assert added(world, "new", producer) == ErrorCode.NONE, "and in version 2 again"
    assert end(world, "new", producer, True, version=5) == (ErrorCode.NONE, producer[0], producer[1] + 1)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("restarts", [(), ("open",), ("open", "ended")])
def test_what_was_open_when_version_2_went_off_is_ended_as_it_began(transactions, is_commit, restarts):
    """Kafka answers UNSUPPORTED_VERSION, and the transaction hangs for good."""
    producer_id, epoch = producer = opened(transactions.world, "open")
    assert update(transactions.world, 0)[0] == ErrorCode.NONE
    if "open" in restarts:
        transactions.restart()
    world = transactions.world
    assert world.broker.features.transaction_version == 0
    assert added(world, "open", producer) == ErrorCode.UNSUPPORTED_VERSION, "it grows no more"
    assert end(world, "open", producer, is_commit, version=5) == (ErrorCode.NONE, producer_id, epoch + 1)
    if "ended" in restarts:
        transactions.restart()
    world = transactions.world
    sleep(world, 1_000)
    found = describe(world, "open")
    assert (found.transaction_state, found.producer_epoch) == (
        "CompleteCommit" if is_commit else "CompleteAbort",
        epoch + 1,
    )
    assert end(world, "open", producer, is_commit, version=5) == (ErrorCode.NONE, producer_id, epoch + 1), "a repeat"
    assert add(world, "open", (producer_id, epoch + 1), [("t", 1)], version=3) == [ErrorCode.NONE]
    assert end(world, "open", (producer_id, epoch + 1), True, version=4)[0] == ErrorCode.NONE


def test_what_was_open_can_be_ended_as_version_0_or_fenced_or_times_out(transactions):
    world = transactions.world
    ended, fenced = opened(world, "ended"), opened(world, "fenced")
    error, *late = init(world, "late", timeout_ms=1_000)
    assert error == ErrorCode.NONE
    assert add(world, "late", late, [("t", 0)], version=5) == [ErrorCode.NONE]
    assert update(world, 0)[0] == ErrorCode.NONE
    assert end(world, "ended", ended, True, version=4)[0] == ErrorCode.NONE
    assert init(world, "fenced")[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    sleep(world, 15_000)
    assert init(world, "fenced") == (ErrorCode.NONE, fenced[0], fenced[1] + 2)
    states = [
        (describe(world, each).transaction_state, describe(world, each).producer_epoch) for each in ("ended", "late")
    ]
    assert states == [("CompleteCommit", 0), ("CompleteAbort", 1)]


def test_a_producer_whose_last_transaction_was_of_version_2_begins_anew_at_level_0(transactions):
    """Kafka answers UNSUPPORTED_VERSION as long as the level is 0."""
    world = transactions.world
    producer_id, epoch = producer = opened(world, "ended")
    assert end(world, "ended", producer, True, version=5) == (ErrorCode.NONE, producer_id, epoch + 1)
    sleep(world, 100)
    assert update(world, 0)[0] == ErrorCode.NONE
    assert init(world, "ended") == (ErrorCode.NONE, producer_id, epoch + 2)
    world = transactions.restart()
    assert init(world, "ended") == (ErrorCode.NONE, producer_id, epoch + 3)
    assert add(world, "ended", (producer_id, epoch + 3), [("t", 0)], version=3) == [ErrorCode.NONE]
    assert end(world, "ended", (producer_id, epoch + 3), True, version=4)[0] == ErrorCode.NONE
