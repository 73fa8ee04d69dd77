"""Access control lists: their words, which rule decides, and which rules a filter finds. Pure.

The rules are those of Kafka's authorizers. A rule is for a resource by its name, for all of its type (`*`), or for all
whose names begin with a prefix. A rule that denies is stronger than all that allow. Who may read, write, delete or
alter something may describe it, and who may alter settings may describe them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum

from barnabas.config.addresses import is_same
from barnabas.protocol.named_tuple import NamedTuple

ANONYMOUS = "User:ANONYMOUS"
EVERYBODY = "User:*"
THIS_BROKER = "Broker:itself"  # the principal of what a broker asks itself; no client can have it
EVERYWHERE = ANY_NAME = "*"
NO_NAME = ""  # which only rules for all are about
CLUSTER_NAME = "kafka-cluster"
NAME_CHARACTERS_MAX = 250  # of a name that a client chose and the broker remembers; those of topics have no more


class ResourceType(IntEnum):
    """What a rule is about, by its number in requests."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a rule's resource is meant. ANY and MATCH are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What is done with a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether a rule allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


# Rules that allow the key also if they name one of these operations.
IMPLIED_BY: Mapping[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
# The operations that a resource of a type has (KIP-430 tells clients which of them they may do).
OPERATIONS_OF: Mapping[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        *(AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER),
        *(AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
    ),
    ResourceType.GROUP: (
        *(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS),
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        *(AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION),
        *(AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.IDEMPOTENT_WRITE),
    ),
    ResourceType.TRANSACTIONAL_ID: (*(AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT),),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}


class Resource(NamedTuple):
    """What a rule is for."""

    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL


class Acl(NamedTuple):
    """One rule. `host` is an address, or `*`."""

    resource: Resource
    principal: str
    host: str
    operation: AclOperation
    permission: Permission

    def is_about(self, principal: str, host: str) -> bool:
        """Whether it is for this principal at this host."""
        return self.principal in (principal, EVERYBODY) and (self.host == EVERYWHERE or is_same(self.host, host))

    def __str__(self) -> str:
        resource = self.resource
        prefixed = "prefix " if resource.pattern is PatternType.PREFIXED else ""
        verb = "may" if self.permission is Permission.ALLOW else "may not"
        where = "" if self.host == EVERYWHERE else f" from {self.host}"
        return (
            f"{self.principal}{where} {verb} {words(self.operation)} {words(resource.type)} {prefixed}{resource.name}"
        )


class Decision(NamedTuple):
    """Whether something is allowed, and why: by a rule, or (None) by what `why` says."""

    allowed: bool
    rule: Acl | None
    why: str

    def __str__(self) -> str:
        return self.why if self.rule is None else f"{self.why}: {self.rule}"


class AclFilter(NamedTuple):
    """Which rules are meant. None, and ANY of each kind, mean all."""

    type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY

    def finds(self, acl: Acl) -> bool:
        """Whether the rule is meant."""
        resource = acl.resource
        return (
            self.type in (ResourceType.ANY, resource.type)
            and self._finds_name(resource)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _finds_name(self, resource: Resource) -> bool:
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, resource.pattern):
            return False
        if self.name is None or self.name == resource.name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        if resource.pattern is PatternType.PREFIXED:
            return self.name.startswith(resource.name)
        return resource.name == ANY_NAME


def words(value: IntEnum) -> str:
    """A word of these tables as people write it: transactional id."""
    return value.name.lower().replace("_", " ")


class AclTable:
    """All rules, by what they are for."""

    def __init__(self, *, allow_without_rules: bool = False) -> None:
        """`allow_without_rules`: what nobody has rules for."""
        self._allow_without_rules = allow_without_rules
        self._rules: dict[Resource, frozenset[Acl]] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {}  # of how many resources each

    def __iter__(self) -> Iterator[Acl]:
        for resource in sorted(self._rules):
            yield from sorted(self._rules[resource])

    def of(self, resource: Resource) -> frozenset[Acl]:
        """The rules for exactly this."""
        return self._rules.get(resource, frozenset())

    @property
    def resources(self) -> list[Resource]:
        return list(self._rules)

    def put(self, resource: Resource, rules: Iterable[Acl]) -> None:
        """These are the rules for it from now on."""
        kept, had_rules = frozenset(rules), resource in self._rules
        if kept:
            self._rules[resource] = kept
        else:
            self._rules.pop(resource, None)
        if resource.pattern is PatternType.PREFIXED and had_rules != bool(kept):
            lengths, length = self._prefix_lengths.setdefault(resource.type, Counter()), len(resource.name)
            lengths[length] += -1 if had_rules else 1
            if not lengths[length]:
                del lengths[length]

    def matching(self, type: ResourceType, name: str) -> Iterator[Acl]:
        """All rules that are about the resource of this name."""
        rules = self._rules
        yield from rules.get(Resource(type, name), ())
        yield from rules.get(Resource(type, ANY_NAME), ()) if name != ANY_NAME else ()
        for length in self._prefix_lengths.get(type, ()):
            if length <= len(name):
                yield from rules.get(Resource(type, name[:length], PatternType.PREFIXED), ())

    def decide(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        type: ResourceType,
        name: str,
    ) -> Decision:
        """Whether the principal may do it, and by which rule."""
        allowing: Acl | None = None
        has_rules = False
        allowed_by = {operation, AclOperation.ALL, *IMPLIED_BY.get(operation, ())}
        for rule in self.matching(type, name):
            has_rules = True
            if not rule.is_about(principal, host):
                continue
            if rule.permission is Permission.DENY:
                if rule.operation in (operation, AclOperation.ALL):
                    return Decision(False, rule, "a rule denies it")
            elif rule.operation in allowed_by:
                allowing = rule
        if allowing is not None:
            return Decision(True, allowing, "a rule allows it")
        if not has_rules and self._allow_without_rules:
            return Decision(True, None, "nobody has rules for it (allow.everyone.if.no.acl.found=true)")
        return Decision(False, None, "no rule allows it")

    def allows_on_all(self, principal: str, host: str, operation: AclOperation, type: ResourceType) -> bool:
        """Whether the principal may do it with every resource of the type: a rule allows it with all, and none denies
        it with some."""

        def allows(name: str) -> bool:
            return self.decide(principal, host, operation, type, name).allowed

        return allows(NO_NAME) and all(
            allows(resource.name)
            for resource, rules in self._rules.items()
            if resource.type is type
            and (self._allow_without_rules or any(rule.permission is Permission.DENY for rule in rules))
        )

    def allows_on_any(self, principal: str, host: str, operation: AclOperation, type: ResourceType) -> bool:
        """Whether there is, or may come, a resource of the type with which the principal may do it."""
        if self.decide(principal, host, operation, type, NO_NAME).allowed:
            return True  # by a rule for all, or because nobody has one
        mine = [
            rule
            for resource, rules in self._rules.items()
            if resource.type is type
            for rule in rules
            if rule.is_about(principal, host) and rule.operation in (operation, AclOperation.ALL)
        ]
        denied = {rule.resource for rule in mine if rule.permission is Permission.DENY}
        if Resource(type, ANY_NAME) in denied:
            return False
        prefixes = tuple(each.name for each in denied if each.pattern is PatternType.PREFIXED)
        return any(
            rule.permission is Permission.ALLOW
            and (rule.resource == Resource(type, ANY_NAME) or not rule.resource.name.startswith(prefixes))
            and (rule.resource.pattern is PatternType.PREFIXED or rule.resource not in denied)
            for rule in mine
        )
