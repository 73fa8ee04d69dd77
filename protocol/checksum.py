"""CRC-32C (Castagnoli), the checksum of record batches and producer snapshots."""

from collections.abc import Callable
from typing import Any, Protocol, cast

Buffer = bytes | bytearray | memoryview


def _load() -> Callable[..., int]:
    """The function of the package `crc32c`, taken from its extension module alone.

    To import the whole package would take 30 ms of every start, because it imports importlib.metadata and argparse. If
    the extension cannot be loaded alone, the package is imported as usual.
    """
    try:
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec

        package: Any = PathFinder.find_spec("crc32c")
        spec: Any = PathFinder.find_spec("_crc32c", package.submodule_search_locations)
        module: Any = module_from_spec(spec)
        spec.loader.exec_module(module)
        function = cast("Callable[..., int]", module.crc32c)
        if function(b"123456789") == 0xE3069283:
            return function
    except (ImportError, AttributeError):
        pass
    import crc32c as whole_package

    return cast("Callable[..., int]", whole_package.crc32c)


class _Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


crc32c: _Checksum = _load()
"""Checksum of `data`; `value` is that of the bytes before it, to compute it piece by piece."""
