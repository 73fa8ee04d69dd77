"""The fields of every message as text, a file per API and kind of stored record (notation: `protocol/schema.py`)."""

from typing import Any


def read(name: str) -> str:
    """The text of `NAME.txt` in this folder, also in a zipped package. FileNotFoundError."""
    loader: Any = __loader__  # type: ignore[name-defined]  # set by the import system, unknown to mypy
    text: str = loader.get_data(f"{__path__[0]}/{name}.txt").decode("utf-8")
    return text
