"""How `consume` prints a record: its value, its details, as JSON, or as a text with fields."""

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from barnabas.cli.json_records import written
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.terminal import print_json

FIELDS: dict[str, Callable[[Any], bytes]] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp,
    "key": lambda record: b"null" if record.key is None else record.key,
    "value": lambda record: b"null" if record.value is None else record.value,
    "headers": lambda record: ",".join(f"{name}={_text(value)}" for name, value in record.headers).encode(),
}
ESCAPES = {"\\t": "\t", "\\n": "\n", "\\0": "\0", "\\\\": "\\"}

Printer = Callable[[Any], None]


def printer(form: str) -> Printer:
    """The function that prints a record in this form. One that names no field, or another one, ends the command."""
    named = {"value": _print_value, "details": _print_details, "json": lambda record: print_json(written(record))}
    found = named.get(form)
    if found is not None:
        return found
    pieces = re.split(r"\{(\w*)\}", form)
    names = pieces[1::2]
    if not names or any(name not in FIELDS for name in names):
        fields = ", ".join(f"{{{name}}}" for name in FIELDS)
        fail(f"--format is value, details, json, or a text with {fields}; not {form!r}.", ExitCode.NOT_VALID)
    texts = [os.fsencode(re.sub(r"\\.", lambda found: ESCAPES.get(found[0], found[0]), text)) for text in pieces[::2]]

    def show(record: Any) -> None:
        out = bytearray(texts[0])
        for name, text in zip(names, texts[1:], strict=True):
            out += FIELDS[name](record) + text
        sys.stdout.buffer.write(out + b"\n")

    return show


def _text(value: bytes | None) -> str:
    return "null" if value is None else value.decode("utf-8", "replace")


def _print_value(record: Any) -> None:
    sys.stdout.buffer.write(FIELDS["value"](record) + b"\n")


def _print_details(record: Any) -> None:
    print(
        f"{record.timestamp}\t{record.topic}-{record.partition}\t{record.offset}\t"
        f"{'-' if record.key is None else _text(record.key)}\t{FIELDS['headers'](record).decode() or '-'}\t"
        f"{_text(record.value)}"
    )
