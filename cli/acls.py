"""`barnabas acls`: list, add, remove, explain the access rules of a cluster."""

import shlex
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import admin, answered, reason, result_of
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.kafka_python import send
from barnabas.cli.shared.options import Names
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, Yes, confirm, new_app, print_found, print_json, print_outcomes
from barnabas.cluster.security.acls import (
    CLUSTER_NAME,
    EVERYWHERE,
    OPERATIONS_OF,
    Acl,
    AclFilter,
    AclOperation,
    AclTable,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)
from barnabas.config.addresses import is_address

app = new_app("""Who may do what: list, add, remove and explain access rules.

    \b
    barnabas acls list
    barnabas acls add User:alice read topic orders
    barnabas acls add User:alice read group app- --prefix
    barnabas acls remove User:alice read topic orders
    barnabas acls explain User:alice write topic orders
    """)

ANY = 1  # of every kind in a filter
FIRST_VERSION_WITH_PATTERNS = 1
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Asked(Names):
    """What somebody may do, or may not."""

    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="User:NAME; User:* is everybody.")]
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="read, write, create, delete, alter, describe, all, …")
    ]
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="topic, group, cluster, transactional-id, delegation-token or user.")
    ]
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The resource's name; '*' means all. A cluster needs none.")
    ] = ""
    prefix = False
    deny = False
    host = EVERYWHERE

    def rules(self) -> list[Acl]:
        """The rules that the arguments name, one for each operation."""
        type = _kind(self.kind)
        name = self.name or (CLUSTER_NAME if type is ResourceType.CLUSTER else "")
        if not name:
            fail(f"name the {_word(type)}, or '*' for all of them.", ExitCode.NOT_VALID)
        if not self.principal.partition(":")[2]:
            fail(f"a principal is written as User:NAME, not {self.principal!r}.", ExitCode.NOT_VALID)
        known = {_word(each): each for each in (AclOperation.ALL, *OPERATIONS_OF[type])}
        resource = Resource(type, name, PatternType.PREFIXED if self.prefix else PatternType.LITERAL)
        permission = Permission.DENY if self.deny else Permission.ALLOW
        rules = []
        for word in self.operation.split(","):
            operation = known.get(word.strip().lower().replace("_", "-"))
            if operation is None:
                fail(f"a {_word(type)} has {', '.join(known)}: not {word!r}.", ExitCode.NOT_VALID)
            rules.append(Acl(resource, self.principal, self.host, operation, permission))
        return rules


@dataclass(frozen=True, kw_only=True)
class Written(Asked):
    """The rules that are added or removed."""

    prefix: Annotated[bool, typer.Option("--prefix", help="For all resources whose names begin with it.")] = False
    deny: Annotated[
        bool, typer.Option("--deny", help="Deny instead of allow; a deny rule overrides all allow rules.")
    ] = False
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Only from this address.")] = EVERYWHERE


@app.command("list")
def list_rules(
    target: Target,
    principal: Annotated[str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only its rules.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only for such resources.")] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Only rules that apply to it, prefixes included."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The rules.

    \b
    barnabas acls list
    barnabas acls list --principal User:alice
    barnabas acls list --kind topic --name orders
    """
    wanted = AclFilter(
        type=ResourceType.ANY if kind is None else _kind(kind),
        name=name,
        pattern=PatternType.ANY if name is None else PatternType.MATCH,
        principal=principal,
    )
    with admin(target) as client:
        rows = [_row(rule) for rule in described_rules(client, wanted)]
    names = ("principal", "host", "permission", "operation", "kind", "pattern", "name")
    print_found(rows, {name: name for name in names}, as_json, "there are no such rules.")


@app.command()
def add(written: Written, target: Target, as_json: AsJson = False) -> None:
    """Allow something, or deny it with --deny. Several operations: with commas.

    \b
    barnabas acls add User:alice read,describe topic orders
    barnabas acls add User:alice read group app- --prefix
    barnabas acls add User:ops alter cluster
    barnabas acls add User:* write topic audit --deny
    """
    from kafka.protocol.admin import CreateAclsRequest

    host, name = written.host, written.name
    if host != EVERYWHERE and not is_address(host):
        fail(f"a rule is for an address, not for a name or a network: nobody comes from {host!r}.", ExitCode.NOT_VALID)
    if not written.principal.startswith("User:"):
        fail(f"a principal is written as User:NAME, not {written.principal!r}.", ExitCode.NOT_VALID)
    if "*" in name and name != "*" and _kind(written.kind) is ResourceType.TOPIC:
        start = f"{shlex.quote(name.partition('*')[0])} --prefix"
        fail(f"no topic can be called {name}: all that begin so are named by {start}.", ExitCode.NOT_VALID)
    rules = written.rules()
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=int(rule.resource.type),
            resource_name=rule.resource.name,
            resource_pattern_type=int(rule.resource.pattern),
            principal=rule.principal,
            host=rule.host,
            operation=int(rule.operation),
            permission_type=int(rule.permission),
        )
        for rule in rules
    ]
    with admin(target) as client:
        request = CreateAclsRequest(creations=creations, min_version=FIRST_VERSION_WITH_PATTERNS)
        results = answered(client, lambda: send(client, request)).results
    outcomes = [
        {"rule": str(rule), **result_of("added", each.error_code, each.error_message, "alter cluster")}
        for rule, each in zip(rules, results, strict=True)
    ]
    print_outcomes("rule", outcomes, as_json)


@app.command()
def remove(written: Written, target: Target, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove rules, named as they were added.

    \b
    barnabas acls remove User:alice read topic orders --yes
    barnabas acls remove User:* write topic audit --deny
    """
    from kafka.protocol.admin import DeleteAclsRequest

    rules = written.rules()
    confirm(f"Remove {'; '.join(map(str, rules))}?", yes)
    filters = [
        DeleteAclsRequest.DeleteAclsFilter(
            **_filter(*rule.resource, rule.principal, rule.host, rule.operation, rule.permission)
        )
        for rule in rules
    ]
    with admin(target) as client:
        request = DeleteAclsRequest(filters=filters, min_version=FIRST_VERSION_WITH_PATTERNS)
        results = answered(client, lambda: send(client, request)).filter_results
    outcomes = []
    for rule, result in zip(rules, results, strict=True):
        row = {"rule": str(rule)} | result_of("removed", result.error_code, result.error_message, "alter cluster")
        if not result.error_code and not result.matching_acls:
            row |= {"result": "not removed", "error": "there is no such rule (barnabas acls list)"}
        outcomes.append(row)
    nothing_there = all(not result.matching_acls and not result.error_code for result in results)
    print_outcomes("rule", outcomes, as_json, nothing_there=nothing_there)


@app.command()
def explain(
    asked: Asked,
    target: Target,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help=f"The address it comes from; else {LOOPBACK}.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Whether a principal may do something, by which rule, and what would allow it. Exit code 1: it may not.

    \b
    barnabas acls explain User:alice read topic orders
    barnabas acls explain User:alice describe cluster
    """
    if host is not None and not is_address(host):
        fail(f"a client comes from an address: nobody comes from {host!r}.", ExitCode.NOT_VALID)
    rule, *others = asked.rules()
    if others:
        fail(f"ask for one operation at a time, not for {asked.operation!r}.", ExitCode.NOT_VALID)
    with admin(target) as client:
        rules = described_rules(client, AclFilter())
    table = AclTable()
    for resource, of_it in groupby(sorted(rules), attrgetter("resource")):
        table.put(resource, of_it)
    type, name = rule.resource.type, rule.resource.name
    decision = table.decide(rule.principal, host or LOOPBACK, rule.operation, type, name)
    verb = "may" if decision.allowed else "may not"
    said = f"{rule.principal} {verb} {_word(rule.operation)} {_word(type)} {name}: {decision}"
    advice = None
    if not decision.allowed and decision.rule is None:
        advice = f"barnabas acls add {_as_words(rule._replace(host=host or EVERYWHERE))}"
        said += ". (Brokers do not tell who is one of super.users, and may do everything.)"
    elif not decision.allowed and decision.rule is not None:
        advice = f"barnabas acls remove {_as_words(decision.rule)}"
    if as_json:
        decided_by = None if decision.rule is None else _row(decision.rule)
        print_json({"allowed": decision.allowed, "why": decision.why, "rule": decided_by, "command": advice})
    else:
        print(said + ("" if advice is None else f"\nThis changes it: {advice}"), flush=True)
    raise typer.Exit(ExitCode.DONE if decision.allowed else ExitCode.FAILED)


# ------------------------------------------------------------------ words


def _kind(text: str) -> ResourceType:
    kinds = {_word(each): each for each in OPERATIONS_OF}
    found = kinds.get(text.lower().replace("_", "-"))
    if found is None:
        fail(f"a rule is for one of {', '.join(kinds)}: not for {text!r}.", ExitCode.NOT_VALID)
    return found


def _word(value: AclOperation | ResourceType | PatternType | Permission) -> str:
    return value.name.lower().replace("_", "-")


def _as_words(rule: Acl) -> str:
    """The arguments of `add` and `remove` for a rule."""
    words = [rule.principal, _word(rule.operation), _word(rule.resource.type), rule.resource.name]
    words += ["--prefix"] if rule.resource.pattern is PatternType.PREFIXED else []
    words += ["--deny"] if rule.permission is Permission.DENY else []
    words += ["--host", rule.host] if rule.host != EVERYWHERE else []
    return shlex.join(words)


def _row(rule: Acl) -> dict[str, str]:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "permission": _word(rule.permission),
        "operation": _word(rule.operation),
        "kind": _word(rule.resource.type),
        "pattern": _word(rule.resource.pattern),
        "name": rule.resource.name,
    }


def _filter(
    type: ResourceType,
    name: str | None,
    pattern: PatternType,
    principal: str | None,
    host: str | None = None,
    operation: int = ANY,
    permission: int = ANY,
) -> dict[str, Any]:
    """The fields of a filter, as DescribeAcls and DeleteAcls have them."""
    return {
        "resource_type_filter": int(type),
        "resource_name_filter": name,
        "pattern_type_filter": int(pattern),
        "principal_filter": principal,
        "host_filter": host,
        "operation": int(operation),
        "permission_type": int(permission),
    }


def described_rules(client: Any, wanted: AclFilter) -> list[Acl]:
    """The rules of the cluster that match the filter."""
    from kafka.protocol.admin import DescribeAclsRequest

    fields = _filter(wanted.type, wanted.name, wanted.pattern, wanted.principal)
    request = DescribeAclsRequest(**fields, min_version=FIRST_VERSION_WITH_PATTERNS)
    answer = answered(client, lambda: send(client, request))
    if answer.error_code:
        fail(f"the rules cannot be listed: {reason(answer.error_code, answer.error_message, 'describe cluster')}")
    return [
        Acl(
            Resource(ResourceType(row.resource_type), row.resource_name, PatternType(row.pattern_type)),
            rule.principal,
            rule.host,
            AclOperation(rule.operation),
            Permission(rule.permission_type),
        )
        for row in answer.resources
        for rule in row.acls
    ]
