"""The classes of messages: slots named after the fields of the schema, keyword-only construction, schema defaults."""

from collections.abc import Callable, Generator
from typing import Any, ClassVar

from barnabas.protocol.schema import Field, MessageSchema, Structure

Buffer = bytes | bytearray | memoryview


class Reference:
    """Stands for bytes that are not in memory, as `records` of a response. It is one of the parts of the frame.

    The encoder only asks for its length, which is at least `BY_REFERENCE_BYTES`. The code that sends the parts knows
    the subclasses.
    """

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError


Part = Buffer | Reference
BY_REFERENCE_BYTES = 8192
"""`records` of at least this many bytes are passed on by reference; copying less is cheaper than another part."""
Decoder = Callable[[memoryview, int], tuple[Any, int]]
DecoderInPieces = Callable[[memoryview, int], Generator[None, None, tuple[Any, int]]]
Encoder = Callable[[Any, bytearray, list[Any]], bytearray]
EncoderInPieces = Callable[[Any, bytearray, list[Any]], Generator[None, None, bytearray]]


class Struct:
    """A message or a structure in one: slots named after the fields, keyword-only construction, schema defaults."""

    __slots__ = ("unknown_tagged_fields",)
    _FIELDS: ClassVar[tuple[str, ...]] = ()
    unknown_tagged_fields: dict[int, bytes] | None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or other._FIELDS is not self._FIELDS:
            return NotImplemented
        return (self.unknown_tagged_fields or None) == (other.unknown_tagged_fields or None) and all(
            getattr(self, name) == getattr(other, name) for name in self._FIELDS
        )

    __hash__ = None  # type: ignore[assignment]  # mutable, so not hashable

    def __repr__(self) -> str:
        names = [*self._FIELDS, *(["unknown_tagged_fields"] if self.unknown_tagged_fields else [])]
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class Message(Struct):
    """A request, a response or a part of a stored record."""

    __slots__ = ()
    SCHEMA: ClassVar[MessageSchema]
    API_KEY: ClassVar[int]  # set in requests and responses
    DECODERS: ClassVar[dict[int, Decoder]]
    DECODERS_IN_PIECES: ClassVar[dict[int, DecoderInPieces]]
    ENCODERS: ClassVar[dict[int, Encoder]]
    ENCODERS_IN_PIECES: ClassVar[dict[int, EncoderInPieces]]
    _NAMESPACE: ClassVar[dict[str, Any]]  # the classes and shared defaults that compiled functions use


def make_class(schema: MessageSchema, module: str) -> type[Message]:
    """The class of a message, with the classes of its structures as attributes."""
    namespace: dict[str, Any] = {"__name__": module, "Struct": Struct, "Message": Message, "ABSENT": ()}
    for structure in (*schema.structures.values(), schema.root):
        names = tuple(field.name for field in structure.fields)
        base = Message if structure is schema.root else Struct
        members = {"__module__": module, "__slots__": names, "_FIELDS": names}
        made: type[Struct] = type(structure.name, (base,), members)
        _construct_later(made, structure, namespace)
        namespace[structure.name] = made
    message: type[Message] = namespace[schema.root.name]
    message.SCHEMA = schema
    message.DECODERS = {}
    message.DECODERS_IN_PIECES = {}
    message.ENCODERS = {}
    message.ENCODERS_IN_PIECES = {}
    if schema.api_key is not None:
        message.API_KEY = schema.api_key
    for name in schema.structures:
        cls = namespace[name]
        cls.__qualname__ = f"{schema.name}.{name}"
        setattr(message, name, cls)
    for structure in (*schema.structures.values(), schema.root):
        for field in structure.fields:
            if has_shared_default(field):
                namespace.setdefault(f"DEFAULT_{field.type}", _read_only(namespace[field.type]))
    message._NAMESPACE = namespace
    return message


def _construct_later(cls: type[Struct], structure: Structure, namespace: dict[str, Any]) -> None:
    """Compile the constructor on its first call: a broker knows many more messages than it ever makes."""

    def construct(self: Struct, **fields: Any) -> None:
        parameters = "".join(f"{field.name}={_parameter_default(field)}, " for field in structure.fields)
        lines = [f"def __init__(self, *, {parameters}unknown_tagged_fields=None):"]
        lines += [f" self.{field.name} = {_initial_value(field)}" for field in structure.fields]
        lines.append(" self.unknown_tagged_fields = unknown_tagged_fields")
        made: dict[str, Any] = {}
        exec(compile("\n".join(lines), f"<{cls.__qualname__}>", "exec"), namespace, made)
        made["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
        cls.__init__ = made["__init__"]  # type: ignore[method-assign]
        cls.__init__(self, **fields)

    cls.__init__ = construct  # type: ignore[method-assign,assignment]


def has_shared_default(field: Field) -> bool:
    """Whether messages that do not set the field share one frozen default value."""
    return field.structure is not None and not field.array and field.default is not None


def _read_only(cls: type[Struct]) -> Struct:
    """The default value of a structure. All messages share it, which is safe because it is frozen."""

    def refuse(self: Struct, name: str, value: object) -> None:
        raise AttributeError(f"this is the shared default {cls.__name__}: assign a new one instead of changing it")

    frozen = type(
        cls.__name__, (cls,), {"__slots__": (), "__qualname__": cls.__qualname__, "__module__": cls.__module__}
    )
    value: Struct = frozen()
    frozen.__setattr__ = refuse  # type: ignore[assignment,method-assign]
    return value


def default_source(field: Field) -> str:
    """The source of the default value of a field."""
    if field.default is None:
        return "None"
    if field.array:
        return "[]"
    if field.structure is not None:
        return f"DEFAULT_{field.type}"
    return repr(field.default)


def _parameter_default(field: Field) -> str:
    if field.default is not None and (field.array or field.structure is not None):
        return "ABSENT"
    return repr(field.default)


def _initial_value(field: Field) -> str:
    if _parameter_default(field) == "ABSENT":
        return f"{default_source(field)} if {field.name} is ABSENT else {field.name}"
    return field.name
