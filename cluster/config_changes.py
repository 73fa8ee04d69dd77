"""Settings in the tree: read whole at the start, then followed through `/config/changes`."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from barnabas.cluster.tree import config_nodes, paths, payloads
from barnabas.cluster.tree.change_notices import ChangeNotices
from barnabas.cluster.tree.port import Coordination, children_if_there, must_be_readable
from barnabas.config.broker import BrokerConfig
from barnabas.runtime.ports import Env

logger = logging.getLogger("barnabas.cluster")

TOPICS = "topics"
BROKERS = "brokers"
GROUPS = "groups"
CLIENT_TYPES = ("users", "clients", "ips")

Overrides = Mapping[str, str]


class ConfigChanges:
    """The settings of topics, groups and brokers that the tree holds. LogManager asks `topic_overrides`."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        node_id: int,
        coordination: Coordination,
        is_registered: Callable[[], bool],
    ) -> None:
        """`is_registered`: whether this broker is registered in the session that is open now."""
        self.on_topic_change: Callable[[str], None] = lambda topic: None  # LogManager's, once there is one
        # Told of a user, a client id or an address whose settings have changed, by its path. They are not kept here.
        self.on_client_change: list[Callable[[str], Awaitable[None]]] = []
        self.on_load: list[Callable[[], Awaitable[None]]] = []  # called when everything is read
        self._config = config
        self._coordination = coordination
        self._topics: dict[str, Overrides] = {}
        self._groups: dict[str, Overrides] = {}
        self._of_brokers: dict[str, Overrides] = {paths.DEFAULT_ENTITY: {}, str(node_id): {}}  # that concern this one
        self._notices = ChangeNotices(
            *(env, coordination, paths.CONFIG_CHANGES, "config changes"),
            self._apply,
            self._load_again,
            is_registered,
        )

    def topic_overrides(self, topic: str) -> Overrides:
        """The topic's own settings; empty for one that has none."""
        return self._topics.get(topic, {})

    def group_overrides(self, group_id: str) -> Overrides:
        """The group's own settings; empty for one that has none."""
        return self._groups.get(group_id, {})

    def forget_topics(self, deleted: Iterable[tuple[str, int]]) -> None:
        """Forget the settings of deleted topics, because no notice in the tree says that they are gone."""
        for topic in {topic for topic, _ in deleted}:
            self._topics.pop(topic, None)

    async def start(self) -> None:
        """Read all settings, then follow the notices. UnreadableNodeError."""
        await self._notices.begin()  # the watch comes first: a change during the reads is read again
        await self._load()
        self._notices.follow()

    async def stop(self) -> None:
        self._notices.stop()

    async def _load(self) -> None:
        for topic in await self._names(TOPICS):
            with must_be_readable(paths.config(f"{TOPICS}/{topic}")):
                self._topics[topic] = await self._read(TOPICS, topic)
        for group in await self._names(GROUPS):
            with must_be_readable(paths.config(f"{GROUPS}/{group}")):
                await self._read_group(group)
        for name in self._of_brokers:
            with must_be_readable(paths.config(f"{BROKERS}/{name}")):
                self._of_brokers[name] = await self._read(BROKERS, name)
        self._config.set_dynamic(*self._of_brokers.values())
        for load in self.on_load:
            await load()

    async def _load_again(self) -> None:
        """Apply what has changed since the settings were read."""
        for topic in sorted({*await self._names(TOPICS), *self._topics}):
            await self._apply_entity(TOPICS, topic)
        for group in sorted({*await self._names(GROUPS), *map(paths.encode_name, self._groups)}):
            await self._apply_entity(GROUPS, group)
        for name in self._of_brokers:
            await self._apply_entity(BROKERS, name)
        for load in self.on_load:
            await load()

    async def _apply_entity(self, entity_type: str, name: str) -> None:
        try:
            await self.entity_changed(entity_type, name)
        except ValueError as error:  # somebody wrote it by hand: the other settings still count
            logger.error("the settings of %s/%s cannot be applied: %s", entity_type, name, error)

    async def _names(self, entity_type: str) -> list[str]:
        return await children_if_there(self._coordination, paths.config(entity_type))

    async def _read(self, entity_type: str, name: str) -> Overrides:
        return (await config_nodes.read(self._coordination, f"{entity_type}/{name}")).settings

    async def _apply(self, notice: bytes) -> None:
        entity_type, _, name = payloads.decode_config_change(notice).partition("/")
        await self.entity_changed(entity_type, name)
        if entity_type not in (TOPICS, BROKERS, *CLIENT_TYPES):
            logger.info("settings of %s/%s changed", entity_type, name)

    async def read_topics(self, names: Sequence[str]) -> None:
        """Read the settings of topics that are new here, because the notice of them may come later."""
        nodes = await self._coordination.get_many([paths.config(f"{TOPICS}/{name}") for name in names])
        for name, node in zip(names, nodes):
            self._set_topic(name, {} if node is None else payloads.decode_config(node[0]))

    async def entity_changed(self, entity_type: str, name: str) -> None:
        """Read one entity again and apply it. Entity types that have no effect here are left alone."""
        if entity_type == TOPICS:
            self._set_topic(name, await self._read(TOPICS, name))
        elif entity_type == GROUPS:
            await self._read_group(name)
        elif entity_type in CLIENT_TYPES:
            for told in self.on_client_change:
                await told(f"{entity_type}/{name}")
        elif entity_type == BROKERS and name in self._of_brokers:
            self._of_brokers[name] = await self._read(BROKERS, name)
            self._config.set_dynamic(*self._of_brokers.values())

    async def _read_group(self, encoded: str) -> None:
        group_id = paths.decode_name(encoded)
        if group_id is None:
            return  # it is not written as a name of a group
        overrides = await self._read(GROUPS, encoded)
        if overrides:
            self._groups[group_id] = overrides
        else:
            self._groups.pop(group_id, None)

    def _set_topic(self, name: str, overrides: Overrides) -> None:
        if overrides == self.topic_overrides(name):
            return
        if overrides:
            self._topics[name] = overrides
        else:
            del self._topics[name]
        logger.info("topic %s: its own settings are now %s", name, overrides)
        self.on_topic_change(name)
