"""The ready line of `barnabas start`, and the topic that it waits for."""

import asyncio
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from barnabas.cli.shared.exits import say
from barnabas.config.listeners import url_of
from barnabas.runtime.counted import counted
from barnabas.runtime.turns import ended

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker
    from barnabas.broker.control.gate import ControlledGate
    from barnabas.cli.start import Order

TRIES_BEFORE_SAID = 4  # one takes half a second or a second; on a busy machine the first may be too short
MADE_AGAIN_MS = 500.0  # after a topic that the ready line waits for could not be made, and nothing has changed since


async def is_made_unless_stopped(broker: "Broker", topic: str, stop: asyncio.Event) -> bool:
    """Make the topic, again and again until it has leaders: the disk may be full. False if told to stop meanwhile.

    A topic that was there may wait for other brokers, and they perhaps for this start to end.
    """
    cache, auto_topics = broker.metadata_cache, broker.auto_topics
    was_there = cache.contains(topic)
    stopped = asyncio.ensure_future(stop.wait())
    tries, is_waiting = 0, False

    def progress() -> tuple[int, bool]:
        return auto_topics.missing_brokers(topic), cache.has_leaders(topic, max(cache.partition_count(topic), 1))

    def changed_since(former: tuple[int, bool]) -> Callable[[], bool]:
        return lambda: progress() != former

    while not stop.is_set():
        await auto_topics.make(topic)
        refused = any(name == topic for name, _ in broker.replica_manager.refusals.causes)  # leaders without a log
        count = cache.partition_count(topic)
        if count and (was_there or cache.has_leaders(topic, count)) and not refused:
            break
        missing = auto_topics.missing_brokers(topic) if not count else 0
        tries += not missing
        if missing and not is_waiting:
            is_waiting = True
            say(f"barnabas: not ready yet: {topic} waits for {counted(missing, 'more broker')}.")
        elif not missing and tries == TRIES_BEFORE_SAID:
            why = f"because {topic} cannot be made (the log says why)"
            say(f"barnabas: not ready yet, {why}. This goes on.")
        news = asyncio.ensure_future(ended(cache.wait_for(changed_since(progress()), MADE_AGAIN_MS)))
        await asyncio.wait((stopped, news), return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
    stopped.cancel()
    return not stop.is_set()


def print_line(broker: "Broker", data: str, order: "Order") -> None:
    """Print that the broker serves, and where."""
    is_temporary = order.temporary_directory is not None
    if order.as_json:
        ready: dict[str, object] = {
            "event": "ready",
            "bootstrap": broker.addresses.bootstrap,
            "http": broker.http.address,
            "node_id": broker.node_id,
            "cluster_id": broker.cluster_id,
            "data": data,
            "temporary": is_temporary,
            "pid": os.getpid(),
        }
        if order.security is not None:
            ready["security"] = order.security
        if order.config.control_start_snapshot:
            ready["snapshot"] = _snapshot(broker, order.config.control_start_snapshot)
        print(json.dumps(ready))
        return
    where = f"data in {data}" + (", removed at the end" if is_temporary else "")
    who = f"node {broker.node_id}, cluster {broker.cluster_id}, {where}"
    http = f", HTTP API at {url_of(broker.http.address)}" if broker.http.address else ""
    print(f"Barnabas serves at {broker.addresses.bootstrap}{http} ({who}). Ctrl-C stops it.")


def _snapshot(broker: "Broker", folder: str) -> dict[str, object]:
    """As the answer to /v1/control/snapshots has it."""
    gate = cast("ControlledGate", broker.request_gate)
    return {"folder": os.path.abspath(folder), "next_request": gate.recorder.next_number}
