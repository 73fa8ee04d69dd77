"""Access rules in the tree: which node holds the rules of a resource, and how its data is read. Pure.

Rules for a name, and for all names, are below `/kafka-acl`; those for prefixes below `/kafka-acl-extended/prefixed`.
These are the paths and bytes of Kafka's authorizer in ZooKeeper mode (KIP-290); names that no node can have are below
`/barnabas/acls`, encoded.
"""

from collections.abc import Iterable
from urllib.parse import unquote

from barnabas.cluster.security.acls import Acl, AclOperation, PatternType, Permission, Resource, ResourceType
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.payloads import AclRule
from barnabas.cluster.tree.port import Create

KEPT_TYPES = tuple(each for each in ResourceType if each > ResourceType.ANY)


def in_tree(value: AclOperation | Permission | ResourceType) -> str:
    """How the tree spells a word: ClusterAction."""
    return "".join(word.capitalize() for word in value.name.split("_"))


_TYPES = {in_tree(each): each for each in KEPT_TYPES}
_OPERATIONS = {in_tree(each): each for each in AclOperation if each > AclOperation.ANY}
_PERMISSIONS = {in_tree(each): each for each in (Permission.DENY, Permission.ALLOW)}

# (folder, pattern, what the name of a node means) of all folders of resources.
FOLDERS = (
    (paths.ACLS, PatternType.LITERAL, str),
    (f"{paths.EXTENDED_ACLS}/prefixed", PatternType.PREFIXED, str),
    (f"{paths.ODD_ACLS}/literal", PatternType.LITERAL, unquote),
    (f"{paths.ODD_ACLS}/prefixed", PatternType.PREFIXED, unquote),
)
# Made where they are missing by a broker that has an authorizer.
PERSISTENT = (
    *(f"{folder}/{name}" for folder, *_ in FOLDERS for name in _TYPES),
    paths.ACL_CHANGES,
    paths.EXTENDED_ACL_CHANGES,
)


def path_of(resource: Resource) -> str:
    """The node of a resource's rules."""
    return paths.acls(in_tree(resource.type), resource.name, prefixed=resource.pattern is PatternType.PREFIXED)


def decode(resource: Resource, data: bytes) -> list[Acl]:
    """The rules of a node. ValueError: it cannot be read, or it has words that are not known."""
    rules = []
    for row in payloads.decode_acls(data):
        try:
            operation, permission = _OPERATIONS[row.operation], _PERMISSIONS[row.permission_type]
        except KeyError as error:
            raise ValueError(f"there is no {error.args[0]!r} in access rules") from error
        rules.append(Acl(resource, row.principal, row.host, operation, permission))
    return rules


def encode(rules: Iterable[Acl]) -> bytes:
    """The data of a node."""
    return payloads.encode_acls(
        AclRule(rule.principal, in_tree(rule.permission), rule.host, in_tree(rule.operation)) for rule in sorted(rules)
    )


def notice(resource: Resource) -> Create:
    """The node that tells all brokers of a change."""
    if resource.pattern is PatternType.LITERAL:
        return Create(
            paths.ACL_CHANGE_PREFIX, payloads.encode_acl_change(resource.type.name, resource.name), sequential=True
        )
    data = payloads.encode_extended_acl_change(resource.type.name, resource.name, resource.pattern.name)
    return Create(paths.EXTENDED_ACL_CHANGE_PREFIX, data, sequential=True)


def of_notice(data: bytes) -> Resource:
    """The resource whose rules have changed. Brokers of old releases write its type as the tree spells it."""
    if data.startswith(b"{"):
        type_name, name, pattern = payloads.decode_extended_acl_change(data)
        return Resource(_type(type_name), name, PatternType[pattern.upper()])
    type_name, name = payloads.decode_acl_change(data)
    return Resource(_type(type_name), name)


def _type(name: str) -> ResourceType:
    found = _TYPES.get(name) or ResourceType.__members__.get(name.upper())
    if found not in KEPT_TYPES:
        raise ValueError(f"there are no access rules for {name!r}")
    return found
