"""Plans: one version of a message as tuples, for the decoders and encoders of compiled builds (native/plan.h).

A structure is (class, is flexible, its fields on the wire, its tagged fields in the order of their tags, the fields
that the version lacks, those of them that a message must not have set). A field is (name, kind, is array, is nullable,
is tagged, is always written, is an error message, tag, least bytes of an element, default, kind of default, structure,
layout of its elements if they may be `Rows`).
"""

from collections.abc import Iterator
from typing import Any

from barnabas.protocol.compile import minimum_element_size
from barnabas.protocol.errors import UnsupportedVersionError
from barnabas.protocol.message import Message, Struct, default_source, has_shared_default
from barnabas.protocol.rows import row_layout
from barnabas.protocol.schema import FIXED, Field, Structure

KINDS = {name: kind for kind, name in enumerate((*FIXED, "string", "bytes", "records"))}
STRUCTURE = len(KINDS)
IS_NONE, IS_SHARED, IS_LIST, IS_VALUE = range(4)  # kinds of defaults

Plan = tuple[Any, ...]


def plan(message: type[Message], version: int) -> Plan:
    """The plan of one version. UnsupportedVersionError when the message has no such version."""
    schema = message.SCHEMA
    if not schema.versions[0] <= version <= schema.versions[1]:
        raise UnsupportedVersionError(f"{schema.name} has no version {version}")
    return _structure(schema.root, message, version)


def _structure(structure: Structure, message: type[Message], version: int) -> Plan:
    is_flexible = version >= message.SCHEMA.flexible_since
    present = [field for field in structure.fields if field.is_in(version)]
    absent = [field for field in structure.fields if not field.is_in(version)]
    groups = (
        [field for field in present if field.tag is None],
        sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0),
        absent,
        [field for field in absent if not field.ignorable],
    )
    fields = [tuple(_field(field, message, version, is_flexible) for field in group) for group in groups]
    return (message._NAMESPACE[structure.name], is_flexible, *fields)


def constructor_plans(message: type[Message]) -> Iterator[tuple[type[Struct], tuple[tuple[str, Any, int], ...]]]:
    """The classes of a message, and of each its fields with their defaults and kinds of defaults."""
    namespace = message._NAMESPACE
    for structure in (*message.SCHEMA.structures.values(), message.SCHEMA.root):
        fields = [(field.name, *_default(field, namespace)) for field in structure.fields]
        yield namespace[structure.name], (*fields, ("unknown_tagged_fields", None, IS_NONE))


def _default(field: Field, namespace: dict[str, Any]) -> tuple[Any, int]:
    """The default of a field, as the functions of compile.py read it, and its kind."""
    source = default_source(field)
    if source == "None":
        return None, IS_NONE
    value = eval(source, namespace)
    if has_shared_default(field):
        return value, IS_SHARED
    return value, IS_LIST if source == "[]" else IS_VALUE


def _field(field: Field, message: type[Message], version: int, is_flexible: bool) -> Plan:
    is_nullable = field.is_nullable(version)
    return (
        field.name,
        STRUCTURE if field.structure is not None else KINDS[field.type],
        field.array,
        is_nullable,
        field.tag is not None,
        # Kafka writes a nullable tagged structure even when it is null, although null is its default.
        field.tag is not None and field.structure is not None and not field.array and is_nullable,
        field.name == "error_message",
        field.tag or 0,
        minimum_element_size(field, version, is_flexible),
        *_default(field, message._NAMESPACE),
        None if field.structure is None else _structure(field.structure, message, version),
        row_layout(message, field.type, version),
    )
