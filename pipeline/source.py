"""Where a job reads from: what `--source` says."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

META_FILE = "meta.properties"  # every data directory has one


@dataclass(frozen=True)
class Source:
    """Brokers, or data directories."""

    brokers: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()

    def table(self, spark: "SparkSession", name: str, **options: str) -> "DataFrame":
        """`commits`, `groups`, `records` or `batches`."""
        return spark.read.format(f"barnabas.{name}").options(**self._where(), **options).load()

    def stream(self, spark: "SparkSession", name: str, **options: str) -> "DataFrame":
        """The same as a stream."""
        return spark.readStream.format(f"barnabas.{name}").options(**self._where(), **options).load()

    def _where(self) -> dict[str, str]:
        if self.brokers:
            return {"brokers": ",".join(self.brokers)}
        return {"directories": ",".join(self.directories)}


def source_of(text: str) -> Source:
    """`HOST:PORT[,…]`, a data directory or several with commas, or a directory that holds those of several brokers.

    ValueError says what is wrong with it.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError("a source is HOST:PORT or a data directory")
    if all(_is_address(part) and not Path(part).exists() for part in parts):
        return Source(brokers=tuple(parts))
    found: list[Path] = []
    for part in parts:
        path = Path(part)
        inside = sorted(file.parent for file in path.glob(f"*/{META_FILE}"))
        if (path / META_FILE).is_file():
            found.append(path)
        elif inside:
            found += inside
        else:
            what = "is no data directory: it has no meta.properties" if path.exists() else "does not exist"
            raise ValueError(f"{part} {what}")
    return Source(directories=tuple(str(path.resolve()) for path in found))


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isascii() and port.isdecimal())
