"""What is on a disk below a folder, to be compared: a start that is refused changes nothing of it."""

from pathlib import Path

State = dict[str, tuple[bytes | None, int]]


def state(folder: Path) -> State:
    """Every name below a folder: the bytes of files, and when it was changed."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


def changes(before: State, after: State) -> list[str]:
    """The names that are new, gone, or not as they were."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
