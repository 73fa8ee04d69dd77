"""What fields a body has: JSON Schemas, which the OpenAPI document shows and request bodies are checked against.

An answer has every field that it declares; a field without a value is null. A body has no field that is not declared.
"""

from collections.abc import Iterable
from typing import Any

from barnabas.runtime.utf8 import is_utf8

Schema = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def _of(kind: str, meaning: str, nullable: bool, **more: Any) -> Schema:
    return {"type": [kind, "null"] if nullable else kind, "description": meaning, **more}


def text(meaning: str, *, one_of: Iterable[str] = (), nullable: bool = False) -> Schema:
    words = list(one_of)
    if not words:
        return _of("string", meaning, nullable)
    return _of("string", meaning, nullable, enum=[*words, None] if nullable else words)


def integer(meaning: str, *, nullable: bool = False, least: int | None = None, most: int | None = None) -> Schema:
    bounds = {"minimum": least, "maximum": most}
    return _of("integer", meaning, nullable) | {name: bound for name, bound in bounds.items() if bound is not None}


def number(meaning: str, *, nullable: bool = False) -> Schema:
    return _of("number", meaning, nullable)


def boolean(meaning: str) -> Schema:
    return _of("boolean", meaning, False)


def array(items: Schema, meaning: str, *, nullable: bool = False) -> Schema:
    return _of("array", meaning, nullable, items=items)


def record(meaning: str, *, optional: Iterable[str] = (), nullable: bool = False, **fields: Schema) -> Schema:
    """Named fields. All of them are there, but those that are `optional`."""
    left_out = set(optional)
    assert left_out <= fields.keys()
    required = [name for name in fields if name not in left_out]
    return _of("object", meaning, nullable, properties=fields, required=required, additionalProperties=False)


def anything(meaning: str) -> Schema:
    """Named values of any kind, as deep as they come; or null."""
    return _of("object", meaning, True, additionalProperties={})


def problem(schema: Schema, value: Any, place: str = "the body") -> str | None:
    """What is wrong with a value, as a sentence; None if it is as the schema says."""
    if not schema:
        return None
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    fits = any(isinstance(value, _TYPES[kind]) for kind in kinds)
    if not fits or (isinstance(value, bool) and "boolean" not in kinds):
        return f"{place} is not of type {' or '.join(kinds)}"
    if value is None:
        return None
    if isinstance(value, str) and not is_utf8(value):
        return f"{place} is not a text: it has half a surrogate pair"
    if "enum" in schema and value not in schema["enum"]:
        return f"{place} is none of {', '.join(str(word) for word in schema['enum'] if word is not None)}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"{place} is less than {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"{place} is more than {schema['maximum']}"
    if isinstance(value, list):
        problems = (problem(schema["items"], item, f"{place}[{index}]") for index, item in enumerate(value))
        return next((each for each in problems if each is not None), None)
    if isinstance(value, dict):
        return _problem_of_object(schema, value, place)
    return None


def _problem_of_object(schema: Schema, value: dict[str, Any], place: str) -> str | None:
    fields: dict[str, Schema] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{place} lacks the field {name}"
    others = schema.get("additionalProperties")
    for name, item in value.items():
        field = fields.get(name, others)
        if not isinstance(field, dict):
            return f"{place} has a field {name!r}, which is none of {', '.join(fields)}"
        found = problem(field, item, f"{place}.{name}")
        if found is not None:
            return found
    return None


def member(meaning: str, member_id: str = "Its member id.", *, nullable: bool = False, **more: Schema) -> Schema:
    """A member of a group: who it is, and more of it."""
    return record(
        meaning,
        nullable=nullable,
        member_id=text(member_id),
        instance_id=text("group.instance.id of a static member.", nullable=True),
        client_id=text("client.id."),
        host=text("Its address."),
        **more,
    )
