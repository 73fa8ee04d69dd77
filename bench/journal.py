"""`python -m bench journal`: commits with the offset journal on, against off; two brokers of this checkout, in turn.

`rate`: by clients, with sockets, in two processes; other processes on the machine disturb it. `cpu`: processor time of
a commit without sockets (bench/cpu.py), both brokers in this process, in turn every twentieth of a second; the least of
many rounds, which others disturb little. A socket adds about 20 µs to each commit.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import uvloop
from barnabas.broker.broker import Broker
from barnabas.cli.start import collect_seldom
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.env import real

from bench import cpu
from bench.loads import LOADS, commit_frame, in_turn
from bench.targets import Barnabas

AIMS = {"commit-8": 0.87, "commit-50": 0.85}  # at least so much of the rate without a journal
PARTITIONS = {"commit-8": 1, "commit-50": 50}
SOCKET_US = 20
SETTING = "offsets.journal.enable"
SPAN_S = 0.05  # of one round of `cpu`

Step = Callable[[], tuple[int, cpu.Transport]]


def main(words: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench journal", description=__doc__)
    parser.add_argument("how", nargs="*", help="cpu, rate")
    parser.add_argument("--rounds", type=int, default=6, help="of rate; twenty times as many of cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one load against one broker")
    said = parser.parse_args(words)
    how = said.how or ["cpu", "rate"]
    if "cpu" in how:
        uvloop.run(_processor_time(20 * said.rounds))
    if "rate" in how:
        _rates(said.rounds, said.seconds)
    return 0


async def _processor_time(rounds: int) -> None:
    with ExitStack() as folders:
        brokers = [
            await _started(is_on, folders.enter_context(tempfile.TemporaryDirectory())) for is_on in ("false", "true")
        ]
        collect_seldom()
        for name, count in PARTITIONS.items():
            frames = [commit_frame(f"g{index}", "bench", range(count), 7) for index in range(8)]
            steps = [cpu.many(8, frames.__getitem__)(broker) for broker in brokers]
            for step in steps:
                await cpu.round_of(step, 0.5)
            pairs = [
                (await cpu.round_of(steps[0], SPAN_S), await cpu.round_of(steps[1], SPAN_S)) for _ in range(rounds)
            ]
            off, on = (min(spans) for spans in zip(*pairs, strict=True))
            print(f"{name} cpu: off {off:.1f} µs, on {on:.1f} µs, {on - off:.1f} more; ", end="")
            print(f"with {SOCKET_US} µs of sockets {(off + SOCKET_US) / (on + SOCKET_US):.2f}, the aim is {AIMS[name]}")
        for broker in brokers:
            await broker.stop()


async def _started(is_on: str, folder: str) -> Broker:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "http.listeners": "none", SETTING: is_on}
    broker = Broker(real(), BrokerConfig.of(settings), folder)
    await broker.start()
    client = cpu.Client(broker)
    topic = messages.CreateTopicsRequest.CreatableTopic(name="bench", num_partitions=50, replication_factor=1)
    await client.ask(ApiKey.CREATE_TOPICS, 4, messages.CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    while (await client.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="g"))).error_code:
        await asyncio.sleep(0.1)
    return broker


def _rates(rounds: int, seconds: float) -> None:
    with Barnabas(settings=[f"{SETTING}=false"]) as without_it, Barnabas(settings=[f"{SETTING}=true"]) as with_it:
        brokers = [without_it, with_it]
        for name, aim in AIMS.items():
            off, on = uvloop.run(in_turn(LOADS[name].load, brokers, rounds, seconds, warm_up=True))
            key = LOADS[name].figure
            ratios = sorted(own[key] / other[key] for own, other in zip(on, off, strict=True))
            print(f"{name} rate: {LOADS[name].work}")
            for word, figures in (("off", off), ("on", on)):
                rate = statistics.median(figure[key] for figure in figures)
                least = min(figure["cpu µs"] for figure in figures)
                print(f"  {word:4} {rate:>9,.0f} {key}, at best {least:.1f} µs of the broker's processor each")
            median = statistics.median(ratios)
            print(f"  on is {median:.2f} of off ({ratios[0]:.2f} to {ratios[-1]:.2f}), the aim is {aim}", flush=True)
