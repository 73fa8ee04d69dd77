"""Java's .properties files, and the complaints and notes about a server.properties."""

from collections.abc import Iterator, Mapping

from barnabas.config.broker import JAAS_LINE, BrokerConfig, problems
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.listeners import own_endpoints, read_endpoints
from barnabas.config.settings import ConfigError
from barnabas.protocol.named_tuple import NamedTuple

_SHOWN_CHARACTERS_MAX = 500
_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(Exception):
    """The file is not a .properties file; str() names the line."""


class Properties(NamedTuple):
    """The text of each key of a file, and the number of its line. If a key stands twice, the last line counts."""

    values: dict[str, str]
    lines: dict[str, int]
    repeated: list[tuple[str, int]]  # keys that stand twice, and the number of the line that does not count


def read(text: str) -> Properties:
    """Keys and values of a file, as java.util.Properties reads them. PropertiesError for a broken escape.

    Editors on Windows begin a file with a byte order mark, which Java takes for a part of the first key.
    """
    properties = Properties({}, {}, [])
    for number, line in _logical_lines(text.removeprefix("\ufeff")):
        key, value = _split(line)
        try:
            name = _unescape(key)
            properties.values[name] = _unescape(value)
        except ValueError:
            raise PropertiesError(f"line {number}: \\u needs four hexadecimal digits after it") from None
        if name in properties.lines:
            properties.repeated.append((name, properties.lines[name]))
        properties.lines[name] = number
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blank ones, continued lines joined, each with the number of its first."""
    joined, first = "", 0
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        line = raw.lstrip(_BLANKS)
        if not first:
            if not line or line[0] in "#!":
                continue
            first = number
        joined += line
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        yield first, joined
        joined, first = "", 0
    if first:
        yield first, joined


def _split(line: str) -> tuple[str, str]:
    """Key and value, which `=`, `:` or a blank separates, with blanks around it; still escaped."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:end], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\" and position < len(text):
            character = text[position]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                if len(digits) < 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                    raise ValueError(text)
                position += 4
                character = chr(int(digits, 16))
            else:
                character = _ESCAPES.get(character, character)
        out.append(character)
    # Java's text is UTF-16: a character beyond the first 65,536 is written as two escapes
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def complaints(source: str, file: Properties, places: Mapping[str, str] | None = None) -> list[str]:
    """Everything wrong with a server.properties, each naming the file and the line where there is one.

    `places`: where settings come from that stand elsewhere.
    """
    return [
        f"{(places or {}).get(problem.key or '') or _place(source, file, problem)}: {_printable(str(problem))}"
        for problem in problems(file.values)
    ]


def _printable(text: str) -> str:
    """One line without control characters: the user may have named a binary file by mistake."""
    shown = text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in shown
    )


def _place(source: str, file: Properties, problem: ConfigError) -> str:
    line = file.lines.get(problem.key or "")
    return source if line is None else f"{source}:{line}"


def notes(source: str, file: Properties) -> list[str]:
    """The settings of a server.properties that have no effect here. `complaints` must have found nothing."""
    config = BrokerConfig.of(file.values)
    found = [
        f"{source}:{file.lines[name]}: {_printable(name)} {_why(config, name)}"
        for name in config.without_effect()
        if name in file.lines
    ]
    found += [
        f"{source}:{number}: {_printable(name)} has no effect: line {file.lines[name]} says it again"
        for name, number in file.repeated
        if name in file.lines
    ]
    kept = {endpoint.name for endpoint in own_endpoints(config.listeners, config.controller_listener_names)}
    for endpoint in read_endpoints(config.listeners):
        if endpoint.name not in kept:
            place = f"{source}:{file.lines.get('listeners', 0)}"
            found.append(f"{place}: listener {endpoint.name} is ignored: controllers need none here")
    for principal in (config.super_users or "").split(";"):
        if ",User:" in principal or (principal.strip() and not principal.strip().startswith("User:")):
            place = f"{source}:{file.lines.get('super.users', 0)}"
            rule = "each begins with User:, and semicolons stand between them"
            found.append(f"{place}: super.users: nobody is called {_printable(principal.strip())}: {rule}")
    return found


_WHY = (
    (("zookeeper.ssl.", "zookeeper.clientCnxnSocket"), "has no effect: OpenSSL and Python do this, not Java"),
    (("controller.quorum.", "metadata.", "internal.metadata."), "has no effect: there is no KRaft quorum here"),
    (("ssl.", "sasl.", "listener.name."), "has no effect: OpenSSL and Python do this, not Java"),
    (("remote.", "rlmm.", "rsm.", "log.local."), "has no effect: there is no tiered storage here"),
    (("metric", "kafka.metrics.", "kafka.csv."), "has no effect: metrics are not reported that way"),
)


def _why(config: BrokerConfig, name: str) -> str:
    if config.lacks_listener(name):
        return "has no effect: listeners names no such listener (here it is written in small letters)"
    if name.endswith(JAAS_LINE):
        return f"has no effect: it is written listener.name.NAME.MECHANISM.{JAAS_LINE}, in small letters"
    setting = ".".join(name.split(".")[3:]) if name.startswith("listener.name.") else name
    if name.startswith(("ssl.", "sasl.", "listener.name.")) and setting not in BROKER_SETTINGS:
        return "has no effect: there is no such setting"
    for prefixes, why in _WHY:
        if name.startswith(prefixes):
            return why
    if "thread" in name:
        return "has no effect: a broker is one process with one thread"
    return "has no effect here"
