"""From schemas to Python: one flat function per (message, version, direction).

No schema is read while messages are encoded and decoded. At the first use of a function its source is written and
compiled. Neighbouring fields of fixed width, with the length that follows them, become one `struct.Struct`. Nested
structures and arrays become blocks and loops in the same function. Fields that a version lacks are constants. To
compile one function takes less than a millisecond, and a start compiles only the functions that it uses.

A decoder is `decode(buffer: memoryview, position) -> (message, position)`. It raises ProtocolError for bytes that are
wrong or end too early. Lengths and counts are compared with the bytes that are left before memory is taken. Text that
is not UTF-8 is read with replacement characters, as in Kafka.

Both exist as generators, too, for messages that may be very long. These yield often: after each element of an array, or
after `NUMBERS_PER_PIECE` of an array of numbers.

An encoder is `encode(message, out: bytearray, parts: list) -> bytearray`. It appends to `out`. A large `records` value
is not copied: `out` and the value are appended to `parts`, and the fields behind it go into the new bytearray that is
returned.
"""

import struct
from functools import cache
from typing import Any, ClassVar

from barnabas.protocol.compiled_calls import GLOBALS, MESSAGE_CHARACTERS_MAX, UNKNOWN_TAGS_MAX
from barnabas.protocol.errors import UnsupportedVersionError
from barnabas.protocol.message import (
    BY_REFERENCE_BYTES,
    Message,
    default_source,
    has_shared_default,
)
from barnabas.protocol.rows import ROWS_MIN, RowLayout, Rows, read_rows, row_layout
from barnabas.protocol.schema import FIXED, SIZES, Field, Structure

NUMBERS_PER_PIECE = 4096


def _minimum_size(structure: Structure, version: int, flexible: bool) -> int:
    """The fewest bytes that one value takes. A count of values is checked with it."""
    size = 1 if flexible else 0
    for field in structure.fields:
        if field.is_in(version) and field.tag is None:
            size += _minimum_field_size(field, version, flexible)
    return size


def _minimum_field_size(field: Field, version: int, flexible: bool) -> int:
    if field.array:
        return 1 if flexible else 4
    if field.structure is not None:
        return 1 if field.is_nullable(version) else _minimum_size(field.structure, version, flexible)
    if field.type in FIXED:
        return SIZES[FIXED[field.type]]
    return 1 if flexible else 2 if field.type == "string" else 4


def minimum_element_size(field: Field, version: int, flexible: bool) -> int:
    """The fewest bytes that one element of an array takes."""
    if field.structure is not None:
        return max(1, _minimum_size(field.structure, version, flexible))
    return 1 if flexible else 2 if field.type == "string" else 4


class _Writer:
    """The source of one function, and the run of fixed-width fields that will be packed or unpacked together."""

    verb: ClassVar[str]  # the name of the function

    def __init__(self, message: type[Message], version: int, *, in_pieces: bool = False) -> None:
        """UnsupportedVersionError when the message has no such version."""
        self.in_pieces = in_pieces
        self.message = message
        self.schema = message.SCHEMA
        if not self.schema.versions[0] <= version <= self.schema.versions[1]:
            raise UnsupportedVersionError(f"{self.schema.name} has no version {version}")
        self.version = version
        self.flexible = version >= self.schema.flexible_since
        self.globals: dict[str, Any] = {**message._NAMESPACE, **GLOBALS}
        self.lines: list[str] = []
        self.indent = 1
        self.run: list[tuple[str, str]] = []
        self.names = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def struct(self, formats: list[str], method: str) -> str:
        """The name of the bound pack or unpack method for a run."""
        layout = "".join(formats)
        name = f"{method}_{layout}".replace("?", "t")
        if name not in self.globals:
            self.globals[name] = getattr(_struct(layout), method)
        return name

    def repeated(self, layout: str, method: str) -> str:
        """The name of the table of such methods for arrays, by the number of elements."""
        name = f"many_{method}_{layout}".replace("?", "t")
        self.globals[name] = _repeated.setdefault(name, _Repeated(layout, method))
        return name

    def layout(self, field: Field) -> RowLayout | None:
        """The layout of the elements of an array, under the name `layout` in the source; None: they are objects."""
        found = row_layout(self.message, field.type, self.version)
        if found is not None:
            self.globals |= {"layout": found, "Rows": Rows, "read_rows": read_rows}
        return found

    def build(self) -> Any:
        self.write()
        title = f"<{self.verb} {self.schema.name} v{self.version}{' in pieces' if self.in_pieces else ''}>"
        exec(compile("\n".join(self.lines), title, "exec"), self.globals)
        return self.globals[self.verb]

    def write(self) -> None:
        raise NotImplementedError


class DecoderWriter(_Writer):
    """The decoder of one version; `in_pieces` as a generator, for requests that may be very long."""

    verb = "decode"

    def write(self) -> None:
        self.less = " - 1" if self.flexible else ""
        self.lines = ["def decode(buffer, p):", " end = len(buffer)", " try:"]
        if not self.in_pieces and not self.keeps_slices(self.schema.root):
            self.lines.insert(1, " buffer = bytes(buffer)")  # an item or a slice of bytes takes a fifth of the time
        self.indent = 2
        self.structure(self.schema.root, "m")
        self.flush()
        assert self.indent == 2, "a block was not closed"
        self.line("return m, p")
        if self.in_pieces:
            self.line("yield")  # never reached; it makes a generator of the function in any case
        self.lines += [" except (struct_error, IndexError):", f"  early({self.schema.name!r})"]

    def keeps_slices(self, structure: Structure) -> bool:
        """Whether the message has `records`, which are slices of the buffer."""
        return any(
            field.type == "records" or (field.structure is not None and self.keeps_slices(field.structure))
            for field in structure.fields
        )

    def flush(self) -> None:
        if not self.run:
            return
        targets = [target for target, _ in self.run]
        formats = [layout for _, layout in self.run]
        if formats == ["B"]:
            self.line(f"{targets[0]} = buffer[p]; p += 1")
        else:
            comma = "," if len(targets) == 1 else ""
            size = sum(SIZES.get(layout, 1) for layout in formats)
            self.line(f"{', '.join(targets)}{comma} = {self.struct(formats, 'unpack_from')}(buffer, p); p += {size}")
        self.run.clear()

    def structure(self, structure: Structure, target: str) -> None:
        """Write the source that fills a new object. The last run may still be open."""
        self.line(f"{target} = new({structure.name})")
        present = [field for field in structure.fields if field.is_in(self.version)]
        absent: dict[str, list[str]] = {}
        for field in structure.fields:
            if field not in present or field.tag is not None:
                value = default_source(field)
                if value == "[]":
                    self.line(f"{target}.{field.name} = []")
                else:
                    absent.setdefault(value, []).append(f"{target}.{field.name}")
        absent.setdefault("None", []).append(f"{target}.unknown_tagged_fields")
        for value, targets in absent.items():
            self.line(f"{' = '.join(targets)} = {value}")
        for field in present:
            if field.tag is None:
                self.field(field, f"{target}.{field.name}")
        if self.flexible:
            self.tags([field for field in present if field.tag is not None], target)

    def field(self, field: Field, target: str) -> None:
        nullable = field.is_nullable(self.version)
        if field.array:
            self.array(field, target, nullable)
        elif field.structure is not None:
            self.inner(field.structure, target, nullable, field.tag is not None)
        elif field.type in FIXED:
            self.run.append((target, FIXED[field.type]))
        else:
            self.text(field, target, nullable)

    def read_length(self, field: Field) -> str:
        """Write the source that reads a length or count. In flexible versions it is one more, and 0 for null; else null
        is -1.
        """
        n = self.name("n")
        if self.flexible:
            self.run.append((n, "B"))
            self.flush()
            read = "string_length" if field.type == "string" and not field.array else "uvarint"
            if field.type == "records":  # mostly of two bytes: read here, without a call
                self.line(f"if {n} > 127 and p < end and buffer[p] < 128: {n} = {n} & 127 | buffer[p] << 7; p += 1")
                self.line(f"elif {n} > 127: {n}, p = {read}(buffer, p - 1)")
            else:
                self.line(f"if {n} > 127: {n}, p = {read}(buffer, p - 1)")
        else:
            self.run.append((n, "h" if field.type == "string" and not field.array else "i"))
            self.flush()
        return n

    def length(self, field: Field, target: str, nullable: bool) -> str:
        """The same; then assign null, and open the block for values that are not null."""
        n = self.read_length(field)
        null = f"{n} == 0" if self.flexible else f"{n} < 0"
        if nullable:
            self.line(f"if {null}: {target} = None")
            self.line("else:")
            self.indent += 1
        else:
            self.line(f"if {null}: null({field.name!r})")
        return n

    def text(self, field: Field, target: str, nullable: bool) -> None:
        if field.type == "string":
            n, empty = self.read_length(field), int(self.flexible)
            self.line(f"if {n} > {empty}:")
            self.indent += 1
            self.slice(field, target, n, 'str(buffer[p:e], "utf-8", "barnabas.replace")')
            self.indent -= 1
            self.line(f"elif {n} == {empty}: {target} = ''")
            self.line(f"else: {target} = None" if nullable else f"else: null({field.name!r})")
        else:
            n = self.length(field, target, nullable)
            self.slice(field, target, n, "bytes(buffer[p:e])" if field.type == "bytes" else "buffer[p:e]")
            self.indent -= nullable

    def slice(self, field: Field, target: str, n: str, value: str) -> None:
        self.line(f"e = p + {n}{self.less}")
        self.line(f"if e > end: short({field.name!r})")
        self.line(f"{target} = {value}; p = e")

    def array(self, field: Field, target: str, nullable: bool) -> None:
        n = self.length(field, target, nullable) + self.less
        if field.structure is None and field.type in FIXED:
            layout = FIXED[field.type]
            self.line(f"e = p + ({n}) * {SIZES[layout]}")
            self.line(f"if e > end: short({field.name!r})")
            if self.in_pieces:
                self.numbers_in_pieces(layout, field.type == "uuid", target)
            elif field.type == "uuid":
                self.line(f"{target} = [bytes(buffer[i : i + 16]) for i in range(p, e, 16)]; p = e")
            else:
                self.line(f"{target} = list({self.repeated(layout, 'unpack_from')}[{n}](buffer, p)); p = e")
        else:
            smallest = minimum_element_size(field, self.version, self.flexible)
            self.line(f"if ({n}) * {smallest} > end - p: short({field.name!r})")
            items = self.name("a")
            rows = None if self.in_pieces else self.layout(field)
            is_read = rows is not None and rows.is_read
            if is_read:
                self.line(f"{target} = {items} = read_rows(layout, buffer, p, {n}) if {n} >= {ROWS_MIN} else None")
                self.line(f"if {items} is not None: p += len({items}.data)")
                self.line("else:")
                self.indent += 1
            self.line(f"{target} = {items} = []")
            self.line(f"for _ in range({n}):")
            self.indent += 1
            if field.structure is not None:
                item = self.name("o")
                self.structure(field.structure, item)
                self.flush()
                self.line(f"{items}.append({item})")
            else:
                item = self.name("s")
                element = Field(field.name, field.type, field.versions)
                self.text(element, item, nullable=False)
                self.line(f"{items}.append({item})")
            if self.in_pieces:
                self.line("yield")
            self.indent -= 1 + is_read
        self.indent -= nullable

    def numbers_in_pieces(self, layout: str, is_uuid: bool, target: str) -> None:
        """Write the source that reads the numbers (or uuids) from p to e."""
        items, size = self.name("a"), SIZES[layout]
        self.line(f"{target} = {items} = []")
        self.line("while p < e:")
        self.indent += 1
        self.line(f"i = min(p + {NUMBERS_PER_PIECE * size}, e)")
        if is_uuid:
            self.line(f"{items} += [bytes(buffer[j : j + 16]) for j in range(p, i, 16)]; p = i")
        else:
            self.line(f"{items} += {self.repeated(layout, 'unpack_from')}[(i - p) // {size}](buffer, p); p = i")
        self.line("yield")
        self.indent -= 1

    def inner(self, structure: Structure, target: str, nullable: bool, tagged: bool) -> None:
        item = self.name("o")
        if nullable:
            marker = self.name("n")
            self.run.append((marker, "B" if tagged else "b"))  # null is 0 if tagged, else -1; a value is 1
            self.flush()
            self.line(f"if {marker} {'== 0' if tagged else '< 0'}: {target} = None")
            self.line("else:")
            self.indent += 1
        self.structure(structure, item)
        self.flush()
        self.line(f"{target} = {item}")
        self.indent -= nullable

    def tags(self, fields: list[Field], target: str) -> None:
        count, tag, last, stop = self.name("t"), self.name("t"), self.name("t"), self.name("t")
        self.run.append((count, "B"))
        self.flush()
        self.line(f"if {count}:")
        self.indent += 1
        if not fields:
            self.line(f"{target}.unknown_tagged_fields, p = unknown_tags(buffer, p - 1)")
            self.indent -= 1
            return
        self.line(f"{count}, p = uvarint(buffer, p - 1); {last} = -1")
        self.line(f"if {count} > {UNKNOWN_TAGS_MAX}: many({count})")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        self.line(f"{tag}, p = uvarint(buffer, p); {stop}, p = uvarint(buffer, p); {stop} += p")
        self.line(f"if {tag} <= {last}: order({tag})")
        self.line(f"if {stop} > end: short('a tagged field')")
        self.line(f"{last} = {tag}")
        word = "if"
        for field in fields:
            self.line(f"{word} {tag} == {field.tag}:")
            self.indent += 1
            self.field(field, f"{target}.{field.name}")
            self.flush()
            self.line(f"if p != {stop}: size({field.name!r})")
            self.indent -= 1
            word = "elif"
        self.line("else:")
        self.line(f" if {target}.unknown_tagged_fields is None: {target}.unknown_tagged_fields = {{}}")
        self.line(f" {target}.unknown_tagged_fields[{tag}] = bytes(buffer[p:{stop}]); p = {stop}")
        self.indent -= 2


class EncoderWriter(_Writer):
    """The encoder of one version; `in_pieces` as a generator, for answers that may be very long."""

    verb = "encode"
    out = "out"

    def write(self) -> None:
        self.lines = ["def encode(m, out, parts):"]
        self.structure(self.schema.root, "m")
        self.flush()
        assert self.indent == 1, "a block was not closed"
        self.line("return out")
        if self.in_pieces:
            self.line("yield")  # never reached; it makes a generator of the function in any case

    def flush(self) -> None:
        if not self.run:
            return
        values = [value for value, _ in self.run]
        formats = [layout for _, layout in self.run]
        if formats == ["B"]:
            self.line(f"{self.out}.append({values[0]})")
        else:
            self.line(f"{self.out} += {self.struct(formats, 'pack')}({', '.join(values)})")
        self.run.clear()

    def structure(self, structure: Structure, source: str) -> None:
        tagged = []
        for field in structure.fields:
            value = f"{source}.{field.name}"
            if not field.is_in(self.version):
                if not field.ignorable:
                    self.line(
                        f"if {self.differs(field, value)}: lacks({self.schema.name!r}, {self.version}, {field.name!r})"
                    )
            elif field.tag is not None:
                tagged.append(field)
            else:
                self.field(field, value)
        if self.flexible:
            self.tags(tagged, source)

    def differs(self, field: Field, value: str) -> str:
        """The source of an expression: whether a value is not the default."""
        default = default_source(field)
        if default == "None":
            return f"{value} is not None"
        if has_shared_default(field):
            return f"{value} is not {default} and {value} != {default}"
        return f"{value} != {default}"

    def field(self, field: Field, value: str) -> None:
        nullable = field.is_nullable(self.version)
        if field.array:
            self.array(field, value, nullable)
        elif field.structure is not None:
            item = self.name("o")
            self.line(f"{item} = {value}")
            if nullable:
                self.flush()
                self.line(f"if {item} is None: {self.out}.append({0 if field.tag is not None else 255})")
                self.line("else:")
                self.indent += 1
                self.line(f"{self.out}.append(1)")
            self.structure(field.structure, item)
            if nullable:
                self.flush()
                self.indent -= 1
        elif field.type in FIXED:
            self.run.append((value, FIXED[field.type]))
        elif field.type == "records":
            self.records(value, nullable)
        else:
            self.text(field.type, value, nullable, is_message=field.name == "error_message")

    def length(self, n: str, layout: str) -> None:
        """Write the source that writes a length or count from a variable; -1 means null."""
        if not self.flexible:
            self.run.append((n, layout))
            self.flush()
            return
        self.flush()
        self.line(f"if {n} < 127: {self.out}.append({n} + 1)")
        write = "string_length_bytes" if layout == "h" else "uvarint_bytes"
        self.line(f"else: {self.out} += {write}({n} + 1)")

    def text(self, type_name: str, value: str, nullable: bool, is_message: bool = False) -> None:
        s, n = self.name("s"), self.name("n")
        cut = f"[:{MESSAGE_CHARACTERS_MAX}]" if is_message else ""
        encoded = f"{value}{cut}.encode()" if type_name == "string" else value
        if nullable:
            self.line(f"if {value} is None: {s} = b''; {n} = -1")
            self.line(f"else: {s} = {encoded}; {n} = len({s})")
        else:
            self.line(f"{s} = {encoded}; {n} = len({s})")
        self.length(n, "h" if type_name == "string" else "i")
        self.line(f"{self.out} += {s}")

    def records(self, value: str, nullable: bool) -> None:
        s, n = self.name("s"), self.name("n")
        self.line(
            f"{s} = {value}; {n} = -1 if {s} is None else len({s})" if nullable else f"{s} = {value}; {n} = len({s})"
        )
        self.length(n, "i")
        self.line(f"if {n} >= {BY_REFERENCE_BYTES}: parts.append(out); parts.append({s}); out = bytearray()")
        self.line(f"elif {n} > 0: out += {s}")

    def array(self, field: Field, value: str, nullable: bool) -> None:
        items, n = self.name("a"), self.name("n")
        self.line(
            f"{items} = {value}; {n} = -1 if {items} is None else len({items})"
            if nullable
            else f"{items} = {value}; {n} = len({items})"
        )
        self.length(n, "i")
        if nullable:
            self.line(f"if {items}:")
            self.indent += 1
        if field.structure is None and field.type in FIXED and field.type != "uuid":
            self.line(f"{self.out} += {self.repeated(FIXED[field.type], 'pack')}[{n}](*{items})")
        elif field.type == "uuid":
            self.line(f"{self.out} += b''.join({items})")
        else:
            item = self.name("o")
            is_written = self.layout(field) is not None
            if is_written:
                self.line(f"if type({items}) is Rows and {items}.layout is layout: {self.out} += {items}.data")
                self.line("else:")
                self.indent += 1
            self.line(f"for {item} in {items}:")
            self.indent += 1
            if field.structure is not None:
                before = len(self.lines)
                self.structure(field.structure, item)
                self.flush()
                if self.in_pieces:
                    self.line("yield")
                elif len(self.lines) == before:
                    self.line("pass")
            else:
                self.text(field.type, item, nullable=False)
            self.indent -= 1 + is_written
        self.indent -= nullable

    def tags(self, fields: list[Field], source: str) -> None:
        unknown = f"{source}.unknown_tagged_fields"
        if not fields:
            run = self.run[:]
            self.line(f"if {unknown}:")
            self.indent += 1
            self.flush()
            self.line(f"write_tags({self.out}, {unknown})")
            self.indent -= 1
            self.line("else:")
            self.indent += 1
            self.run = [*run, ("0", "B")]
            self.flush()
            self.indent -= 1
            return
        self.flush()
        tags, outer = self.name("t"), self.out
        self.line(f"{tags} = dict({unknown}) if {unknown} else {{}}")
        for field in fields:
            value = f"{source}.{field.name}"
            # Kafka writes a nullable tagged structure even when it is null, although null is its default.
            always = field.structure is not None and not field.array and field.is_nullable(self.version)
            self.line(f"if {'True' if always else self.differs(field, value)}:")
            self.indent += 1
            self.out = self.name("b")
            self.line(f"{tags}[{field.tag}] = {self.out} = bytearray()")
            self.field(field, value)
            self.flush()
            self.out = outer
            self.indent -= 1
        self.line(f"if {tags}: write_tags({outer}, {tags})")
        self.line(f"else: {outer}.append(0)")


@cache
def _struct(layout: str) -> struct.Struct:
    return struct.Struct(">" + layout)


class _Repeated(dict[int, Any]):
    """Pack or unpack methods for arrays of one fixed type, made when a number of elements is first used."""

    __slots__ = ("layout", "method")

    def __init__(self, layout: str, method: str) -> None:
        self.layout = layout
        self.method = method

    def __missing__(self, count: int) -> Any:
        function = getattr(struct.Struct(f">{count}{self.layout}"), self.method)
        if count < 256:
            self[count] = function
        return function


_repeated: dict[str, _Repeated] = {}
