"""SCRAM credentials in the tree: the nodes of users, as Kafka 3.9 has them, and what this broker knows of them.

They are read at the start, and again when a notice of a settings' change names a user. Any broker changes them, by a
conditional write.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from barnabas.cluster.security.scram import HASHES, ScramCredential
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.change_notices import write_and_notify
from barnabas.cluster.tree.port import Coordination, CoordinationError, Create, NoNodeError, Operation, Set

logger = logging.getLogger("barnabas.cluster")

USERS = "users"
CHANGE_TRIES = 10


class UserNode(NamedTuple):
    """The settings of a user, quotas included, and the version of their node; -1: there is none."""

    settings: Mapping[str, str]
    version: int

    @property
    def credentials(self) -> dict[str, ScramCredential]:
        """By mechanism. ValueError: one cannot be read."""
        return {
            mechanism: ScramCredential.decode(self.settings[mechanism])
            for mechanism in HASHES
            if mechanism in self.settings
        }


class Credentials:
    """The SCRAM users of a cluster, as one broker knows them."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._known: dict[str, dict[str, ScramCredential]] = {}  # by user

    def of(self, user: str, mechanism: str) -> ScramCredential | None:
        """What is kept of a user's password; None: it cannot log in so."""
        return self._known.get(user, {}).get(mechanism)

    async def load(self) -> None:
        """Read all users."""
        for user in {*await self.users(), *self._known}:
            await self.read(user)

    async def changed(self, entity: str) -> None:
        """A notice names this entity: a user, a client id of one, or something else."""
        kind, _, name = entity.partition("/")
        user = paths.decode_name(name.partition("/")[0])
        if kind == USERS and user is not None:
            await self.read(user)

    async def read(self, user: str) -> None:
        """Read one user again."""
        try:
            found = (await self.node(user)).credentials
        except ValueError as error:  # somebody wrote it by hand: nobody can log in with it
            logger.error("the credentials of user %r cannot be read: %s", user, error)
            found = {}
        if found != self._known.get(user, {}):
            self._known[user] = found
            logger.info("user %r can log in by %s", user, ", ".join(found) or "none of SCRAM's mechanisms")

    async def users(self) -> list[str]:
        """The users that have a node, sorted."""
        try:
            names = await self._coordination.children(f"{paths.CONFIG}/{USERS}")
        except NoNodeError:
            return []
        return sorted(user for name in names if (user := paths.decode_name(name)) is not None)

    async def node(self, user: str) -> UserNode:
        """What the tree has of a user now."""
        try:
            data, stat = await self._coordination.get(paths.user_config(user))
        except NoNodeError:
            return UserNode({}, -1)
        return UserNode(payloads.decode_config(data) if data else {}, stat.version)

    async def alter(self, user: str, changes: Mapping[str, ScramCredential | None]) -> bool:
        """Set credentials by mechanism, or remove them (None). False: one that is to be removed is not there.

        CoordinationError if the tree does not answer, if what it has cannot be read, or if others change this user all
        the time.
        """
        path = paths.user_config(user)
        for _ in range(CHANGE_TRIES):
            try:
                node = await self.node(user)
            except ValueError:
                raise CoordinationError(path, payloads.UNREADABLE_NODE.format(path)) from None
            if any(credential is None and mechanism not in node.settings for mechanism, credential in changes.items()):
                return False
            settings = {name: text for name, text in node.settings.items() if name not in changes}
            settings |= {name: credential.encode() for name, credential in changes.items() if credential is not None}
            data = payloads.encode_config(settings)
            writing: Operation = Create(path, data) if node.version < 0 else Set(path, data, node.version)
            told = payloads.encode_config_change(f"{USERS}/{paths.encode_name(user)}")
            notice = Create(paths.CONFIG_CHANGE_PREFIX, told, sequential=True)
            if await write_and_notify(self._coordination, [writing], notice):
                await self.read(user)
                return True
        raise CoordinationError(path, f"the settings of user {user!r} are being changed by others all the time")
