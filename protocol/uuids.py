"""Topic ids and other UUIDs: 16 bytes in memory and on the wire, URL-safe base64 without padding in text."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

ZERO = bytes(16)
"""No id: what older versions of a message read as."""


def to_text(uuid: bytes) -> str:
    """22 characters, as Kafka prints and stores ids."""
    return urlsafe_b64encode(uuid)[:22].decode("ascii")


def from_text(text: str) -> bytes:
    """The 16 bytes of an id's text. ValueError when it is not one."""
    if len(text) != 22 or not _ALPHABET.issuperset(text):
        raise ValueError(f"not a base64 id of 22 characters: {text!r}")
    return urlsafe_b64decode(text + "==")


_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
