"""ssl.* settings: what is refused before a file is read, and users by the rules of ssl.principal.mapping.rules."""

import pytest
from barnabas.config.broker import BrokerConfig, problems
from barnabas.config.principal_rules import read_rules, user_of
from barnabas.config.tls import TlsSettings, settings_of

LISTENER = {"listeners": "SSL://127.0.0.1:9093", "ssl.keystore.location": "/k"}
ADAM = "CN=Adam,OU=ServiceUsers,O=x"
DUKE = "CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US"
NAMES = (ADAM, DUKE, "OU=JavaSoft,O=Sun", "CN=a", "CN=b\\,c,O=x")
LONG = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "users"),
    [
        ("DEFAULT", NAMES),
        (LONG, ("Adam", "duke@sme", "OU=JavaSoft,O=Sun", "a", "b")),
        ("RULE:^CN=(.*?),.*$/$1/U", ("ADAM", "DUKE", None, None, "B\\")),
        ("RULE:^CN=(.*?)$/$1$2x/", (f"{ADAM[3:]}$2x", f"{DUKE[3:]}$2x", None, "a$2x", "b\\,c,O=x$2x")),
        ("RULE:CN=a/b/", (None, None, None, "b", None)),
        ("RULE:(CN=)a.*/$1\\/z/L", (None, None, None, "cn=/z", None)),
        ("", (None,) * 5),
        ("RULE:^CN=([^,]*),?.*$/$1/, DEFAULT", ("Adam", "duke", "OU=JavaSoft,O=Sun", "a", "b\\")),
        ("RULE:CN/$1/", (None,) * 5),
        ("RULE:^CN=(?<n>.*?),.*$/${n}/", ("Adam", "duke", None, None, "b\\")),
        ("RULE:.*/\\$1/", ("$1$1",) * 5),
    ],
)
def test_users_are_those_that_kafka_makes(rules: str, users: tuple[str | None, ...]) -> None:
    """What the SslPrincipalMapper of Kafka 4.1.0 says of the same names."""
    read = read_rules(rules)
    assert tuple(user_of(read, name) for name in NAMES) == users


@pytest.mark.parametrize(
    "rules", ["RULE:^CN=(.*?)$/$1/X", "RULE:x", "default", "RULE:.*/b", "RULE:(/b/", "RULE:a/${n}/"]
)
def test_rules_that_cannot_be_read_refuse_the_start(rules: str) -> None:
    [problem] = problems(LISTENER | {"ssl.principal.mapping.rules": rules})
    assert problem.key == "ssl.principal.mapping.rules"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type"),
        ({"ssl.truststore.type": "WINDOWS-ROOT"}, "ssl.truststore.type"),
        ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols"),
        ({"ssl.enabled.protocols": ""}, "ssl.enabled.protocols"),
        ({"ssl.client.auth": "required"}, "ssl.client.auth"),
        ({"ssl.client.auth": "perhaps"}, "ssl.client.auth"),
        ({"listener.name.ssl.ssl.client.auth": "requested"}, "listener.name.ssl.ssl.client.auth"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "ssl.endpoint.identification.algorithm"),
        ({"ssl.engine.factory.class": "com.acme.Engine"}, "ssl.engine.factory.class"),
        (
            {"ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c", "ssl.keystore.type": "PEM"},
            "ssl.keystore.key",
        ),
        ({"ssl.truststore.certificates": "c"}, "ssl.truststore.type"),
    ],
)
def test_what_is_refused(values: dict[str, str], key: str) -> None:
    assert key in [problem.key for problem in problems(LISTENER | values)]


def test_a_listener_of_its_own_may_have_its_own_settings() -> None:
    config = BrokerConfig.of(
        {
            "listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2,USERS://127.0.0.1:3",
            "listener.security.protocol.map": "IN:SSL,OUT:SSL,USERS:SASL_SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "ssl.keystore.location": "/all",
            "ssl.truststore.location": "/trusted",
            "ssl.client.auth": "required",
            "listener.name.out.ssl.keystore.location": "/out",
            "listener.name.out.ssl.client.auth": "none",
        }
    )
    assert settings_of(config, "IN").keystore_location == "/all"
    assert settings_of(config, "IN").client_auth == "required"
    assert settings_of(config, "OUT").keystore_location == "/out"
    assert settings_of(config, "OUT").client_auth == "none"
    assert settings_of(config, "USERS").client_auth == "none"  # as in Kafka: with SASL only if it is said there
    assert config.without_effect() == []


def test_nothing_shows_its_passwords() -> None:
    assert "secret" not in repr(TlsSettings.of({"ssl.keystore.password": "secret"}.get))
