"""What principals may do: the rules in the tree, those who may do everything, and the answer for one principal.

The rules are read at the start and followed through the notices of their changes, as settings are
(`cluster/tree/change_notices.py`). Any broker changes them, by a conditional write of a resource's node, and applies
its own change before it answers.
"""

import logging
from collections.abc import Callable, Sequence
from heapq import nsmallest

from barnabas.cluster.security import acl_nodes
from barnabas.cluster.security.acls import (
    EVERYBODY,
    EVERYWHERE,
    NAME_CHARACTERS_MAX,
    OPERATIONS_OF,
    THIS_BROKER,
    Acl,
    AclFilter,
    AclOperation,
    AclTable,
    Decision,
    Permission,
    Resource,
    ResourceType,
)
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.change_notices import ChangeNotices, write_and_notify
from barnabas.cluster.tree.port import (
    Coordination,
    CoordinationError,
    Create,
    Delete,
    Operation,
    Set,
    get_if_there,
    make_if_missing,
)
from barnabas.config.broker import BrokerConfig
from barnabas.runtime.ports import Env

logger = logging.getLogger("barnabas.cluster")

CHANGE_TRIES, CHANGE_BACKOFF_MS = 10, (100.0, 50.0)  # when others change the same resource; the second part is random
DECISIONS_MAX = 100_000  # remembered for all principals together: clients may ask about names that are not there
TOLD_MAX = 50  # rules of one resource, for which the log has a line each
PRINCIPALS_MAX = 10_000  # and hosts, for which decisions are remembered


class Rights(dict[tuple[AclOperation, ResourceType, str], bool]):
    """What one principal may do from one host: decisions, which are made when they are asked for, and remembered until
    a rule changes."""

    __slots__ = ("_authorizer", "host", "is_super", "principal")

    def __init__(self, authorizer: "Authorizer", principal: str, host: str) -> None:
        self.principal = principal
        self.host = host
        self.is_super = authorizer.is_super(principal)
        self._authorizer = authorizer

    def may(self, operation: AclOperation, type: ResourceType, name: str) -> bool:
        """Whether the operation is allowed on this resource."""
        return self.is_super or self[operation, type, name]

    def __missing__(self, asked: tuple[AclOperation, ResourceType, str]) -> bool:
        allowed = self.decision(*asked).allowed
        if len(asked[2]) <= NAME_CHARACTERS_MAX:
            self._authorizer.make_room()
            self[asked] = allowed
        return allowed

    def decision(self, operation: AclOperation, type: ResourceType, name: str) -> Decision:
        """The same with the reason, which is not remembered."""
        return self._authorizer.decide(self.principal, self.host, operation, type, name)

    def may_on_any(self, operation: AclOperation, type: ResourceType) -> bool:
        """Whether it is allowed on some resource of the type, which need not exist yet."""
        return self.is_super or self._authorizer.table.allows_on_any(self.principal, self.host, operation, type)

    def may_on_all(self, operation: AclOperation, type: ResourceType) -> bool:
        """Whether it is allowed on every resource of the type."""
        return self.is_super or self._authorizer.table.allows_on_all(self.principal, self.host, operation, type)

    def operations(self, type: ResourceType, name: str) -> int:
        """The operations that are allowed on this resource, as bits (KIP-430)."""
        return sum(1 << operation for operation in OPERATIONS_OF[type] if self.may(operation, type, name))


class AllRights(dict[tuple[str, str], Rights]):
    """Those of all principals who have asked for something, by principal and by host as connections have it."""

    __slots__ = ("_authorizer",)

    def __init__(self, authorizer: "Authorizer") -> None:
        self._authorizer = authorizer

    def __missing__(self, key: tuple[str, str]) -> Rights:
        if len(self) >= PRINCIPALS_MAX:
            self._authorizer.forget()
        principal, client_host = key
        rights = self[key] = Rights(self._authorizer, principal, client_host.removeprefix("/"))
        return rights


class Authorizer:
    """The access rules of a cluster, as one broker knows them."""

    def __init__(
        self, env: Env, config: BrokerConfig, coordination: Coordination, is_registered: Callable[[], bool]
    ) -> None:
        """`is_registered`: whether this broker is registered in the session that is open now."""
        self.table = AclTable(allow_without_rules=config.allow_everyone_if_no_acl_found)
        self.unreadable: set[Resource] = set()  # whose nodes somebody has written by hand: they are denied to all
        self._env = env
        self._coordination = coordination
        self._super_users = super_users(config.super_users) | {THIS_BROKER}
        self.rights = AllRights(self)
        self._decisions = 0  # that these remember
        self._notices = [
            ChangeNotices(env, coordination, folder, what, self._apply, self._load, is_registered)
            for folder, what in (
                (paths.ACL_CHANGES, "changes of access rules"),
                (paths.EXTENDED_ACL_CHANGES, "changes of access rules for prefixes"),
            )
        ]

    async def start(self) -> None:
        """Read all rules, then follow their changes."""
        for path in acl_nodes.PERSISTENT:
            await make_if_missing(self._coordination, path)
        for notices in self._notices:
            await notices.begin()
        await self._load()
        for notices in self._notices:
            notices.follow()

    def stop(self) -> None:
        for notices in self._notices:
            notices.stop()

    async def _load(self) -> None:
        found = []
        for folder, pattern, name_of in acl_nodes.FOLDERS:
            for type in acl_nodes.KEPT_TYPES:
                names = await self._coordination.children(f"{folder}/{acl_nodes.in_tree(type)}")
                found += [Resource(type, name_of(name), pattern) for name in names]
        nodes = await self._coordination.get_many([acl_nodes.path_of(resource) for resource in found])
        rules = {
            resource: [] if node is None else self._decoded(resource, node[0])
            for resource, node in zip(found, nodes, strict=True)
        }
        for resource in {*self.table.resources, *rules}:
            self._put(resource, rules.get(resource, []))

    async def _apply(self, notice: bytes) -> None:
        resource = acl_nodes.of_notice(notice)
        rules, _ = await self._read(resource)
        self._put(resource, rules)

    async def _read(self, resource: Resource) -> tuple[list[Acl], int]:
        """The rules of a resource in the tree, and the version of their node; -1: there is no node."""
        node = await get_if_there(self._coordination, acl_nodes.path_of(resource))
        if node is None:
            self.unreadable.discard(resource)
            return [], -1
        return self._decoded(resource, node[0]), node[1].version

    def _decoded(self, resource: Resource, data: bytes) -> list[Acl]:
        """The rules of a node. If they cannot be read, one that denies everything: a rule that denies may be lost.

        It is listed, and removed, as any other: then the node is written anew, or goes.
        """
        try:
            rules = acl_nodes.decode(resource, data)
            self.unreadable.discard(resource)
            return rules
        except ValueError as error:
            self.unreadable.add(resource)
            nobody = Acl(resource, EVERYBODY, EVERYWHERE, AclOperation.ALL, Permission.DENY)
            if self.table.of(resource) != {nobody}:
                logger.error(
                    "the node %s cannot be read: %s. Until its rules are set anew (`barnabas acls add`, and remove the "
                    "one that denies), only super.users may do anything with %s %s",
                    *(acl_nodes.path_of(resource), error, resource.type.name.lower(), resource.name),
                )
            return [nobody]

    def _put(self, resource: Resource, rules: Sequence[Acl]) -> None:
        before = self.table.of(resource)
        if before == frozenset(rules):
            return
        self.table.put(resource, rules)
        self.forget()
        _tell("new", self.table.of(resource) - before)
        _tell("removed", before - self.table.of(resource))

    def forget(self) -> None:
        """Remember no decision."""
        self.rights.clear()
        self._decisions = 0

    def make_room(self) -> None:
        """For another decision that is remembered. If there are too many, all are forgotten."""
        self._decisions += 1
        if self._decisions > DECISIONS_MAX:
            self.forget()

    # ------------------------------------------------------------------ questions

    def is_super(self, principal: str) -> bool:
        """Whether the principal may do everything, whatever the rules say."""
        return principal in self._super_users

    def rights_of(self, principal: str, client_host: str) -> Rights:
        """What a principal may do from an address ("/127.0.0.1"), for one request."""
        return self.rights[principal, client_host]

    def decide(self, principal: str, host: str, operation: AclOperation, type: ResourceType, name: str) -> Decision:
        """Whether the principal may do it, and why."""
        if self.is_super(principal):
            return Decision(True, None, "the principal is one of super.users")
        return self.table.decide(principal, host, operation, type, name)

    # ------------------------------------------------------------------ changes

    async def add(self, rules: Sequence[Acl]) -> None:
        """Add rules. CoordinationError if the tree does not answer, or others change it all the time."""
        new_of: dict[Resource, set[Acl]] = {}
        for rule in rules:
            new_of.setdefault(rule.resource, set()).add(rule)
        for resource, new in new_of.items():
            await self._change(resource, lambda there, new=new: there | new)  # type: ignore[misc]

    async def remove(self, wanted: AclFilter) -> list[Acl]:
        """Remove the rules that the filter finds; returns them."""
        pace = self._env.turns.pace()
        resources: dict[Resource, None] = {}
        for rule in list(self.table):
            await pace.rest()
            if wanted.finds(rule):
                resources[rule.resource] = None
        removed: list[Acl] = []
        for resource in resources:
            before = await self._change(resource, lambda there: {rule for rule in there if not wanted.finds(rule)})
            removed += sorted(rule for rule in before if wanted.finds(rule))
        return removed

    async def _change(self, resource: Resource, change: Callable[[set[Acl]], set[Acl]]) -> set[Acl]:
        """Write what `change` makes of a resource's rules; returns those that were there."""
        path = acl_nodes.path_of(resource)
        for _ in range(CHANGE_TRIES):
            there, version = await self._read(resource)
            before = set(there)
            after = change(before)
            if after != before:
                writes = [_writing(path, version, after)]
                if not await write_and_notify(self._coordination, writes, acl_nodes.notice(resource)):
                    fixed_ms, random_ms = CHANGE_BACKOFF_MS
                    await self._env.clock.sleep(fixed_ms + self._env.rng.random() * random_ms)
                    continue
            self._put(resource, sorted(after))
            return before
        raise CoordinationError(path, f"the access rules of {resource.name!r} are being changed by others all the time")


def _tell(what: str, rules: frozenset[Acl]) -> None:
    """Log which rules are new, or removed. Very many may come at once, and nobody waits for their lines."""
    for rule in nsmallest(TOLD_MAX, rules):
        logger.info("%s access rule: %s", what, rule)
    if len(rules) > TOLD_MAX:
        logger.info("%s access rules, %s more", what, f"{len(rules) - TOLD_MAX:,}")


def _writing(path: str, version: int, rules: set[Acl]) -> Operation:
    """The operation after which the node has these rules."""
    if not rules:
        return Delete(path, version)
    data = acl_nodes.encode(rules)
    return Create(path, data) if version < 0 else Set(path, data, version)


def super_users(text: str | None) -> frozenset[str]:
    """The principals of super.users, which stand between semicolons: a name may have a comma."""
    return frozenset(word.strip() for word in (text or "").split(";") if word.strip())
