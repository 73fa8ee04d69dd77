"""One setting: its name, type, default, check and meaning; how text becomes a value, and a value becomes text.

Values travel as text everywhere (files, requests, the coordination tree); only the objects of `config.broker` and
`config.topic` hold them typed. Reasons read like Kafka's own, because client tests compare them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum

from barnabas.config.addresses import as_java
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple

Value = bool | int | float | str | tuple[str, ...] | None

UNUSED = "A setting of Kafka that has no effect here; accepted so that an existing file works."


class Type(IntEnum):
    """Types by their number in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Dynamic(Enum):
    """Whether a broker setting may change while the broker runs, and for which brokers."""

    NEVER = 0
    BROKER = 1  # for one broker only
    CLUSTER = 2  # for one broker or for all


class ConfigError(Exception):
    """A setting that cannot be taken: str() is a sentence naming the key and the reason.

    `error` is what an admin request is answered with, `key` the setting where there is one.
    """

    def __init__(self, message: str, *, key: str | None = None, error: ErrorCode = ErrorCode.INVALID_CONFIG) -> None:
        super().__init__(message)
        self.key = key
        self.error = error


def invalid(key: str, value: object, reason: str) -> ConfigError:
    """The error for a value that `key` cannot have, in Kafka's words."""
    return ConfigError(f"Invalid value {value} for configuration {key}: {reason}", key=key)


Check = Callable[[str, Value], None]  # a rule beyond the type: ConfigError unless a setting may have this value


def between(low: int, high: int | None) -> Check:
    """A number within bounds; without `high`, of any size above."""

    def verify(key: str, value: Value) -> None:
        assert isinstance(value, int | float)
        shown = render(value)
        if value < low:
            raise invalid(key, shown, f"Value must be at least {low}")
        if high is not None and value > high:
            raise invalid(key, shown, f"Value must be no more than {high}")

    return verify


def level(low: int, high: int) -> Check:
    """A compression level within bounds, or -1 for the codec's own default."""

    def verify(key: str, value: Value) -> None:
        assert isinstance(value, int)
        if value != -1 and not low <= value <= high:
            raise invalid(key, value, f"Value must be between {low} and {high} or equal to -1")

    return verify


def one_of(words: Sequence[str], *, any_case: bool) -> Check:
    """One of a few words, or a list of them."""

    def verify(key: str, value: Value) -> None:
        for word in value if isinstance(value, tuple) else (value,):
            assert isinstance(word, str)
            if not word and isinstance(value, tuple):
                raise ConfigError(f"Configuration '{key}' values must not be empty.", key=key)
            if word not in words and not (any_case and word.upper() in words):
                case = " (case insensitive)" if any_case else ""
                raise invalid(key, word, f"String must be one of{case}: {', '.join(words)}")

    return verify


def throttled_replicas(key: str, value: Value) -> None:
    """`*`, or partition:broker pairs; empty words are nothing."""
    assert isinstance(value, tuple)
    if value != ("*",) and not all(not word or _is_pair_of_numbers(word) for word in value):
        shape = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        reason = f"{key} must be the literal '*' or a list of replicas in the following format: {shape}"
        raise invalid(key, f"[{', '.join(value)}]", reason)


def _is_pair_of_numbers(text: str) -> bool:
    partition, _, broker = text.partition(":")
    return _is_number(partition) and _is_number(broker)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def only_address_limits(key: str, value: Value) -> None:
    """address:number pairs, or nothing."""
    assert isinstance(value, str)
    for word in split_list(value):
        address, _, limit = word.rpartition(":")
        if not address or not _is_number(limit):
            raise invalid(key, value, f"{word!r} is not address:number")


def address_limits(text: str) -> dict[str, int]:
    """The pairs of a value that was checked."""
    pairs = (word.rpartition(":") for word in split_list(text))
    return {as_java(address.strip()): int(limit) for address, _, limit in pairs}


class Setting(NamedTuple):
    """One line of a table. `meaning` is empty for a setting that has no effect here."""

    name: str
    type: Type
    default: str | None  # as text; None: not set
    check: Check | None
    dynamic: Dynamic
    meaning: str
    hidden: bool  # not in DescribeConfigs, unless it is set

    @property
    def attribute(self) -> str:
        """Its name as an attribute of a config object."""
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        """Whether its value is never shown."""
        return self.type is Type.PASSWORD

    @property
    def has_effect(self) -> bool:
        """Whether anything here reads it."""
        return bool(self.meaning)

    @property
    def doc(self) -> str:
        """One sentence for DescribeConfigs."""
        return self.meaning or UNUSED

    def parse(self, text: str) -> Value:
        """Text to a checked value. ConfigError names the key and the reason."""
        value = parse(self.name, text, self.type)
        if self.check is not None:
            self.check(self.name, value)
        return value


Table = Mapping[str, Setting]

_DYNAMIC = {"-": Dynamic.NEVER, "broker": Dynamic.BROKER, "cluster": Dynamic.CLUSTER}
_BITS = {Type.INT: 31, Type.SHORT: 15, Type.LONG: 63}


def read_table(text: str) -> Table:
    """Settings by name from a table in the notation of config.broker_settings; a setting has one line."""
    settings: dict[str, Setting] = {}
    checks: dict[str, Check | None] = {"-": None}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, type_name, default, check, change, meaning = line.split(" | ")
        assert name not in settings, f"{name} stands twice"
        if check not in checks:
            checks[check] = _read_check(check)
        settings[name] = Setting(
            name,
            Type[type_name],
            None if default == "null" else "" if default == "empty" else default,
            checks[check],
            _DYNAMIC[change.removesuffix(" hidden")],
            "" if meaning == "-" else meaning,
            change.endswith(" hidden"),
        )
    return settings


def _read_check(text: str) -> Check:
    if text == "throttled replicas":
        return throttled_replicas
    if text == "address limits":
        return only_address_limits
    if text.startswith(">= "):
        return between(int(text[3:]), None)
    if ".." in text:
        low, high = map(int, text.removesuffix(" or -1").split(".."))
        return level(low, high) if text.endswith(" or -1") else between(low, high)
    words = text.removeprefix("any case: ")
    return one_of(words.split(", "), any_case=words != text)


def parse(key: str, text: str, type: Type) -> Value:
    """Text to a value of the type, as Kafka reads it: blanks around it do not count."""
    stripped = text.strip()
    if type in _BITS:
        try:
            number = int(stripped) if stripped.isascii() and "_" not in stripped else None
        except ValueError:
            number = None
        if number is None or not -1 << _BITS[type] <= number < 1 << _BITS[type]:
            raise invalid(key, text, f"Not a number of type {type.name}")
        return number
    if type is Type.BOOLEAN:
        if stripped.lower() not in ("true", "false"):
            raise invalid(key, text, "Expected value to be either true or false")
        return stripped.lower() == "true"
    if type is Type.DOUBLE:
        try:
            real = float(stripped)
        except ValueError:
            raise invalid(key, text, "Not a number of type DOUBLE") from None
        if math.isnan(real):  # Kafka accepts NaN, and then every comparison with it is false
            raise invalid(key, text, "Not a number of type DOUBLE")
        return real
    if type is Type.LIST:
        return split_list(stripped)
    return stripped


def split_list(text: str) -> tuple[str, ...]:
    """Comma separated words without the blanks around them; nothing for an empty text."""
    return tuple(word.strip() for word in text.split(",")) if text.strip() else ()


def render(value: Value) -> str | None:
    """A value as Kafka writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _render_double(value)
    return str(value)


def _render_double(value: float) -> str:
    """Java's Double.toString: decimal between 0.001 and 10 million, else d.dddE±x."""
    if value == 0 or math.isinf(value):
        return {0.0: "0.0", math.inf: "Infinity", -math.inf: "-Infinity"}[value]
    if 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal  # rarely needed: keep it out of the start

    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{exponent + len(digits) - 1}"
