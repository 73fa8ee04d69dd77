"""The fields of messages: the notation of the schema files, and the classes that they are read into.

`schemas/fetch.txt` holds the request and response of one API, `schemas/records/offset_commit.txt` the key and
value of one kind of stored record. A file reads like this:

    api 1 Fetch                                          number and name; or: record OffsetCommit of __consumer_offsets

    request versions 0-18 flexible 12+                   also: response, key, value, body (a record without parts)
      replica_id     int32           0-14   = -1         name, type, versions that have it, default
      max_wait_ms    int32                               no versions: where its parent is; no default: 0, "", []
      replica_state  ReplicaState    15+    tag 1        a structure, and a tagged field
        replica_id   int32           = -1                  the fields of ReplicaState, deeper
      topics         [FetchTopic]                        an array of structures
        topic        string          0-12   ignorable    a version without it may drop any value in silence
        partitions   [int32]                             an array of integers
      rack_id        string?         11+    = null       may be null
      metadata       bytes?7+                            may be null from version 7 on
      name           string          key                 no two elements of its array have the same

    struct FetchTopic                                    fields of a structure that the section before uses twice
      ...

Types: bool int8 int16 int32 int64 uint16 uint32 float64 uuid string bytes records, or the name of a structure.
`records` that may be null are null by default.
`flexible 12+` means that from version 12 on lengths are varints and every structure ends with tagged fields.
The `versions` of a stored key is the number that identifies the kind of record. `unstable 6` after the first
line: that version of the API may still change and is not offered.
"""

from barnabas.protocol import schemas

NEWEST = 32767
Versions = tuple[int, int]
"""First and last version, both included."""

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "uuid": "16s",
}
"""Types of fixed width and their `struct` format."""

SIZES = {"?": 1, "b": 1, "h": 2, "i": 4, "q": 8, "H": 2, "I": 4, "d": 8, "16s": 16}

Default = int | float | str | bool | bytes | None
_DEFAULTS: dict[str, Default] = {"string": "", "bytes": b"", "uuid": bytes(16), "bool": False, "float64": 0.0}


class Field:
    """One field of a structure."""

    __slots__ = ("array", "default", "ignorable", "key", "name", "nullable", "structure", "tag", "type", "versions")

    def __init__(self, name: str, type_name: str, versions: Versions) -> None:
        self.name = name
        self.versions = versions
        self.nullable: Versions = (1, 0)
        if "?" in type_name:
            type_name, _, null_versions = type_name.partition("?")
            self.nullable = parse_versions(null_versions) if null_versions else versions
        self.array = type_name.startswith("[")
        self.type = type_name[1:-1] if self.array else type_name
        self.structure: Structure | None = None
        self.tag: int | None = None
        self.ignorable = False
        self.key = False
        self.default: Default = _DEFAULTS.get(self.type, 0)
        if self.type == "records":
            self.default = None if self.nullable[0] <= self.nullable[1] else b""

    def is_in(self, version: int) -> bool:
        """Whether that version has the field."""
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable(self, version: int) -> bool:
        """Whether the field may be null in that version."""
        return self.nullable[0] <= version <= self.nullable[1]


class Structure:
    """Named fields in the order of the wire."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: list[Field] = []


class MessageSchema:
    """A request, a response or a part of a stored record."""

    __slots__ = ("api_key", "flexible_since", "name", "root", "structures", "versions")

    def __init__(self, name: str, versions: Versions, flexible_since: int, api_key: int | None) -> None:
        self.name = name
        self.versions = versions
        self.flexible_since = flexible_since
        self.api_key = api_key
        self.root = Structure(name)
        self.structures: dict[str, Structure] = {}


def load(file_name: str) -> dict[str, MessageSchema]:
    """The messages of one schema file by class name (FetchRequest, FetchResponse). FileNotFoundError."""
    return parse(schemas.read(file_name))


_SUFFIXES = {"request": "Request", "response": "Response", "key": "Key", "value": "Value", "body": ""}


def parse(text: str) -> dict[str, MessageSchema]:
    """The messages by class name, from text in the notation above. ValueError names the line that is wrong."""
    messages: dict[str, MessageSchema] = {}
    name = ""
    api_key: int | None = None
    message: MessageSchema | None = None
    open_structures: list[tuple[Structure, Versions]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        try:
            if depth and message is not None:
                field = _parse_field(words, open_structures[depth - 1][1])
                open_structures[depth - 1][0].fields.append(field)
                del open_structures[depth:]
                if field.type[0].isupper():
                    field.structure = message.structures.setdefault(field.type, Structure(field.type))
                    open_structures.append((field.structure, field.versions))
            elif words[0] == "api":
                api_key, name = int(words[1]), words[2]
            elif words[0] == "record":
                name = words[1]
            elif words[0] == "struct":
                assert message is not None
                structure = message.structures.setdefault(words[1], Structure(words[1]))
                open_structures = [(structure, message.versions)]
            elif words[0] != "unstable":
                versions = parse_versions(words[2])
                flexible_since = int(words[4].rstrip("+")) if len(words) > 4 else NEWEST + 1
                message = MessageSchema(name + _SUFFIXES[words[0]], versions, flexible_since, api_key)
                messages[message.name] = message
                open_structures = [(message.root, versions)]
        except (IndexError, KeyError, ValueError, AssertionError, StopIteration):
            raise ValueError(f"line {number} of the schema of {name}: {line!r}") from None
    return messages


def parse_versions(text: str) -> Versions:
    """Read a range of versions: `3`, `3-7` or `3+`."""
    first, dash, last = text.rstrip("+").partition("-")
    if text[-1] == "+":
        return int(first), NEWEST
    return int(first), int(last) if dash else int(first)


def _parse_field(words: list[str], parent_versions: Versions) -> Field:
    rest = iter(words[2:])
    field: Field | None = None
    for word in rest:
        if field is None:
            if word[0].isdigit():
                field = Field(words[0], words[1], parse_versions(word))
                continue
            field = Field(words[0], words[1], parent_versions)
        if word == "tag":
            field.tag = int(next(rest))
        elif word == "=":
            field.default = _LITERALS[value] if (value := next(rest)) in _LITERALS else int(value)
        elif word == "ignorable":
            field.ignorable = True
        elif word == "key":
            field.key = True
        else:
            raise ValueError(word)
    return field or Field(words[0], words[1], parent_versions)


_LITERALS: dict[str, Default] = {"null": None, "true": True, "false": False, '""': ""}
