"""Nodes of settings below /config that any broker changes: of users, client ids and addresses.

The node of a user holds its credentials and its quotas, so who changes the ones leaves the others as they are. A change
is a conditional write, with a notice for the other brokers.
"""

from collections.abc import Callable, Mapping

from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.change_notices import write_and_notify
from barnabas.cluster.tree.port import Coordination, CoordinationError, Create, Operation, Set, get_if_there
from barnabas.protocol.named_tuple import NamedTuple

CHANGE_TRIES = 10
Settings = Mapping[str, str]


class ConfigNode(NamedTuple):
    """The settings of an entity, and the version of its node; -1: there is none."""

    settings: Settings
    version: int


async def read(coordination: Coordination, entity: str) -> ConfigNode:
    """What the tree has of an entity, which is named as in notices ("users/alice"). ValueError: it cannot be read."""
    node = await get_if_there(coordination, paths.config(entity))
    return ConfigNode({}, -1) if node is None else ConfigNode(payloads.decode_config(node[0]), node[1].version)


async def alter(
    coordination: Coordination, entity: str, changed: Callable[[Settings], Settings | None], whose: str
) -> bool:
    """Write what `changed` makes of an entity's settings. False: it makes None of them, so nothing is to be done.

    CoordinationError if the tree does not answer, if what it has cannot be read (it may hold credentials, so it is not
    written over), or if others change this entity all the time.
    """
    path = paths.config(entity)
    for _ in range(CHANGE_TRIES):
        try:
            there = await read(coordination, entity)
        except ValueError:
            raise CoordinationError(path, payloads.UNREADABLE_NODE.format(path)) from None
        settings = changed(there.settings)
        if settings is None:
            return False
        if settings == there.settings:
            return True
        data = payloads.encode_config(settings)
        writes: list[Operation] = [Set(path, data, there.version)]
        if there.version < 0:
            writes = [*await _missing_parents(coordination, path), Create(path, data)]
        notice = Create(paths.CONFIG_CHANGE_PREFIX, payloads.encode_config_change(entity), sequential=True)
        if await write_and_notify(coordination, writes, notice):
            return True
    raise CoordinationError(path, f"the settings of {whose} are being changed by others all the time")


async def _missing_parents(coordination: Coordination, path: str) -> list[Operation]:
    """Makes the nodes of the user and of its client ids, if they are not there."""
    parents: list[Operation] = []
    parent = path.rpartition("/")[0]
    while parent.count("/") > 2 and await coordination.exists(parent) is None:
        parents.insert(0, Create(parent, b""))
        parent = parent.rpartition("/")[0]
    return parents
