"""AlterConfigs and IncrementalAlterConfigs as functions from settings to settings. Nothing is stored here."""

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum

from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import ConfigError, Table, Type
from barnabas.protocol.errors import ErrorCode


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs does with a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def replaced(entries: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """AlterConfigs: all settings of a resource after it. The resource's `validate` says whether they are allowed.

    ConfigError for a name given twice or a null value.
    """
    pairs = list(entries)
    _check_request(pairs, [name for name, value in pairs if value is None])
    return {name: value for name, value in pairs if value is not None}


def altered(
    settings: Table, current: Mapping[str, str], operations: Iterable[tuple[str, int, str | None]]
) -> dict[str, str]:
    """IncrementalAlterConfigs: all settings of a resource after it, in the order set. `current` stays as it is.

    Appending leaves out words already there; a list that is not set counts as its default. ConfigError when a
    name is given twice, a value is missing, an operation is unknown, or a list operation meets another type.
    """
    rows = list(operations)
    check_operations(rows)
    result = dict(current)
    for name, operation, value in rows:
        if operation == ConfigOperation.DELETE:
            result.pop(name, None)
            continue
        assert value is not None
        if operation == ConfigOperation.SET:
            result[name] = value
        elif operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            setting = settings.get(name)
            if setting is None or setting.type is not Type.LIST:
                raise _no_list(settings, name, ConfigOperation(operation).name)
            words = [word for word in result.get(name, setting.default or "").split(",") if word]
            result[name] = ",".join(_changed_words(words, _words(value), append=operation == ConfigOperation.APPEND))
        else:  # Kafka fails inside its own code here, and says no more than this
            raise ConfigError("", key=name, error=ErrorCode.UNKNOWN_SERVER_ERROR)
    return result


def check_operations(operations: Collection[tuple[str, int, str | None]]) -> None:
    """What is looked at first, whatever the resource is. ConfigError: a name is given twice, or a value is missing."""
    _check_request(
        [(name, value) for name, _, value in operations],
        [name for name, operation, value in operations if value is None and operation != ConfigOperation.DELETE],
    )


def _no_list(settings: Table, name: str, verb: str) -> ConfigError:
    if settings is BROKER_SETTINGS:  # Kafka words this error in two ways
        return ConfigError(f"Config value {verb.lower()} is not allowed for config key: {name}", key=name)
    return ConfigError(f"Can't {verb} to key {name} because its type is not LIST.", key=name)


def _check_request(pairs: list[tuple[str, str | None]], without_value: list[str]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ConfigError("Error due to duplicate config keys", error=ErrorCode.INVALID_REQUEST)
    if without_value:
        message = f"Null value not supported for : {','.join(without_value)}"
        raise ConfigError(message, key=without_value[0], error=ErrorCode.INVALID_REQUEST)


def _words(text: str) -> list[str]:
    """As Java splits: no empty words at the end, but of an empty text one, which hardly any list may have."""
    whole = text.rstrip(",")
    return whole.split(",") if whole or not text else []


def _changed_words(words: list[str], others: list[str], *, append: bool) -> list[str]:
    if append:
        return [*words, *(word for word in dict.fromkeys(others) if word not in words)]
    left = list(words)
    for word in others:
        if word in left:
            left.remove(word)
    return left
