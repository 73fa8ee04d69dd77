"""CRC-32C (Castagnoli), the checksum of record batches and producer snapshots."""

from collections.abc import Callable
from typing import Any, Protocol, cast

Buffer = bytes | bytearray | memoryview


def _load() -> Callable[..., int]:
    """The function out of the extension module of the package `crc32c`.

    The package itself imports importlib.metadata and argparse for its own version and command line: 30 ms of our
    start. So its extension is loaded alone; when that is not possible, the package is imported as usual.
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
