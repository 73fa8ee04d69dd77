"""Quotas: whom they are for, which are set, and which of them counts for a client (KIP-13, 55, 124, 257, 546, 599).

An entity is a user, a client id, both, or an address. Each of its parts is a name, or the default for all that have no
quota of their own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from barnabas.config.addresses import as_java, is_address
from barnabas.protocol.named_tuple import NamedTuple

USER, CLIENT_ID, IP = "user", "client-id", "ip"

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATIONS, CONNECTIONS = "controller_mutation_rate", "connection_creation_rate"
OF_CLIENTS: Final = (PRODUCE, FETCH, REQUEST, MUTATIONS)
WHOLE_NUMBERS: Final = {PRODUCE: 2**63 - 1, FETCH: 2**63 - 1, CONNECTIONS: 2**31 - 1}  # the largest value of each


class _Default(Enum):
    DEFAULT = "<default>"

    __hash__ = object.__hash__


DEFAULT: Final = _Default.DEFAULT
Name = str | _Default | None  # None: the entity has no part of this kind


class Entity(NamedTuple):
    """Whom a quota is for."""

    user: Name = None
    client_id: Name = None
    ip: Name = None

    def parts(self) -> list[tuple[str, str | None]]:
        """The kinds that it has with their names, as requests have them: None is the default."""
        named = ((CLIENT_ID, self.client_id), (IP, self.ip), (USER, self.user))
        return [(kind, None if name is DEFAULT else name) for kind, name in named if name is not None]

    def __str__(self) -> str:
        return " and ".join(f"{kind} {'<default>' if name is None else name!r}" for kind, name in self.parts())


class Problem(Exception):
    """A quota, an entity or a filter that is not valid, in Kafka's words."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity of a request. Problem: there is none of this kind."""
    names: dict[str, Name] = {}
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID, IP):
            raise Problem(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise Problem(f"Empty {kind} not supported")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise Problem("Invalid empty client quota entity")
    entity = Entity(names.get(USER), names.get(CLIENT_ID), names.get(IP))
    if entity.ip is not None and len(names) > 1:
        raise Problem("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    if isinstance(entity.ip, str) and not is_address(entity.ip):
        raise Problem(f"{entity.ip} is not a valid IP or resolvable host.")
    return entity


def has_key(entity: Entity, key: str) -> bool:
    """Whether there is a quota of this name for this kind of entity."""
    return key in ((CONNECTIONS,) if entity.ip is not None else OF_CLIENTS)


def check_value(entity: Entity, key: str, value: float | None) -> None:
    """Problem: this entity has no such quota, or not with this value (None: it is to be removed)."""
    if not has_key(entity, key):
        raise Problem(f"Invalid configuration key {key}")
    if value is None:
        return
    if not value > 0:  # nor is it a number, perhaps
        raise Problem(f"Quota {key} must be greater than 0")
    if key in WHOLE_NUMBERS:
        if value > float(WHOLE_NUMBERS[key]):
            raise Problem(f"Proposed value for {key} is too large for {'an INT' if key == CONNECTIONS else 'a LONG'}.")
        if value != int(value):
            raise Problem(f"{key} cannot be a fractional value.")


def text_of(key: str, value: float) -> str:
    """How the tree has the value: as Java's numbers are written."""
    if key in WHOLE_NUMBERS:
        return str(int(min(value, WHOLE_NUMBERS[key])))
    return "Infinity" if math.isinf(value) else repr(float(value))


class Match(NamedTuple):
    """A part of a filter."""

    kind: str
    type: int  # 0: this name; 1: the default; 2: any
    name: str | None


EXACT, ANY_NAME, DEFAULT_NAME = 0, 2, 1


def check_filter(matches: Sequence[Match]) -> None:
    """Problem: the filter is not valid. NotImplementedError: an entity of this kind is not known."""
    seen = set()
    for match in matches:
        if match.kind in seen:
            raise Problem(f"Entity type {match.kind} cannot appear more than once in the filter.")
        seen.add(match.kind)
        if not match.kind:
            raise Problem("Invalid empty entity type.")
        if match.kind not in (USER, CLIENT_ID, IP):
            raise NotImplementedError(f"Unsupported entity type {match.kind}")
        if match.type not in (EXACT, DEFAULT_NAME, ANY_NAME):
            raise Problem(f"Unknown match type {match.type}")
        if match.type == EXACT and match.name is None:
            raise Problem("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match.type != EXACT and match.name is not None:
            kind = "MATCH_TYPE_DEFAULT" if match.type == DEFAULT_NAME else "MATCH_TYPE_SPECIFIED"
            raise Problem(f"Request specified {kind}, but also specified a match string.")
    if IP in seen and len(seen) > 1:
        raise Problem(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )


def is_matched(entity: Entity, matches: Sequence[Match], *, strict: bool) -> bool:
    """Whether the entity has all parts that the filter asks for; strict: and no other."""
    parts = dict(entity.parts())
    for match in matches:
        if match.kind not in parts:
            return False
        name = parts[match.kind]
        if (match.type == EXACT and name != match.name) or (match.type == DEFAULT_NAME and name is not None):
            return False
    return not strict or len(parts) == len(matches)


class Limit(NamedTuple):
    """The quota that counts for a client, and who shares it: None stands for everybody."""

    bound: float
    user: str | None
    client_id: str | None


class QuotaTable:
    """All quotas of a cluster."""

    def __init__(self) -> None:
        self.all: dict[Entity, dict[str, float]] = {}
        self._found: dict[tuple[str, str, str], Limit | None] = {}  # by key, user and client id: what `limit` has found
        self._of_address: dict[str, float] = {}  # connection rates; an address can be written in many ways

    def set(self, entity: Entity, values: Mapping[str, float]) -> bool:
        """The entity has these quotas now, and no others. Whether this is new."""
        if values == self.all.get(entity, {}):
            return False
        if values:
            self.all[entity] = dict(values)
        else:
            del self.all[entity]
        self._found.clear()
        if isinstance(entity.ip, str):
            self._of_address.pop(as_java(entity.ip), None)
            if CONNECTIONS in values:
                self._of_address[as_java(entity.ip)] = values[CONNECTIONS]
        return True

    def has(self, keys: Iterable[str]) -> bool:
        """Whether anybody has one of these quotas."""
        return any(key in values for values in self.all.values() for key in keys)

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """The quota of a client: the first in Kafka's order of precedence. None: there is none."""
        asked = key, user, client_id
        if len(user) + len(client_id) > FOUND_CHARACTERS_MAX:
            return self._look(key, user, client_id)
        if asked not in self._found:
            if len(self._found) >= FOUND_MAX:
                self._found.clear()
            self._found[asked] = self._look(key, user, client_id)
        return self._found[asked]

    def _look(self, key: str, user: str, client_id: str) -> Limit | None:
        order: tuple[tuple[Entity, str | None, str | None], ...] = (
            (Entity(user, client_id), user, client_id),
            (Entity(user, DEFAULT), user, client_id),
            (Entity(user), user, None),
            (Entity(DEFAULT, client_id), user, client_id),
            (Entity(DEFAULT, DEFAULT), user, client_id),
            (Entity(DEFAULT), user, None),
            (Entity(None, client_id), None, client_id),
            (Entity(None, DEFAULT), None, client_id),
        )
        for entity, shared_by_user, shared_by_client in order:
            bound = self.all.get(entity, {}).get(key)
            if bound is not None:
                return Limit(bound, shared_by_user, shared_by_client)
        return None

    def connection_rate(self, address: str) -> float | None:
        """How many connections a second may come from an address; None: any number."""
        own = self._of_address.get(as_java(address)) if self._of_address else None
        return self.all.get(Entity(ip=DEFAULT), {}).get(CONNECTIONS) if own is None else own


FOUND_MAX: Final = 10_000
FOUND_CHARACTERS_MAX: Final = 500  # of user and client id: names of 32 KB would take hundreds of megabytes
