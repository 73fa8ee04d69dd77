"""The command that starts a broker, as far as it can be told from what the brokers say."""

import re
from collections.abc import Mapping

from barnabas.cli.checks.facts import Broker, Facts, Settings

# Settings that belong to one broker, or to its machine.
OWN = {
    *("broker.id", "node.id", "broker.rack", "listeners", "advertised.listeners", "log.dir", "log.dirs"),
    *("http.address", "http.listeners", "metadata.log.dir", "process.roles", "control.plane.listener.name"),
    *("controller.listener.names", "advertised.host.name", "host.name", "port", "advertised.port"),
}
FILE = "server.properties"  # stands for the file by which the broker was started
NO_CHANGES: Mapping[str, str] = {}
# Without these it would be a broker alone.
OF_THE_CLUSTER = ("coordination.path", "zookeeper.connect")
# More are in a file: the command would be no help. Three brokers of the profile `ci` have over 30.
SETTINGS_MAX = 60


def start_again(facts: Facts, broker: Broker, changes: Mapping[str, str] = NO_CHANGES) -> tuple[str, ...]:
    """`start …` for this broker, as it was started, with settings that are new or have another value.

    A broker that does not answer is assumed to be like its neighbours: a directory named by its number, a port that
    counts up with it, or any free one if theirs are, and the settings that all of them have. If they have none of
    these, nobody knows, and the command only shows the cluster.
    """
    if broker.settings is not None and broker.settings.hides_static:
        return _with_its_file(facts, broker.node_id, changes)
    if broker.settings is not None:
        static = {name: value for name, value in broker.settings.static.items() if name not in {*OWN, *changes}}
        return _command(facts, broker.node_id, directories_of(broker.settings), broker.port, static, changes)
    others = facts.settings
    if any(settings.hides_static for _, settings in others):
        return _with_its_file(facts, broker.node_id, changes)
    directory = directory_of(facts, broker)
    bases = {each.port - each.node_id for each, _ in others if each.port}
    are_free = all((settings.text("listeners") or "").endswith(":0") for _, settings in others)
    if directory is None or not (len(bases) == 1 or are_free):
        return ("cluster",)
    number = broker.node_id
    port = bases.pop() + number if len(bases) == 1 else 0
    first, *rest = (settings.static for _, settings in others)
    common = {
        name: value
        for name, value in first.items()
        if name not in {*OWN, *changes} and all(each.get(name) == value for each in rest)
    }
    return _command(facts, number, directory, port, common, changes)


def directory_of(facts: Facts, broker: Broker) -> str | None:
    """Where a broker that does not answer has its data, if its neighbours have directories named by their numbers."""
    folders = {_parent(directories_of(settings), each.node_id) for each, settings in facts.settings}
    folder = next(iter(folders)) if len(folders) == 1 else None
    return None if folder is None else f"{folder}/{broker.node_id}"


def directories_of(settings: Settings) -> str:
    """As log.dirs says."""
    return settings.text("log.dirs") or settings.text("log.dir") or ""


def _parent(directory: str, node_id: int) -> str | None:
    """`/data` of `/data/2` for broker 2."""
    found = re.fullmatch(r"([^,]+)/(\d+)", directory)
    return found[1] if found and int(found[2]) == node_id else None


def _with_its_file(facts: Facts, node_id: int, changes: Mapping[str, str]) -> tuple[str, ...]:
    """For a broker with passwords, or with users who may do everything: nobody is told these."""
    settings = ({"node.id": str(node_id)} if facts.is_cluster else {}) | {**changes}
    return ("start", "--config", FILE, *(word for row in settings.items() for word in ("--set", "=".join(row))))


def _command(
    facts: Facts, node_id: int, directories: str, port: int, static: Mapping[str, str], changes: Mapping[str, str]
) -> tuple[str, ...]:
    words = ["start"]
    words += ["--set", f"log.dirs={directories}"] if "," in directories else ["--data", directories]
    words += ["--port", str(port)]
    settings = {"node.id": str(node_id)} if facts.is_cluster else {}
    is_short = len(static) <= SETTINGS_MAX
    settings |= {name: value for name, value in static.items() if is_short or name in OF_THE_CLUSTER}
    for name, value in {**settings, **changes}.items():
        words += ["--set", f"{name}={value}"]
    return tuple(words)
