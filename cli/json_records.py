"""Records as lines of JSON: what `consume --format json` prints, and `produce --format json` takes.

    {"partition": 0, "timestamp": 1700000000000, "key": "k", "value": "v", "headers": [{"name": "h", "value": "x"}]}

Only `value` is needed; null is a record without a value, which deletes its key in a compacted topic. A value that is no
text is sent in the very characters of the line (`{"value": {"price": 1.10}}` sends `{"price": 1.10}`), and so are keys
and values of headers. What is not UTF-8 has another name: `key_base64`, `value_base64`. A timestamp of -1 is none.
`topic` and `offset`, which `consume` prints, say where a record was, and are passed over.
"""

import base64
import binascii
from typing import Any

from barnabas.cli.shared.exits import fail
from barnabas.cli.shared.kafka_python import NO_VALUE
from barnabas.cli.shared.terminal import INT32_MAX, INT64_MAX
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime import strict_json

TAKEN = {"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp"}
PASSED_OVER = {"topic", "offset"}


class JsonRecord(NamedTuple):
    """What a line says. None: it says nothing of it; a key and a value may be null as well."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    partition: int | None
    timestamp: int | None


def read(line: bytes, number: int) -> JsonRecord:
    """The record of a line. What cannot be one ends the command with the number of the line."""
    try:
        text = line.decode("utf-8-sig")
        fields = strict_json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        texts = strict_json.members(text)
        if unknown := sorted(fields.keys() - TAKEN - PASSED_OVER):
            raise ValueError(f"there is no field {unknown[0]!r}; there is {', '.join(sorted(TAKEN))}")
        if "value" not in fields and "value_base64" not in fields:
            raise ValueError("it has no value; null is one")
        record = JsonRecord(
            _bytes(fields, texts, "key"),
            _bytes(fields, texts, "value"),
            None if fields.get("headers") is None else _headers(fields["headers"], texts["headers"]),
            _number(fields, "partition", 0, INT32_MAX),
            _number(fields, "timestamp", -1, INT64_MAX),
        )
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 that cannot be read are ValueErrors
        fail(f"line {number} is no record: {error}.")
    return record


def _bytes(fields: dict[str, Any], texts: dict[str, str], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        if name in fields:
            raise ValueError(f"{name} and {name}_base64 exclude each other")
        try:
            return base64.b64decode(fields[f"{name}_base64"], validate=True)
        except (TypeError, binascii.Error):
            raise ValueError(f"{name}_base64 is no base64") from None
    value = fields.get(name)
    if value is None:
        return None
    return _encoded(value if isinstance(value, str) else texts[name], name)


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} has half of a surrogate pair, which is no character") from None


def _headers(headers: Any, text: str) -> list[tuple[str, bytes]]:
    """From `[{"name": "a", "value": "1"}]`, in which a name may be there twice, or from `{"a": "1"}`."""
    if isinstance(headers, dict):
        rows = [({"value": headers[name]}, {"value": value}, name) for name, value in strict_json.members(text).items()]
    elif isinstance(headers, list) and all(
        isinstance(row, dict) and isinstance(row.get("name"), str) and row.keys() <= {"name", "value", "value_base64"}
        for row in headers
    ):
        each = zip(headers, strict_json.items(text), strict=True)
        rows = [(row, strict_json.members(one), row["name"]) for row, one in each]
    else:
        raise ValueError('headers are [{"name": "a", "value": "1"}] or {"a": "1"}')
    found = []
    for row, texts, name in rows:
        _encoded(name, "the name of a header")
        value = _bytes(row, texts, "value")
        found.append((name, NO_VALUE if value is None else value))
    return found


def _number(fields: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = fields.get(name)
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise ValueError(f"{name} is a whole number from {least} to {most}, not {value!r}")
    return value


def written(record: Any) -> dict[str, Any]:
    """A record of kafka-python's consumer, as a line has it."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text(record.key, "key"),
        **_text(record.value, "value"),
        "headers": [{"name": name, **_text(value, "value")} for name, value in record.headers],
    }


def _text(value: bytes | None, name: str) -> dict[str, str | None]:
    """A key or value: as text under `name`, or as base64 under another name if it is not UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
