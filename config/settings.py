"""One setting: its name, type, default, check and meaning; how text becomes a value, and a value becomes text.

Values travel as text everywhere (files, requests, the coordination tree); only the objects of `config.broker` and
`config.topic` hold them typed. Reasons read like Kafka's own, because client tests compare them.
"""

import math
from collections.abc import Mapping
from enum import Enum, IntEnum

from barnabas.config.addresses import as_java
from barnabas.protocol.errors import ErrorCode

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


class Check:
    """A rule for values, beyond their type."""

    __slots__ = ()

    def verify(self, key: str, value: Value) -> None:
        """Raise ConfigError unless the value is allowed."""
        raise NotImplementedError


class Between(Check):
    """A number within bounds, either of which may be missing."""

    __slots__ = ("high", "low")

    def __init__(self, low: int | None, high: int | None) -> None:
        self.low = low
        self.high = high

    def verify(self, key: str, value: Value) -> None:
        """Raise ConfigError when the number is outside."""
        assert isinstance(value, int | float)
        shown = render(value)
        if self.low is not None and value < self.low:
            raise invalid(key, shown, f"Value must be at least {self.low}")
        if self.high is not None and value > self.high:
            raise invalid(key, shown, f"Value must be no more than {self.high}")


class Level(Between):
    """A compression level within bounds, or -1 for the codec's own default."""

    __slots__ = ()

    def verify(self, key: str, value: Value) -> None:
        """Raise ConfigError when the number is neither."""
        assert isinstance(value, int)
        assert self.low is not None
        assert self.high is not None
        if value != -1 and not self.low <= value <= self.high:
            raise invalid(key, value, f"Value must be between {self.low} and {self.high} or equal to -1")


class OneOf(Check):
    """One of a few words, or a list of them."""

    __slots__ = ("any_case", "words")

    def __init__(self, words: tuple[str, ...], *, any_case: bool = False) -> None:
        self.words = words
        self.any_case = any_case

    def verify(self, key: str, value: Value) -> None:
        """Raise ConfigError for a word that is not one of them."""
        for word in value if isinstance(value, tuple) else (value,):
            assert isinstance(word, str)
            if word in self.words or (self.any_case and word.upper() in self.words):
                continue
            case = " (case insensitive)" if self.any_case else ""
            raise invalid(key, word, f"String must be one of{case}: {', '.join(self.words)}")


class ThrottledReplicas(Check):
    """`*`, or partition:broker pairs."""

    __slots__ = ()

    def verify(self, key: str, value: Value) -> None:
        """Raise ConfigError for anything else."""
        assert isinstance(value, tuple)
        if value == ("*",) or all(_is_pair_of_numbers(word) for word in value):
            return
        shape = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        reason = f"{key} must be the literal '*' or a list of replicas in the following format: {shape}"
        raise invalid(key, f"[{', '.join(value)}]", reason)


def _is_pair_of_numbers(text: str) -> bool:
    partition, colon, broker = text.partition(":")
    return bool(colon) and _is_number(partition) and _is_number(broker)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


class AddressLimits(Check):
    """address:number pairs, or nothing."""

    __slots__ = ()

    def verify(self, key: str, value: Value) -> None:
        """Raise ConfigError for anything else."""
        assert isinstance(value, str)
        for word in split_list(value):
            address, _, limit = word.rpartition(":")
            if not address or not _is_number(limit):
                raise invalid(key, value, f"{word!r} is not address:number")


def address_limits(text: str) -> dict[str, int]:
    """The pairs of a value that was checked."""
    pairs = (word.rpartition(":") for word in split_list(text))
    return {as_java(address.strip()): int(limit) for address, _, limit in pairs}


class Setting:
    """One line of a table. `meaning` is empty for a setting that has no effect here."""

    __slots__ = ("check", "default", "dynamic", "hidden", "meaning", "name", "type")

    def __init__(
        self,
        name: str,
        type: Type,
        default: str | None,
        check: Check | None,
        dynamic: Dynamic,
        meaning: str,
        hidden: bool,
    ) -> None:
        self.name = name
        self.type = type
        self.default = default  # as text; None: not set
        self.check = check
        self.dynamic = dynamic
        self.meaning = meaning
        self.hidden = hidden  # not in DescribeConfigs, unless it is set

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
            self.check.verify(self.name, value)
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
        return ThrottledReplicas()
    if text == "address limits":
        return AddressLimits()
    if text.startswith(">= "):
        return Between(int(text[3:]), None)
    if ".." in text:
        low, high = map(int, text.removesuffix(" or -1").split(".."))
        return Level(low, high) if text.endswith(" or -1") else Between(low, high)
    words = text.removeprefix("any case: ")
    return OneOf(tuple(words.split(", ")), any_case=words != text)


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
