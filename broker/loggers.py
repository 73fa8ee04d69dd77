"""Broker loggers as resources: the levels of this process's loggers under Kafka's names (KIP-412)."""

import logging
from collections.abc import Collection, Iterable

from barnabas.config.alter import ConfigOperation, check_operations
from barnabas.config.describe import UNKNOWN_TYPE, ConfigRow, ConfigSource
from barnabas.config.settings import ConfigError
from barnabas.protocol.errors import ErrorCode

ROOT = "root"
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def _names() -> list[str]:
    known = logging.Logger.manager.loggerDict
    return [ROOT, *sorted(name for name in known if name.partition(".")[0] == "barnabas")]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def level_name(level: int) -> str:
    """Kafka's name of a level, or of the nearest level below it."""
    return next((word for word, value in reversed(LEVELS.items()) if value <= level), "TRACE")


def rows(names: Collection[str] | None = None) -> list[ConfigRow]:
    """Every logger of the broker (or those named) with its level in force. Unknown names are left out."""
    return [
        ConfigRow(
            name,
            level_name(_logger(name).getEffectiveLevel()),
            False,
            ConfigSource.BROKER_LOGGER,
            False,
            (),
            UNKNOWN_TYPE,
            "",
        )
        for name in _names()
        if not names or name in names
    ]


def check(operations: Collection[tuple[str, int, str | None]]) -> None:
    """Raise ConfigError unless all operations (name, operation, value) can be done."""
    check_operations(operations)
    for name, operation, value in operations:
        if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            message = "A logger's level can be set and deleted only."
            raise ConfigError(message, key=name, error=ErrorCode.INVALID_REQUEST)
        if name not in _names():
            raise ConfigError(f"Logger {name} does not exist!", key=name)
        if operation == ConfigOperation.SET:
            if value not in LEVELS:
                raise ConfigError(f"{value} is no log level; one of {', '.join(LEVELS)}", key=name)
        elif name == ROOT:
            message = "The level of the root logger cannot be removed."
            raise ConfigError(message, key=name, error=ErrorCode.INVALID_REQUEST)


def apply(operations: Iterable[tuple[str, int, str | None]]) -> None:
    """Set levels; a level that is deleted is the parent logger's again. The next start forgets them, as in Kafka."""
    for name, operation, value in operations:
        if operation == ConfigOperation.SET:
            assert value is not None
            _logger(name).setLevel(LEVELS[value])
        else:
            _logger(name).setLevel(logging.NOTSET)
