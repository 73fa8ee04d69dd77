"""Checks of who reaches a broker, and how: listeners that are open, weak settings, certificates that end."""

from collections.abc import Iterator

from barnabas.cli.checks.facts import DAY_MS, Facts, Settings
from barnabas.cli.checks.findings import Finding, Needs, Severity, check, listed
from barnabas.cli.checks.starting import start_again
from barnabas.cli.shared.words import duration
from barnabas.config.listeners import Endpoint, is_loopback, read_endpoints, security_protocols
from barnabas.config.oauth import KEYS_URL, OAUTHBEARER, Text, takes_signed
from barnabas.config.settings import ConfigError, split_list
from barnabas.runtime.grouped import grouped

ENDS_SOON_MS = 30 * DAY_MS
OLD_PROTOCOLS = ("TLSv1", "TLSv1.1")
CHECK_HOSTS = "ssl.endpoint.identification.algorithm"


def listeners_of(settings: Settings) -> list[tuple[Endpoint, str]] | None:
    """The listeners of a broker with their security protocols ("": it has none); None: they cannot be read."""
    try:
        protocols = security_protocols(settings.text("listener.security.protocol.map") or "")
        return [(each, protocols.get(each.name, "")) for each in read_endpoints(settings.text("listeners") or "")]
    except ConfigError:
        return None


def _outside(settings: Settings) -> list[tuple[Endpoint, str]]:
    """Those of them that other machines reach."""
    return [each for each in listeners_of(settings) or () if each[1] and not is_loopback(each[0].host)]


def of_listener(settings: Settings, listener: str, name: str) -> str:
    """The text of a setting for a listener; "": it is not set."""
    return settings.text(f"listener.name.{listener.lower()}.{name}") or settings.text(name) or ""


def _of_oauth(settings: Settings, listener: str) -> Text:
    return lambda name: (
        settings.text(f"listener.name.{listener.lower()}.oauthbearer.{name}")
        or of_listener(settings, listener, name)
        or None
    )


@check("open listeners", "listeners that other machines reach without a login, or without encryption", Needs.SETTINGS)
def open_listeners(facts: Facts) -> Iterator[Finding]:
    """Whoever reaches them may do everything; or hears passwords and records."""
    for broker, settings in facts.settings:
        has_rules = bool(settings.text("authorizer.class.name"))
        for listener, protocol in _outside(settings):
            knows = protocol.startswith("SASL_") or (
                protocol == "SSL" and of_listener(settings, listener.name, "ssl.client.auth") == "required"
            )
            if not knows and not has_rules:
                what = f"whoever reaches {listener} may read, write and delete everything"
                why = (
                    "It has no logins, and the broker has no access rules. On a network that only friends reach, "
                    "nothing is wrong. docs/security.md says how to begin; who turns rules on names super.users, too."
                )
                command = ("configs", "describe", "broker", str(broker.node_id), "authorizer.class.name", "--docs")
                yield Finding(Severity.WARNING, f"broker {broker.node_id}", what, why, command)
            enabled = split_list(of_listener(settings, listener.name, "sasl.enabled.mechanisms"))
            takes_tokens = protocol.startswith("SASL_") and OAUTHBEARER in enabled
            if takes_tokens and not takes_signed(_of_oauth(settings, listener.name)):
                what = f"{listener} takes tokens that nobody has signed: everybody can be anybody there"
                why = "It has OAUTHBEARER, and no place of the keys by which tokens are signed."
                command = ("configs", "describe", "broker", str(broker.node_id), KEYS_URL, "--docs")
                yield Finding(Severity.WARNING, f"broker {broker.node_id}", what, why, command)
            if protocol == "SASL_PLAINTEXT" and "PLAIN" in enabled:
                what = f"passwords cross the network as they are at {listener}"
                why = "It has PLAIN without TLS: make it SASL_SSL, or use SCRAM, whose users are made first."
                yield Finding(Severity.WARNING, f"broker {broker.node_id}", what, why, ("users", "list"))


@check("weak settings", "old versions of TLS, and host names that are not checked", Needs.SETTINGS)
def weak(facts: Facts) -> Iterator[Finding]:
    """What an attack in the middle of a connection would use."""
    for broker, settings in facts.settings:
        for listener, protocol in _outside(settings):
            if not protocol.endswith("SSL"):
                continue
            old = [
                each
                for each in split_list(of_listener(settings, listener.name, "ssl.enabled.protocols"))
                if each in OLD_PROTOCOLS
            ]
            if old:
                what = f"{listener} still speaks {' and '.join(old)}"
                why = "These versions are broken, and no client of the last ten years needs them."
                command = start_again(facts, broker, {"ssl.enabled.protocols": "TLSv1.2,TLSv1.3"})
                yield Finding(Severity.WARNING, f"broker {broker.node_id}", what, why, command)
        between = settings.text("inter.broker.listener.name") or settings.text("security.inter.broker.protocol") or ""
        of_brokers = [protocol for each, protocol in listeners_of(settings) or () if each.name == between.upper()]
        has_tls = any(protocol.endswith("SSL") for protocol in of_brokers)
        if has_tls and len(facts.brokers) > 1 and of_listener(settings, between, CHECK_HOSTS) == "":
            what = f"it does not check the host names of other brokers ({CHECK_HOSTS} is empty)"
            why = "Who has any certificate of your authority can stand between two brokers."
            command = start_again(facts, broker, {CHECK_HOSTS: "https"})
            yield Finding(Severity.WARNING, f"broker {broker.node_id}", what, why, command)


@check("files that others read", "whether only the broker's user can read the coordination tree", Needs.HTTP)
def files_that_others_read(facts: Facts) -> Iterator[Finding]:
    """It holds what passwords of users are checked by, and settings that are passwords."""
    for broker, health in facts.healths:
        for path in health["read_by_others"]:
            what = f"all users of its machine can read {path}"
            why = (
                "It may hold passwords: settings of key stores, say. Its owner can say `chmod 600`; the broker does "
                "so at each start, if the file is its user's."
            )
            command = ("configs", "describe", "broker", str(broker.node_id), "coordination.path")
            yield Finding(Severity.WARNING, f"broker {broker.node_id}", what, why, command)


UNREADABLE = {
    "users": "the passwords of user {} cannot be read: nobody can log in by them",
    "quotas": "the quotas of {} cannot be read: it has none",
    "acls": "the access rules for {} cannot be read: only super.users may do anything with it",
}


@check("unreadable", "users, quotas and access rules in the coordination tree that cannot be read", Needs.HTTP)
def unreadable(facts: Facts) -> Iterator[Finding]:
    """Somebody has written a node by hand. One finding for all brokers, because they have one tree."""
    rows = [(row["of"], row["name"]) for _, health in facts.healths for row in health["unreadable"]]
    for kind, name in dict.fromkeys(rows):
        what = UNREADABLE[kind].format(name)
        why = (
            "Somebody, or something else than a broker, has written its node in the coordination tree. The brokers' "
            "logs say what is wrong with it. Set it anew."
        )
        yield Finding(Severity.WARNING, "cluster", what, why, (kind, "list"))


@check("certificates", "certificates of brokers that end within 30 days", Needs.HTTP)
def certificates(facts: Facts) -> Iterator[Finding]:
    """Clients refuse a broker whose certificate has ended. The clock of the broker counts, as for all its settings."""
    for broker, health in facts.healths:
        # By when they end: most listeners have the same.
        listeners = grouped((row["ends_ms"], row["listener"]) for row in health["certificates"])
        for ends_ms, names in listeners.items():
            left_ms = ends_ms - health["time_ms"]
            if left_ms > ENDS_SOON_MS:
                continue
            yield Finding(
                Severity.ERROR if left_ms < DAY_MS else Severity.WARNING,
                f"broker {broker.node_id}",
                f"the certificate of listener {listed(names)} ends in {duration(max(left_ms, 0) / 1000)}",
                "Then no client that checks it connects any more. Put a new one into the file of "
                "ssl.keystore.location: the broker reads it within a second.",
                ("configs", "describe", "broker", str(broker.node_id), "ssl.keystore.location"),
            )
