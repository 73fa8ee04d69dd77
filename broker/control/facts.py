"""What a request is about: the groups, topics, partitions and transactional ids that it names, whatever its API."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Struct
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.rows import Rows
from barnabas.protocol.schema import Field, Structure

GROUP_FIELDS = frozenset(("group_id", "groups", "group_ids", "groups_names", "consumer_group_id"))
INDEX_FIELDS = ("partition_index", "partition", "index", "partition_id")
T = TypeVar("T")
GROUP_KEY = 0  # of the key types of FindCoordinator; the other is of transactional ids


class Facts(NamedTuple):
    """One request, as rules look at it."""

    api_key: int
    version: int
    client_id: str
    groups: frozenset[str]
    topics: frozenset[str]
    partitions: frozenset[tuple[str, int]]  # empty: no single ones are named
    transactional_ids: frozenset[str]


def facts_of(request: Any, version: int, client_id: str | None, topic_name: Callable[[bytes], str | None]) -> Facts:
    """The facts of a decoded request. `topic_name` is the name of a topic id, None for one that is not known."""
    found = _Found(topic_name)
    found.look_at(request, request.SCHEMA.root, "")
    if request.API_KEY == ApiKey.FIND_COORDINATOR:
        keys = {request.key, *(request.coordinator_keys or ())} - {""}
        (found.groups if request.key_type == GROUP_KEY else found.transactional_ids).update(keys)
    return Facts(
        request.API_KEY,
        version,
        client_id or "",
        _frozen(found.groups),
        _frozen(found.topics),
        _frozen(found.partitions),
        _frozen(found.transactional_ids),
    )


_NONE: frozenset[Any] = frozenset()
NOTHING = Facts(-1, 0, "", _NONE, _NONE, _NONE, _NONE)


def _frozen(found: set[T]) -> frozenset[T]:
    """The same for all that name nothing: thousands of them are kept, each of 216 bytes."""
    return frozenset(found) if found else _NONE


def facts_of_file(path: str) -> Facts:
    """What a file or folder is about: the partition whose log it is in, if it is in one."""
    for name in path.split("/")[:-3:-1]:
        topic, dash, index = name.partition(".")[0].rpartition("-")
        if dash and index.isdigit():
            return NOTHING._replace(topics=frozenset((topic,)), partitions=frozenset(((topic, int(index)),)))
    return NOTHING


class _Found:
    """Collects names on a way through a request."""

    def __init__(self, topic_name: Callable[[bytes], str | None]) -> None:
        self.groups: set[str] = set()
        self.topics: set[str] = set()
        self.partitions: set[tuple[str, int]] = set()
        self.transactional_ids: set[str] = set()
        self._topic_name = topic_name

    def look_at(self, value: Any, structure: Structure, topic: str) -> None:
        """Note what a value of this structure names. `topic`: that of the structure around it."""
        own = topic_of(value, self._topic_name) if _is_of_topic(structure) else ""
        if own:
            self.topics.add(own)
        topic = own or topic
        for field in _telling(structure):
            name, found = field.name, getattr(value, field.name)
            if field.structure is not None:
                for each in _listed(found):
                    if each is not None:
                        self.look_at(each, field.structure, topic)
            elif name in GROUP_FIELDS:
                self.groups.update(each for each in _listed(found) if each)
            elif name == "transactional_id":
                self.transactional_ids.update({found} - {None, ""})
            elif "topic_names" in name:
                self.topics.update(each for each in _listed(found) if each is not None)
            elif topic:
                self.partitions.update((topic, each) for each in _listed(found) if each is not None)


@cache
def _telling(structure: Structure) -> list[Field]:
    """The fields of a structure that name something, or in which there is something that does. Most have few."""
    return [
        field
        for field in structure.fields
        if (
            field.name in (*GROUP_FIELDS, *INDEX_FIELDS, "transactional_id")
            or "topic_names" in field.name
            or ("partition" in field.name and field.array)
            if field.structure is None
            else _is_of_topic(field.structure) or _telling(field.structure)
        )
    ]


@cache
def _is_of_topic(structure: Structure) -> bool:
    """Whether a structure may be about a topic: see `topic_of`."""
    return any(field.name in ("topic", "name", "topic_id") for field in structure.fields)


def topic_of(value: Any, topic_name: Callable[[bytes], str | None]) -> str:
    """The topic that a structure is about, by its name or its id; empty: none."""
    kind = type(value).__name__.lower()
    has_name = "topic" in kind and not kind.endswith("config")  # CreatableTopicConfig has the name of a setting
    name = getattr(value, "topic", None) or (has_name and getattr(value, "name", None))
    if not isinstance(name, str) or not name:
        topic_id = getattr(value, "topic_id", None) if "topic_id" in value._FIELDS else None
        name = topic_name(topic_id) if topic_id is not None else None
    return name if isinstance(name, str) else ""


def _listed(value: Any) -> Iterator[Any]:
    """The items of a list, or the value itself."""
    if isinstance(value, list | tuple | Rows):
        yield from value
    else:
        yield value


def detached(value: Any) -> Any:
    """The same structure, whose bytes no longer lie in the frame that the request came in."""
    for name in value._FIELDS:
        field = getattr(value, name)
        if isinstance(field, memoryview):
            setattr(value, name, bytearray(field))
        for each in _listed(field):
            if isinstance(each, Struct):
                detached(each)
    return value
