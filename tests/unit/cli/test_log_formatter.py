"""A line of the log is one line, and a bounded one, whatever clients have called their groups."""

import logging

from barnabas.cli.start import LOG_FORMAT, MESSAGE_CHARACTERS_MAX, LogFormatter


def line(message: str, *values: object) -> str:
    record = logging.LogRecord("barnabas.groups", logging.INFO, "", 0, message, values, None)
    return LogFormatter(LOG_FORMAT).format(record).split(": ", 1)[1]


def test_what_cannot_be_printed_is_escaped() -> None:
    assert line("group %s: empty", "a\nb\x1b[31mé") == "group a\\nb\\x1b[31mé: empty"


def test_a_message_is_cut() -> None:
    assert line("group %s", "x" * MESSAGE_CHARACTERS_MAX) == (
        "group " + "x" * (MESSAGE_CHARACTERS_MAX - 6) + f"... ({MESSAGE_CHARACTERS_MAX + 6:,} characters)"
    )
