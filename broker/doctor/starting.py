"""The command that starts a broker, as far as it can be told from what the brokers say."""

import re
from collections.abc import Mapping

from barnabas.broker.doctor.facts import Broker, Facts, Settings

TREES = ("coordination.path", "zookeeper.connect")


def start_again(facts: Facts, broker: Broker, **more: str) -> tuple[str, ...]:
    """`start …` for this broker, with settings more than before (`a_b` for `a.b`).

    A broker that does not answer is assumed to be like its neighbours: a directory named by its number, and a port
    that counts up with it. If that cannot be told, the command only shows the cluster.
    """
    if broker.settings is not None:
        return _command(broker.settings, _directories(broker.settings), broker.port, broker.node_id, facts, more)
    others = facts.settings
    folders = {_parent(_directories(settings), each.node_id) for each, settings in others}
    bases = {each.port - each.node_id for each, _ in others if each.port}
    folder = next(iter(folders)) if len(folders) == 1 else None
    if folder is None or len(bases) != 1:
        return ("cluster",)
    number, port = broker.node_id, bases.pop() + broker.node_id
    return _command(others[0][1], f"{folder}/{number}", port, number, facts, more)


def _directories(settings: Settings) -> str:
    return settings.text("log.dirs") or settings.text("log.dir") or ""


def _parent(directory: str, node_id: int) -> str | None:
    """`/data` of `/data/2` for broker 2."""
    found = re.fullmatch(r"([^,]+)/(\d+)", directory)
    return found[1] if found and int(found[2]) == node_id else None


def _command(
    settings: Settings, directories: str, port: int, node_id: int, facts: Facts, more: Mapping[str, str]
) -> tuple[str, ...]:
    words = ["start"]
    words += ["--set", f"log.dirs={directories}"] if "," in directories else ["--data", directories]
    words += ["--port", str(port)]
    if facts.is_cluster:
        words += ["--set", f"node.id={node_id}"]
        for name in TREES:
            if settings.is_set(name) and settings.text(name):
                words += ["--set", f"{name}={settings.text(name)}"]
    for name, value in more.items():
        words += ["--set", f"{name.replace('_', '.')}={value}"]
    return tuple(words)
