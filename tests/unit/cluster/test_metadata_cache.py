"""The metadata cache forgets what was deleted while its broker heard nothing."""

from barnabas.cluster.metadata_cache import FULL, MetadataCache
from barnabas.protocol.messages import UpdateMetadataRequest
from simulator.env import sim_env

ONE, TWO = b"1" * 16, b"2" * 16


def told(cache: MetadataCache, topics: dict[str, tuple[bytes, int]], kind: int = 0) -> list[tuple[str, int]]:
    return cache.update(
        UpdateMetadataRequest(
            controller_id=1,
            type=kind,
            topic_states=[
                UpdateMetadataRequest.UpdateMetadataTopicState(
                    topic_name=topic,
                    topic_id=topic_id,
                    partition_states=[
                        UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=index, leader=1)
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
