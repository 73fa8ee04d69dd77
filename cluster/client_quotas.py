"""Quotas in the tree: the nodes of users, client ids and addresses, as Kafka 3.9 has them, and what this broker knows.

They are read at the start, and again when a notice of a settings' change names an entity. Any broker changes them, by a
conditional write. The node of a user holds its SCRAM credentials, too, so what is no quota stays as it is.
"""

import logging
from collections.abc import Callable, Mapping

from barnabas.cluster.quota_table import CONNECTIONS, DEFAULT, OF_CLIENTS, Entity, Name, QuotaTable, text_of
from barnabas.cluster.tree import config_nodes, paths
from barnabas.cluster.tree.port import Coordination, children_if_there

logger = logging.getLogger("barnabas.cluster")

USERS, CLIENTS, IPS = "users", "clients", "ips"
KINDS = (USERS, CLIENTS, IPS)
KEYS = (*OF_CLIENTS, CONNECTIONS)


def entity_path(entity: Entity) -> str:
    """The path below /config, as notices have it."""
    if entity.ip is not None:
        return f"{IPS}/{_encoded(entity.ip)}"
    if entity.user is None:
        return f"{CLIENTS}/{_encoded(entity.client_id)}"
    user = f"{USERS}/{_encoded(entity.user)}"
    return user if entity.client_id is None else f"{user}/{CLIENTS}/{_encoded(entity.client_id)}"


def entity_at(path: str) -> Entity | None:
    """The entity of such a path; None: it is none."""
    match path.split("/"):
        case ["users", user]:
            return Entity(user=_decoded(user))
        case ["users", user, "clients", client_id]:
            return Entity(user=_decoded(user), client_id=_decoded(client_id))
        case ["clients", client_id]:
            return Entity(client_id=_decoded(client_id))
        case ["ips", address]:
            return Entity(ip=_decoded(address))
    return None


def _encoded(name: Name) -> str:
    return paths.encode_name(name if isinstance(name, str) else None)


def _decoded(name: str) -> Name:
    decoded = paths.decode_name(name)
    return DEFAULT if decoded is None else decoded


class ClientQuotas:
    """The quotas of a cluster, as one broker knows them."""

    def __init__(self, coordination: Coordination) -> None:
        self.table = QuotaTable()
        self.on_change: Callable[[], None] = lambda: None
        self.unreadable: set[Entity] = set()  # whose nodes somebody has written by hand: they have no quotas
        self._coordination = coordination

    async def load(self) -> None:
        there = {entity_path(entity) for entity in self.table.all}
        for kind in KINDS:
            for name in await children_if_there(self._coordination, paths.config(kind)):
                there.add(f"{kind}/{name}")
                if kind == USERS:
                    of_user = f"{USERS}/{name}/{CLIENTS}"
                    clients = await children_if_there(self._coordination, paths.config(of_user))
                    there |= {f"{of_user}/{each}" for each in clients}
        for path in sorted(there):
            await self.changed(path)

    async def changed(self, path: str) -> None:
        """A notice names this path: read the entity again."""
        entity = entity_at(path)
        if entity is None:
            return
        try:
            values = _values((await config_nodes.read(self._coordination, path)).settings)
            self.unreadable.discard(entity)
        except ValueError as error:
            logger.error("the quotas of %s cannot be read: %s", entity, error)
            self.unreadable.add(entity)
            values = {}
        if self.table.set(entity, values):
            told = ", ".join(f"{key}={text_of(key, value)}" for key, value in values.items())
            logger.info("quotas of %s: %s", entity, told or "none any more")
            self.on_change()

    async def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas, or remove them (None), also if they are not there. CoordinationError as `config_nodes.alter`."""

        def changed(there: config_nodes.Settings) -> config_nodes.Settings:
            kept = {name: text for name, text in there.items() if name not in changes}
            return kept | {key: text_of(key, value) for key, value in changes.items() if value is not None}

        path = entity_path(entity)
        await config_nodes.alter(self._coordination, path, changed, str(entity))
        await self.changed(path)


def _values(settings: Mapping[str, str]) -> dict[str, float]:
    """The quotas among the settings. ValueError: one is no number."""
    values = {key: float(settings[key]) for key in KEYS if key in settings}
    if not all(value >= 0 for value in values.values()):
        raise ValueError(f"a quota is a number that is not negative: {values}")
    return values
