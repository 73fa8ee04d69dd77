"""The name of a certificate's subject, as Java writes it (RFC 2253): `CN=alice,O=Acme,C=DE`; and when it ends. Pure.

It is the user's name of a client that shows a certificate, so each character counts: it must be what Kafka makes of it.
"""

import re
from datetime import UTC, datetime

_WORDS = {
    b"\x55\x04\x03": "CN",
    b"\x55\x04\x06": "C",
    b"\x55\x04\x07": "L",
    b"\x55\x04\x08": "ST",
    b"\x55\x04\x09": "STREET",
    b"\x55\x04\x0a": "O",
    b"\x55\x04\x0b": "OU",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19": "DC",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01": "UID",
}
_ESCAPED = ',=+<>#;"\\'
_ALTERNATIVE_NAMES = b"\x55\x1d\x11"
_EXTENSIONS = 0xA3
_TIME = re.compile(r"[0-9]{14}Z")  # strptime would take some that are shorter
_SHORT_YEAR = 0x17  # the tag of a time whose year has two digits: from 1950 on
_VERSION = 0xA0  # the tag of a certificate's first field, which the oldest do not have


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER). ValueError: it is no certificate."""
    try:
        _, name, _ = _item(_from_subject(certificate))
        return ",".join(reversed([_relative(parts) for _, parts in _items(name)]))
    except IndexError:
        raise ValueError("it is no certificate") from None


def alternative_names_of(certificate: bytes) -> frozenset[tuple[int, bytes]]:
    """The other names of the subject (hosts, addresses), as they are. ValueError: it is no certificate."""
    try:
        for tag, content in _items(_from_subject(certificate)):
            if tag != _EXTENSIONS:
                continue
            for _, extension in _items(_item(content)[1]):
                _, kind, rest = _item(extension)
                if kind == _ALTERNATIVE_NAMES:
                    return frozenset(_items(_item(_items(rest)[-1][1])[1]))
        return frozenset()
    except IndexError:
        raise ValueError("it is no certificate") from None


def end_of(certificate: bytes) -> int | None:
    """When a certificate ends, in milliseconds since 1970. ValueError: it is no certificate.

    None: its end is not written as RFC 5280 wants it (without seconds, or with an offset from UTC).
    """
    try:
        _, times, _ = _item(_from_validity(certificate))
        _, (tag, time) = _items(times)
    except IndexError:
        raise ValueError("it is no certificate") from None
    text = time.decode("ascii", "replace")
    if tag == _SHORT_YEAR:
        text = ("19" if text >= "5" else "20") + text
    if not _TIME.fullmatch(text):
        return None
    try:
        return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()) * 1000
    except ValueError:  # there is no such day
        return None


def _from_subject(certificate: bytes) -> bytes:
    """The fields of a certificate from its subject on. IndexError."""
    return _item(_from_validity(certificate))[2]


def _from_validity(certificate: bytes) -> bytes:
    """The fields of a certificate from those on that say from when to when it is valid. IndexError."""
    _, whole, _ = _item(certificate)
    _, fields, _ = _item(whole)
    tag, _, rest = _item(fields)
    if tag == _VERSION:
        _, _, rest = _item(rest)  # the serial number
    for _ in range(2):  # the algorithm, the issuer
        _, _, rest = _item(rest)
    return rest


def _item(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of the first item of DER, and what is behind it."""
    size, position = data[1], 2
    if size & 0x80:
        count = size & 0x7F
        size, position = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if position + size > len(data):
        raise IndexError
    return data[0], data[position : position + size], data[position + size :]


def _items(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        tag, content, data = _item(data)
        found.append((tag, content))
    return found


def _relative(parts: bytes) -> str:
    """One part of a name. It may have several attributes, which are joined with a plus."""
    texts = []
    for _, attribute in _items(parts):
        _, kind, value = _item(attribute)
        tag, content, _ = _item(value)
        word = _WORDS.get(kind)
        if word is None:
            texts.append(
                f"{_dotted(kind)}=#{bytes([tag]).hex()}{value[1 : len(value) - len(content)].hex()}{content.hex()}"
            )
        else:
            texts.append(f"{word}={_escaped(content.decode('utf-8', 'replace'))}")
    return "+".join(texts)


def _escaped(text: str) -> str:
    shown = "".join(f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text)
    inner = shown.strip(" ")
    if not inner:
        return "\\ " * len(shown)
    lead, trail = len(shown) - len(shown.lstrip(" ")), len(shown) - len(shown.rstrip(" "))
    return "\\ " * lead + inner + "\\ " * trail


def _dotted(kind: bytes) -> str:
    numbers, number = [], 0
    for byte in kind:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))
