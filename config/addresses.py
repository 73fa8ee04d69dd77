"""Addresses of IPv4 and IPv6, as people write them, and as Java does (pure)."""

from ipaddress import IPv6Address, ip_address
from struct import Struct

GROUPS = Struct(">8H")


def is_address(text: str) -> bool:
    """Whether a text is an address, and no name or network."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_ipv6(text: str) -> bool:
    """Whether a text is an address of IPv6, without brackets."""
    return ":" in text and is_address(text)


def is_same(text: str, address: str) -> bool:
    """Whether a text is this address. That of IPv6 can be written in many ways."""
    return text == address or (":" in text and as_java(text) == as_java(address))


def as_java(address: str) -> str:
    """An address as Java writes it, and so Kafka: 0:0:0:0:0:0:0:1. One of IPv4 inside IPv6 is that of IPv4."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address)
    except ValueError:  # somebody wrote it into the tree by hand
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    text = ":".join(f"{group:x}" for group in GROUPS.unpack(found.packed))
    return text if found.scope_id is None else f"{text}%{found.scope_id}"
