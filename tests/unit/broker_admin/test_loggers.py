"""Broker loggers as a resource."""

import logging
from collections.abc import Iterator

import pytest
from barnabas.broker import loggers
from barnabas.config.settings import ConfigError
from barnabas.protocol.errors import ErrorCode

NAME = "barnabas.test_loggers"
SET, DELETE, APPEND = 0, 1, 2


@pytest.fixture(autouse=True)
def own_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger(NAME)
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(logging.NOTSET)


def test_a_level_is_set_and_taken_back(own_logger: logging.Logger) -> None:
    loggers.apply([(NAME, SET, "DEBUG")])
    assert own_logger.level == logging.DEBUG
    assert [(row.name, row.value) for row in loggers.rows([NAME, "nobody"])] == [(NAME, "DEBUG")]
    loggers.apply([(NAME, DELETE, None)])
    assert own_logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ((NAME, SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        ((NAME, SET, None), ErrorCode.INVALID_REQUEST),
        (("barnabas.nobody", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        ((NAME, APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_done(operation: tuple[str, int, str | None], error: ErrorCode) -> None:
    with pytest.raises(ConfigError) as caught:
        loggers.check([operation])
    assert caught.value.error == error


def test_every_level_has_its_word() -> None:
    assert [loggers.level_name(level) for level in (1, 5, 10, 20, 30, 40, 50, 60)] == [
        "TRACE",
        "TRACE",
        "DEBUG",
        "INFO",
        "WARN",
        "ERROR",
        "FATAL",
        "FATAL",
    ]
