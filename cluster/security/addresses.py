"""Addresses of IPv4 and IPv6, as people write them (pure)."""

from ipaddress import ip_address


def is_address(text: str) -> bool:
    """Whether a text is an address, and no name or network."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_same(text: str, address: str) -> bool:
    """Whether a text is this address. That of IPv6 can be written in many ways: Kafka has rules for 0:0:0:0:0:0:0:1."""
    if text == address or ":" not in text:
        return text == address
    try:
        return ip_address(text) == ip_address(address)
    except ValueError:
        return False


def in_one_way(address: str) -> str:
    """An address in one way of writing: that of IPv4 if it is one inside IPv6, as Java has it."""
    try:
        found = ip_address(address)
    except ValueError:  # somebody wrote it into the tree by hand
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)
