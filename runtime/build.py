"""Which build runs: the source as it stands, or with modules that setup.py has compiled from it."""

from barnabas.protocol import varint


def build_name() -> str:
    """`compiled` or `pure`. A wheel of compiled modules is pure for another Python than the one that built it."""
    return "pure" if varint.__file__.endswith(".py") else "compiled"
