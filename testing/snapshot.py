"""What brokers had at a moment, in a folder."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from barnabas.runtime import directory_copies
from barnabas.runtime.counted import counted
from barnabas.testing.control import CommandError

TREE_FILE = "coordination.sqlite"  # of a cluster, beside the data of its brokers


@dataclass(frozen=True)
class Snapshot:
    """All that brokers had at a moment: records, offsets, groups, transactions, the tree, and how far time had gone."""

    folder: Path
    clock_ahead_ms: int
    next_requests: dict[int, int] = field(default_factory=dict)
    """Of each broker that ran: the number of its next request, as `Barnabas.requests(since=…)` takes it."""

    def copy(self, source: Path, left_out: Sequence[str], brokers: int) -> None:
        """Make it of the folder of so many brokers, none of which runs. OSError."""
        try:
            directory_copies.copy(source, self.folder, left_out=left_out, with_links=brokers == 1)
            tree = () if brokers == 1 else directory_copies.files_of_tree(str(self.folder / TREE_FILE))
            directory_copies.write_note(self.folder, self.clock_ahead_ms, None, brokers, tree)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def check(self, cluster_id: str | None, brokers: int) -> None:
        """CommandError unless it is whole, and of so many brokers of this cluster; None: of any."""
        try:
            count = len(directory_copies.read_note(self.folder).files)
            clusters = [directory_copies.owner(self.folder / str(number)).get("cluster.id") for number in range(count)]
        except (OSError, ValueError) as error:
            message = f"{self.folder} is not the folder of a whole snapshot ({error})."
            raise CommandError("SNAPSHOT_FAILED", message) from None
        if count != brokers:
            raise CommandError("SNAPSHOT_FAILED", f"{self.folder} is of {counted(count, 'broker')}, not of {brokers}.")
        if set(clusters) != {cluster_id or clusters[0]}:
            raise CommandError("SNAPSHOT_FAILED", f"{self.folder} is of other brokers.")

    def copy_to(self, target: Path) -> None:
        """Copy what it has into a folder that has none of it. OSError."""
        is_of_one = not (self.folder / TREE_FILE).exists()  # the logs of several are cut off in place
        directory_copies.copy(self.folder, target, left_out=(directory_copies.NOTE,), with_links=is_of_one)

    def put_back(self, target: Path, left_out: Sequence[str]) -> None:
        """Replace what is in the folder of its brokers, none of which runs. OSError: that is as it was."""
        copied = target / "snapshot-put-back"
        try:
            self.copy_to(copied)
        except OSError:
            shutil.rmtree(copied, ignore_errors=True)
            raise
        directory_copies.clear(target, left_out=[*left_out, copied.name])
        for entry in copied.iterdir():
            entry.rename(target / entry.name)
        copied.rmdir()


def check_type(given: object) -> None:
    """TypeError unless it is a snapshot."""
    if not isinstance(given, Snapshot):
        raise TypeError(f"a snapshot is what kafka.snapshot() returns, not {type(given).__name__}")
