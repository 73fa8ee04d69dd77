"""broker_attributes.py is written from the table; running this file writes it anew."""

from pathlib import Path

from barnabas.config import broker_attributes
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import Type

PYTHON_TYPES = {Type.BOOLEAN: "bool", Type.DOUBLE: "float", Type.LIST: "tuple[str, ...]"}
PYTHON_TYPES.update(dict.fromkeys((Type.INT, Type.SHORT, Type.LONG), "int"))
CHECKED = ("group.streams.max.standby.replicas", "log.cleaner.threads")  # no effect, but others are compared with them
HEAD = '''"""The attributes of BrokerConfig with their types, written from the table in broker_settings.py by
tests/unit/config/test_broker_attributes.py, which also checks that they agree."""


class BrokerAttributes:
    """One attribute per broker setting that has an effect, dots as underscores; None where nothing is set."""

'''


def written() -> str:
    lines = []
    for setting in sorted(BROKER_SETTINGS.values(), key=lambda setting: setting.attribute):
        if not setting.has_effect and setting.name not in CHECKED:
            continue
        type_name = PYTHON_TYPES.get(setting.type, "str")
        optional = setting.default is None and setting.name != "node.id"  # BrokerConfig always knows its number
        lines.append(f"    {setting.attribute}: {type_name}{' | None' if optional else ''}\n")
    return HEAD + "".join(lines)


def test_every_setting_that_has_an_effect_has_its_typed_attribute() -> None:
    assert Path(broker_attributes.__file__).read_text() == written()


if __name__ == "__main__":
    Path(broker_attributes.__file__).write_text(written())
