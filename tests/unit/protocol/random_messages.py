"""Messages with random values, of every class and version."""

import random
from pathlib import Path
from typing import Any

from barnabas.protocol import messages, records, schema
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Message
from barnabas.protocol.schema import NEWEST, Field, Structure

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def random_message(cls: type[Message], version: int, rng: random.Random) -> Message:
    """All fields of that version set to something, everything else left at its default."""
    flexible = version >= cls.SCHEMA.flexible_since
    message: Message = _structure(cls, cls, cls.SCHEMA.root, version, flexible, rng)
    return message


def _structure(message: Any, cls: Any, structure: Structure, version: int, flexible: bool, rng: random.Random) -> Any:
    values = {
        field.name: _value(message, field, version, flexible, rng) for field in structure.fields if field.is_in(version)
    }
    if flexible and rng.random() < 0.3:
        values["unknown_tagged_fields"] = {100: b"", 5000: rng.randbytes(3)}
    return cls(**values)


def _value(message: Any, field: Field, version: int, flexible: bool, rng: random.Random) -> Any:
    if field.is_nullable(version) and rng.random() < 0.3:
        return None
    if field.array:
        element = Field(field.name, field.type, (0, NEWEST))
        element.structure = field.structure
        count = rng.choice((0, 1, 2, 3, 130)) if field.structure is None else rng.randrange(3)
        return [_value(message, element, version, flexible, rng) for _ in range(count)]
    if field.structure is not None:
        return _structure(message, getattr(message, field.type), field.structure, version, flexible, rng)
    if field.type == "bool":
        return rng.random() < 0.5
    if field.type == "float64":
        return rng.random()
    if field.type == "string":
        return rng.choice(("", "a", "é€😀", "x" * 126, "x" * 127, "x" * 300))
    if field.type == "bytes":
        return rng.randbytes(rng.choice((0, 1, 127, 200)))
    if field.type == "records":
        return memoryview(rng.randbytes(rng.choice((0, 1, 200, 9000))))
    if field.type == "uuid":
        return rng.randbytes(16)
    if field.type in ("uint16", "uint32"):
        return rng.getrandbits(int(field.type[4:]))
    bits = BITS[field.type]
    return rng.choice((0, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))))


SCHEMAS = Path(messages.__file__).parent / "schemas"
RECORD_FILES = sorted((SCHEMAS / "records").glob("*.txt"))
KEYS = [key for key in ApiKey if (SCHEMAS / f"{key.name.lower()}.txt").exists()]


def record_classes() -> list[type[Message]]:
    names = [name for path in RECORD_FILES for name in schema.load(f"records/{path.stem}")]
    return [getattr(records, name) for name in names]


def all_classes() -> list[type[Message]]:
    apis = [cls(key) for key in KEYS for cls in (messages.request_class, messages.response_class)]
    return [*apis, *record_classes()]


def versions(cls: type[Message]) -> range:
    return range(cls.SCHEMA.versions[0], cls.SCHEMA.versions[1] + 1)
