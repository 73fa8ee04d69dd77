"""What all checks have found: the worst first, a bounded number of each, and what could not be asked.

Importing this fills the table of checks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from barnabas.cli.checks import access_rules, brokers, groups, security, settings, transactions  # noqa: F401
from barnabas.cli.checks.facts import Facts
from barnabas.cli.checks.findings import TABLE, Check, Finding, Needs, Severity, listed

OF_ITSELF = ("brokers", "tree", "logs", "disks", "failures")  # what a broker knows that is in no cluster


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check has found: the worst findings, and how many there are of each severity."""

    check: Check
    findings: Sequence[Finding]
    counts: Mapping[Severity, int]
    not_made: str | None  # why not, or where not

    @property
    def found(self) -> int:
        """How many findings there are."""
        return sum(self.counts.values())

    @property
    def left_out(self) -> int:
        """How many of them are not listed."""
        return self.found - len(self.findings)

    @property
    def worst(self) -> Severity | None:
        """The worst severity; None: nothing was found."""
        return max(self.counts, default=None)


def examine(facts: Facts, findings_max: int) -> list[Outcome]:
    """All checks, those with the worst findings first. Of each, at most `findings_max` findings."""
    why_not = {Needs.KAFKA: None, Needs.SETTINGS: untold(facts), Needs.HTTP: unasked(facts)}
    outside = in_no_cluster(facts)
    found = []
    for each in TABLE:
        is_made = outside is None or each.name in OF_ITSELF
        all_of_it = each.find(facts) if is_made else ()
        rows = sorted(all_of_it, key=lambda finding: (-finding.severity, finding.since_ms or facts.now_ms))
        not_made = outside if not is_made else why_not[each.needs]
        counts = Counter(finding.severity for finding in rows)
        found.append(Outcome(each, rows[:findings_max], counts, not_made))
    return sorted(found, key=lambda outcome: -1 if outcome.worst is None else outcome.worst, reverse=True)


def in_no_cluster(facts: Facts) -> str | None:
    """Why what brokers say of the cluster may be untrue: none of them is in it now. None: some are."""
    known = facts.healths
    if not known or len(known) < len(facts.living):
        return None
    if any(health["is_lease_held"] and health["why_not_registered"] is None for _, health in known):
        return None
    names = listed(str(broker.node_id) for broker, _ in known)
    are = f"broker {names} is" if len(known) == 1 else f"brokers {names} are"
    return f"{are} in no cluster now, and what is said of topics, settings and groups may be untrue"


def untold(facts: Facts) -> str | None:
    """Which brokers do not tell their settings; None: all that answer do."""
    return next((f"broker {broker.node_id}: {broker.untold}" for broker in facts.living if broker.untold), None)


def unasked(facts: Facts) -> str | None:
    """Which brokers could not be asked by HTTP; None: all could."""
    missing = [broker for broker in facts.living if broker.health is None]
    if not missing:
        return None
    if len(missing) == len(facts.living) and not any(broker.has_http for broker in missing):
        return "no broker has an HTTP API (Apache Kafka has none; Barnabas has none with http.listeners=none)"
    return "; ".join(f"broker {broker.node_id}: {broker.why_not or 'it does not answer'}" for broker in missing[:3])
