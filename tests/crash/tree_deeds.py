"""What an operator does to the file of a coordination tree: a backup, a backup put back, VACUUM, `rm`."""

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import forked

TREE = "coordination.sqlite"
BUSY_S = 30.0
SEEN_WITHIN_S = 1.0  # by brokers that look at it


def back_up(tree: Path, file: Path) -> None:
    """Make a backup by the command that README names; brokers may run."""
    forked.barnabas("cluster", "backup", str(file), "--tree", str(tree), code=0)


def put_back(file: Path, tree: Path) -> None:
    """Put a backup back as README says. No broker runs."""
    for path in tree.parent.glob(f"{tree.name}*"):
        if path.name in (tree.name, f"{tree.name}-wal", f"{tree.name}-shm"):
            path.unlink()
    shutil.copy(file, tree)


def remove_what_is_beside(tree: Path) -> None:
    """Remove what SQLite keeps beside the file; brokers run. Until they are stopped, the file itself is an old tree."""
    for end in ("-wal", "-shm"):
        Path(f"{tree}{end}").unlink()


def vacuum(tree: Path) -> None:
    """Make the file longer, and then as short as it can be, as another process; brokers run."""
    with closing(sqlite3.connect(tree, timeout=BUSY_S, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE scrap AS SELECT zeroblob(4000000)")
        connection.execute("DROP TABLE scrap")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        longest = tree.stat().st_size
        time.sleep(SEEN_WITHIN_S)
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert tree.stat().st_size < longest
