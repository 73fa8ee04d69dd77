"""A setting says that it does something exactly when something reads it."""

import ast
from pathlib import Path

import pytest
from barnabas.config import broker_settings
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import Setting
from barnabas.config.tls import TlsSettings
from barnabas.config.topic import BROKER_NAMES, TOPIC_SETTINGS

PACKAGE = Path(broker_settings.__file__).parents[1]
NOT_THE_BROKER = {"config"}  # the rules between settings are no use of them
# What is made of these in config/ itself is what the broker goes by.
READ_IN_CONFIG = {
    "advertised.listeners",
    "broker.id",
    "connections.max.reauth.ms",
    "controller.listener.names",
    "http.listeners",
    "inter.broker.listener.name",
    "internal.segment.bytes",
    "listener.security.protocol.map",
    "log.dir",
    "log.dirs",
    "process.roles",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "security.inter.broker.protocol",
    "sasl.login.callback.handler.class",
    *(f"ssl.allow.{which}.changes" for which in ("dn", "san")),
    "sasl.server.callback.handler.class",
    "sasl.oauthbearer.token.endpoint.url",
    *(f"sasl.oauthbearer.{name}" for name in ("clock.skew.seconds", "expected.audience", "expected.issuer")),
    *(f"sasl.oauthbearer.jwks.endpoint.{name}" for name in ("url", "refresh.ms")),
    *(f"sasl.oauthbearer.jwks.endpoint.retry.backoff.{name}" for name in ("ms", "max.ms")),
    *(f"sasl.oauthbearer.{name}.claim.name" for name in ("scope", "sub")),
    "zookeeper.sasl.jaas.config",
    *(f"ssl.{field.replace('_', '.')}" for field in TlsSettings._fields),
}


def attributes_read() -> set[str]:
    """Every `config.name` in the code of the broker's packages, where `config` is what holds the settings."""
    read = set()
    for package in (marker.parent for marker in PACKAGE.glob("*/py.typed")):
        if package.name not in NOT_THE_BROKER:
            for file in package.rglob("*.py"):
                read |= {
                    node.attr
                    for node in ast.walk(ast.parse(file.read_text()))
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_config(node.value)
                }
    return read


def is_config(node: ast.expr) -> bool:
    """Whether an expression is what the code calls the settings: `config`, `self._config`, `TopicConfig.of(…)`."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("BrokerConfig.of", "TopicConfig.of")
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("config", "_config")


READ = attributes_read()
TOPIC_SETTING_OF = {name: TOPIC_SETTINGS[key] for key, names in BROKER_NAMES.items() for name in names}


def is_read(setting: Setting) -> bool:
    used_as = [setting]
    if setting.name in BROKER_SETTINGS and setting.name in TOPIC_SETTING_OF:  # a topic's default is read as the topic's
        used_as.append(TOPIC_SETTING_OF[setting.name])
    return any(one.attribute in READ or one.name in READ_IN_CONFIG for one in used_as)


def test_only_the_settings_count_as_settings() -> None:
    code = "config.log_dirs, self._config.log_dirs, TopicConfig.of({}).log_dirs, partition.leader_epoch, make().host"
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute) and is_config(node.value)]
    assert [node.attr for node in found] == ["log_dirs"] * 3


@pytest.mark.parametrize("table", [BROKER_SETTINGS, TOPIC_SETTINGS], ids=["broker", "topic"])
def test_what_a_setting_says_it_does(table: dict[str, Setting]) -> None:
    assert [name for name, setting in table.items() if setting.has_effect and not is_read(setting)] == []
    assert [name for name, setting in table.items() if is_read(setting) and not setting.has_effect] == []
