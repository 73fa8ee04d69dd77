"""The metadata cache forgets what was deleted while its broker heard nothing, and tells by a hash what a topic is."""

from collections.abc import Sequence

from barnabas.cluster.metadata_cache import FULL, MetadataCache
from barnabas.protocol.messages import UpdateMetadataRequest
from simulator.env import sim_env

ONE, TWO = b"1" * 16, b"2" * 16


def told(
    cache: MetadataCache, topics: dict[str, tuple[bytes, int]], kind: int = 0, racks: Sequence[str | None] = ()
) -> list[tuple[str, int]]:
    """`racks`: of the brokers, from broker 1 on."""
    broker = UpdateMetadataRequest.UpdateMetadataBroker
    return cache.update(
        UpdateMetadataRequest(
            controller_id=1,
            type=kind,
            live_brokers=[broker(id=number, rack=rack) for number, rack in enumerate(racks, 1)],
            topic_states=[
                UpdateMetadataRequest.UpdateMetadataTopicState(
                    topic_name=topic,
                    topic_id=topic_id,
                    partition_states=[
                        UpdateMetadataRequest.UpdateMetadataPartitionState(
                            partition_index=index, leader=1, replicas=[1]
                        )
                        for index in range(count)
                    ],
                )
                for topic, (topic_id, count) in topics.items()
            ],
        )
    )


def test_a_full_update_takes_away_what_it_does_not_have() -> None:
    cache = MetadataCache(sim_env(1).clock)
    told(cache, {"a": (ONE, 2), "b": (TWO, 1)})
    told(cache, {"a": (ONE, 1)})
    assert cache.partition_count("a") == 2, "others add"
    missing: list[tuple[str, int]] = []
    cache.on_missing.append(missing.extend)
    assert told(cache, {"b": (TWO, 1)}, FULL) == [], "nobody may take it for a deletion that happens now"
    assert missing == [("a", 0), ("a", 1)]
    assert told(cache, {"b": (TWO, 1)}, FULL) == []
    assert missing == [("a", 0), ("a", 1)], "it is told once"
    assert sorted(cache.topics) == ["b"]
    assert (cache.topic_name(ONE), cache.topic_id("a"), cache.topic_name(TWO)) == (None, bytes(16), "b")


def test_a_topic_that_was_made_again_keeps_nothing() -> None:
    cache = MetadataCache(sim_env(1).clock)
    told(cache, {"a": (ONE, 5)})
    told(cache, {"a": (TWO, 1)})
    assert list(cache.topics["a"]) == [0]
    assert (cache.topic_name(ONE), cache.topic_name(TWO)) == (None, "a")


def test_the_hash_of_a_topic_changes_with_what_it_is() -> None:
    cache = MetadataCache(sim_env(1).clock)
    assert cache.topic_hash("a") == 0
    told(cache, {"a": (ONE, 1), "b": (TWO, 1)})
    seen = [cache.topic_hash("b"), cache.topic_hash("a")]
    told(cache, {"a": (ONE, 1)})
    assert cache.topic_hash("a") == seen[-1], "nothing has changed"
    told(cache, {"a": (ONE, 2)})
    seen.append(cache.topic_hash("a"))
    told(cache, {}, racks=["r1"])
    seen.append(cache.topic_hash("a"))
    told(cache, {}, racks=["r2"])
    seen.append(cache.topic_hash("a"))
    told(cache, {"a": (b"3" * 16, 2)}, racks=["r2"])
    seen.append(cache.topic_hash("a"))
    assert len({0, *seen}) == len(seen) + 1
    told(cache, {"b": (TWO, 1)}, FULL, racks=["r2"])
    assert cache.topic_hash("a") == 0
    told(cache, {"b": (TWO, 1)}, racks=[None])
    assert cache.topic_hash("b") == seen[0]
