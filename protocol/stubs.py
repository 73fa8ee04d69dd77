"""The types of the classes that messages.py and records.py make, as stubs: so that editors and mypy know every field.

The build writes them (setup.py), and `tests/check_types.py` before mypy runs. They are not in the repository.
"""

from pathlib import Path

from barnabas.protocol import schema, schemas
from barnabas.protocol.rows import READ, WRITTEN
from barnabas.protocol.schema import Field, MessageSchema, Structure

_TYPES = {"bool": "bool", "float64": "float", "string": "str", "bytes": "bytes", "uuid": "bytes", "records": "Buffer"}

_HEADER = '''"""Types of the classes that {module} makes from the schemas. Written by stubs.py."""

'''
_MESSAGES = """from collections.abc import Sequence
from typing import ClassVar

from barnabas.protocol.message import Buffer, Message, Reference, Struct

def request_class(key: int) -> type[Message]: ...
def response_class(key: int) -> type[Message]: ...
"""
_RECORDS = """from typing import TypeVar

from barnabas.protocol.message import Buffer, Message, Struct

M = TypeVar("M", bound=Message)

def encode_versioned(value: Message, version: int | None = None) -> bytes: ...
def decode_versioned(cls: type[M], buffer: Buffer, *, newer_as_latest: bool = False) -> tuple[int, M]: ...
def version_of(buffer: Buffer) -> int: ...
"""


def render() -> dict[str, str]:
    """The text of each stub by file name."""
    folder = Path(schemas.__path__[0])
    apis = [message for path in sorted(folder.glob("*.txt")) for message in schema.load(path.stem).values()]
    records = [
        message
        for path in sorted((folder / "records").glob("*.txt"))
        for message in schema.load(f"records/{path.stem}").values()
    ]
    return {
        "messages.pyi": _HEADER.format(module="messages.py") + _MESSAGES + "".join(map(_message, apis)),
        "records.pyi": _HEADER.format(module="records.py") + _RECORDS + "".join(map(_message, records)),
    }


def write(folder: Path) -> None:
    """Write both files into a folder: where the modules are."""
    for name, text in render().items():
        (folder / name).write_text(text, encoding="utf-8")


def _message(message: MessageSchema) -> str:
    lines = ["", f"class {message.name}(Message):"]
    if message.api_key is not None:
        lines.append(f"    API_KEY: ClassVar[int] = {message.api_key}")
    for structure in message.structures.values():
        lines += [f"    class {structure.name}(Struct):", *_members(structure, message.name, " " * 8), ""]
    return "\n".join([*lines, *_members(message.root, message.name, " " * 4)]) + "\n"


def _members(structure: Structure, message: str, indent: str) -> list[str]:
    attributes = [f"{indent}{field.name}: {_type(field, message)}" for field in structure.fields]
    parameters = [f"{indent}    {field.name}: {_given(field, message)} = ...," for field in structure.fields]
    parameters.append(f"{indent}    unknown_tagged_fields: dict[int, bytes] | None = ...,")
    return [
        *attributes,
        f"{indent}def __init__(",
        f"{indent}    self,",
        f"{indent}    *,",
        *parameters,
        f"{indent}) -> None: ...",
    ]


def _given(field: Field, message: str) -> str:
    """The type of a constructor's argument: as `_type`, but `records` to send may also be a Reference."""
    return _type(field, message).replace("Buffer", "Buffer | Reference")


def _type(field: Field, message: str) -> str:
    name = f"{message}.{field.type}" if field.structure is not None else _TYPES.get(field.type, "int")
    if field.array:
        # Compiled code looks whether a list is one, and `Rows` are none.
        name = f"Sequence[{name}]" if field.type in READ or field.type in WRITTEN else f"list[{name}]"
    return f"{name} | None" if field.nullable[0] <= field.nullable[1] else name
