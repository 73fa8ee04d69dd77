"""SCRAM credentials in the tree: the nodes of users, as Kafka 3.9 has them, and what this broker knows of them.

They are read at the start, and again when a notice of a settings' change names a user. Any broker changes them, by a
conditional write.
"""

import logging
from collections.abc import Mapping

from barnabas.cluster.security.scram import HASHES, ScramCredential
from barnabas.cluster.tree import config_nodes, paths
from barnabas.cluster.tree.config_nodes import ConfigNode
from barnabas.cluster.tree.port import Coordination, children_if_there

logger = logging.getLogger("barnabas.cluster")

USERS = "users"


def credentials_of(node: ConfigNode) -> dict[str, ScramCredential]:
    """Those of a user's node, by mechanism. ValueError: one cannot be read."""
    return {
        mechanism: ScramCredential.decode(node.settings[mechanism])
        for mechanism in HASHES
        if mechanism in node.settings
    }


class Credentials:
    """The SCRAM users of a cluster, as one broker knows them."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._known: dict[str, dict[str, ScramCredential]] = {}  # by user
        self.unreadable: set[str] = set()  # users whose nodes somebody has written by hand: they cannot log in

    def of(self, user: str, mechanism: str) -> ScramCredential | None:
        """What is kept of a user's password; None: it cannot log in so."""
        return self._known.get(user, {}).get(mechanism)

    async def load(self) -> None:
        for user in {*await self.users(), *self._known}:
            await self.read(user)

    async def changed(self, entity: str) -> None:
        """A notice names this entity: a user, a client id of one, or something else."""
        kind, _, name = entity.partition("/")
        user = paths.decode_name(name.partition("/")[0])
        if kind == USERS and user is not None:
            await self.read(user)

    async def read(self, user: str) -> None:
        try:
            found = await self.kept(user)
            self.unreadable.discard(user)
        except ValueError as error:
            logger.error("the credentials of user %r cannot be read: %s", user, error)
            self.unreadable.add(user)
            found = {}
        if found != self._known.get(user, {}):
            self._known[user] = found
            logger.info("user %r can log in by %s", user, ", ".join(found) or "none of SCRAM's mechanisms")

    async def users(self) -> list[str]:
        """The users that have a node, sorted."""
        names = await children_if_there(self._coordination, paths.config(USERS))
        return sorted(user for name in names if (user := paths.decode_name(name)) is not None)

    async def kept(self, user: str) -> dict[str, ScramCredential]:
        """What the tree has of a user's passwords now, by mechanism. ValueError: it cannot be read."""
        return credentials_of(await config_nodes.read(self._coordination, _entity(user)))

    async def alter(self, user: str, changes: Mapping[str, ScramCredential | None]) -> bool:
        """Set credentials by mechanism, or remove them (None). False: one that is to be removed is not there.

        CoordinationError as `config_nodes.alter`.
        """

        def changed(there: config_nodes.Settings) -> config_nodes.Settings | None:
            if any(credential is None and mechanism not in there for mechanism, credential in changes.items()):
                return None
            kept = {name: text for name, text in there.items() if name not in changes}
            return kept | {name: each.encode() for name, each in changes.items() if each is not None}

        is_there = await config_nodes.alter(self._coordination, _entity(user), changed, f"user {user!r}")
        if is_there:
            await self.read(user)
        return is_there


def _entity(user: str) -> str:
    return f"{USERS}/{paths.encode_name(user)}"
