"""A setting says that it does something exactly when something reads it."""

import ast
from pathlib import Path

import pytest
from barnabas.config import broker_settings
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import Setting
from barnabas.config.topic import BROKER_NAMES, TOPIC_SETTINGS

PACKAGE = Path(broker_settings.__file__).parents[1]
NOT_THE_BROKER = {"config", "sim"}  # the rules between settings are no use of them, and the simulator is no broker
# What is made of these in config/ itself is what the broker goes by.
READ_IN_CONFIG = {
    "advertised.listeners",
    "controller.listener.names",
    "internal.segment.bytes",
    "listener.security.protocol.map",
    "log.dir",
    "log.dirs",
    "process.roles",
}


def attributes_read() -> set[str]:
    """Every `.name` in the code of the broker's packages."""
    read = set()
    for package in (marker.parent for marker in PACKAGE.glob("*/py.typed")):
        if package.name not in NOT_THE_BROKER:
            for file in package.rglob("*.py"):
                read |= {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
    return read


READ = attributes_read()
TOPIC_SETTING_OF = {name: TOPIC_SETTINGS[key] for key, names in BROKER_NAMES.items() for name in names}


def is_read(setting: Setting) -> bool:
    used_as = [setting]
    if setting.name in BROKER_SETTINGS and setting.name in TOPIC_SETTING_OF:  # a topic's default is read as the topic's
        used_as.append(TOPIC_SETTING_OF[setting.name])
    return any(one.attribute in READ or one.name in READ_IN_CONFIG for one in used_as)


@pytest.mark.parametrize("table", [BROKER_SETTINGS, TOPIC_SETTINGS], ids=["broker", "topic"])
def test_what_a_setting_says_it_does(table: dict[str, Setting]) -> None:
    assert [name for name, setting in table.items() if setting.has_effect and not is_read(setting)] == []
    assert [name for name, setting in table.items() if is_read(setting) and not setting.has_effect] == []
