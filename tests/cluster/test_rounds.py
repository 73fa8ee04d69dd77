"""Rounds of tests/crash/kill_rounds.py on three brokers, each day with one trouble that no other test has, under load.

Producers, committers, groups, transactions and copiers run through it. Everything that was acknowledged is there, once
and in order; what was aborted is not; committed offsets do not go back; and no client waits longer than
`GOES_ON_WITHIN_S`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_rounds import SESSION_TIMEOUT_MS, SETTINGS, ClusterRounds
from kill_rounds import Options

OPTIONS = Options(
    rounds=1, producers=4, committers=2, members=2, partitions=3, transactors=2, librdkafka=False, alive_s=(0.5, 1.0)
)
STALLS_MS = max(SESSION_TIMEOUT_MS, 1.5 * int(SETTINGS["replica.lag.time.max.ms"])) + 5_000


@pytest.mark.takes_turns("trouble", "on_zookeeper")
@pytest.mark.parametrize(
    ("trouble", "on_zookeeper"),
    [
        *((trouble, False) for trouble in ("roll all", "fall all", "lose leader", "kill coordinator")),
        *((trouble, True) for trouble in ("fall all", "pause coordinator")),
    ],
    ids=lambda value: {False: "embedded", True: "zookeeper"}.get(value, value),
)
def test_what_was_acknowledged_survives_and_groups_go_on(
    tmp_path: Path, zookeeper_or_skip: Callable[[], None], trouble: str, on_zookeeper: bool
) -> None:
    if on_zookeeper:
        zookeeper_or_skip()
    rounds = ClusterRounds(OPTIONS, tmp_path, print, troubles={trouble: 1}, on_zookeeper=on_zookeeper)
    assert rounds.run() == []
    assert rounds.cluster_rows[0].group_ms <= STALLS_MS
    assert rounds.cluster_rows[0].commit_ms <= STALLS_MS
