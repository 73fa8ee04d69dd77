"""The check of access rules: those that are about nobody, or about nothing."""

from collections.abc import Iterator

from barnabas.cli.checks.facts import Facts, Settings
from barnabas.cli.checks.findings import Finding, Severity, check
from barnabas.cli.checks.security import listeners_of, of_listener
from barnabas.cluster.security.acls import ANONYMOUS, EVERYBODY, Acl, PatternType, Permission, ResourceType
from barnabas.config.settings import split_list

USER = "User:"


@check("access rules", "rules for users who cannot log in, or for topics that cannot exist")
def rules(facts: Facts) -> Iterator[Finding]:
    """A typing mistake allows, and denies, nothing."""
    known = _known(facts)
    for principal in dict.fromkeys(rule.principal for rule in facts.rules or ()):
        if not principal.startswith(USER):
            yield _finding(facts, principal, f"nobody is called so: users are, with {USER} before the name")
        elif known is not None and principal not in known:
            why = "all who log in have a password of SCRAM, and there is none of that name (barnabas users list)"
            yield _finding(facts, principal, why)
    for rule in facts.rules or ():
        resource = rule.resource
        is_literal = resource.pattern is PatternType.LITERAL and resource.name != "*"
        if resource.type is ResourceType.TOPIC and is_literal and "*" in resource.name:
            why = f"no topic can be called {resource.name}: --prefix makes a rule for all that begin so"
            yield _finding(facts, rule.principal, why, rule)


def _finding(facts: Facts, principal: str, why: str, rule: Acl | None = None) -> Finding:
    rules = [each for each in facts.rules or () if each.principal == principal] if rule is None else [rule]
    denies = any(each.permission is Permission.DENY for each in rules)
    return Finding(
        Severity.WARNING if denies else Severity.NOTE,
        f"rules for {principal}",
        f"they are about {'nobody' if rule is None else 'nothing'}: {rules[0]}",
        f"{why[0].upper()}{why[1:]}.",
        ("acls", "list", "--principal", principal),
    )


def _known(facts: Facts) -> set[str] | None:
    """All principals that somebody can be; None: that cannot be said, because others than brokers know users."""
    if facts.scram_users is None or not facts.settings:
        return None
    known = {EVERYBODY}
    for _, settings in facts.settings:
        listeners = listeners_of(settings)
        if listeners is None:
            return None
        for listener, protocol in listeners:
            of_it = _principals(settings, listener.name, protocol, facts.scram_users)
            if of_it is None:
                return None
            known |= of_it
    return known


def _principals(settings: Settings, listener: str, protocol: str, scram_users: frozenset[str]) -> set[str] | None:
    """Of one listener; None: of certificates, say, which only those know who sign them."""
    if protocol == "PLAINTEXT":
        return {ANONYMOUS}
    if protocol == "SSL":
        return {ANONYMOUS} if of_listener(settings, listener, "ssl.client.auth") in ("", "none") else None
    mechanisms = split_list(of_listener(settings, listener, "sasl.enabled.mechanisms"))
    if not mechanisms or not all(each.startswith("SCRAM-") for each in mechanisms):
        return None
    return {f"{USER}{name}" for name in scram_users}
