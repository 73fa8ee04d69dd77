"""A disk in memory. It knows what would survive a power cut, and fails when a test wants it to."""

import copy
import errno
import random
from collections.abc import Callable, Sequence
from typing import Any

from barnabas.runtime.ports import Buffer, Clock, DirectoryLock, File, SyncFailedError

ALWAYS = 1 << 62  # so many times an operation fails that fails until `repair`
UNBOUNDED = 1 << 40
_WRITTEN_TOGETHER = 21  # bytes: a batch up to its attributes


class PowerLoss(BaseException):
    """The machine stopped in the middle of an operation. Nothing but a test catches it."""


class _Inode:
    """A file's content: the stable bytes, and the changes since."""

    __slots__ = ("data", "modified_ms", "stable", "unsynced")

    def __init__(self, modified_ms: int) -> None:
        self.data = bytearray()
        self.stable = bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []  # (position, bytes written), or (new size, None)
        self.modified_ms = modified_ms

    def sync(self, operations: int) -> None:
        for position, content in self.unsynced[:operations]:
            _apply(self.stable, position, content)
        del self.unsynced[:operations]


class _Directory:
    __slots__ = ("entries", "modified_ms", "stable")

    def __init__(self, modified_ms: int) -> None:
        self.entries: dict[str, _Inode | _Directory] = {}
        self.stable: dict[str, _Inode | _Directory] = {}
        self.modified_ms = modified_ms


def _apply(data: bytearray, position: int, content: bytes | None) -> None:
    if content is None:
        if position < len(data):
            del data[position:]
        else:
            data.extend(bytes(position - len(data)))
        return
    if position > len(data):
        data.extend(bytes(position - len(data)))
    data[position : position + len(content)] = content


class SimFile:
    """An open file. After a crash it cannot be used any more."""

    __slots__ = ("_disk", "_life", "_open", "_read_only", "inode", "path")

    def __init__(self, disk: "SimDisk", path: str, inode: _Inode, read_only: bool) -> None:
        self._disk = disk
        self._life = disk.life
        self._open = True
        self._read_only = read_only
        self.path = path
        self.inode = inode
        disk.open_files += 1

    def _check(self) -> None:
        if not self._open or self._life != self._disk.life:
            raise OSError(errno.EBADF, f"not open: {self.path}")

    def size(self) -> int:
        """Bytes written so far."""
        self._check()
        return len(self.inode.data)

    def read(self, position: int, length: int) -> bytes:
        """Bytes from `position`."""
        self._check()
        self._disk.raise_planned_failure("read", self.path)
        return bytes(self.inode.data[position : position + length])

    def write(self, position: int, data: Buffer) -> None:
        """Write bytes, which are unsynced until `sync`."""
        self._check()
        if self._read_only:
            raise OSError(errno.EBADF, f"opened for reading: {self.path}")
        self._disk.begin_change("write", self.path)
        content = bytes(data)
        room = self._disk.room_for(self.inode, position + len(content))
        if room < 0:
            content = content[:room]
        _apply(self.inode.data, position, content)
        self.inode.unsynced.append((position, content))
        self.inode.modified_ms = self._disk.clock.now_ms()
        if room < 0:
            raise OSError(errno.ENOSPC, "simulated: no space left", self.path)

    def truncate(self, size: int) -> None:
        """Cut or extend the file, unsynced until `sync`."""
        self._check()
        self._disk.begin_change("truncate", self.path)
        _apply(self.inode.data, size, None)
        self.inode.unsynced.append((size, None))
        self.inode.modified_ms = self._disk.clock.now_ms()

    def sync(self) -> None:
        """Make the content stable, but not the file's name (see `sync_directory`)."""
        self._check()
        self._disk.begin_change("sync", self.path)
        self.inode.sync(len(self.inode.unsynced))

    def close(self) -> None:
        """Close without syncing."""
        if self._open and self._life == self._disk.life:
            self._disk.open_files -= 1
        self._open = False

    def __del__(self) -> None:
        self.close()


class _SimLock:
    def __init__(self, disk: "SimDisk", path: str) -> None:
        self._disk = disk
        self._path = path
        self._life = disk.life

    def release(self) -> None:
        if self._life == self._disk.life:
            self._disk.locks.discard(self._path)


class SimDisk:
    """File system in memory.

    `operations` counts the changes of the disk (create, write, truncate, sync, rename, remove, sync_directory,
    make_directory). Crash tests lose power at each of them in turn.
    """

    syncs = True

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self.clock = clock
        self.rng = rng
        self.life = 0
        self.boots = 1
        self.operations = 0
        self.on_change: Callable[[str, str], None] | None = None  # called before each change
        self.journal: list[tuple[str, str]] | None = None  # set to a list to see every change
        self.locks: set[str] = set()
        self.capacity_bytes = UNBOUNDED  # writes beyond it are done in part and raise ENOSPC
        self.open_files_limit: int | None = None  # opening one more raises EMFILE
        self.open_files = 0
        self.read_only = False  # changes raise EROFS
        self.sync_ms = 0.0  # how long a sync in the background takes; 0: until the next event
        self._root = _Directory(clock.now_ms())
        self._lose_power_at: int | None = None
        self._failures: list[tuple[str, str, Exception, list[int]]] = []

    # -- what a test can do to it

    def lose_power_at(self, operation: int) -> None:
        """Raise PowerLoss instead of doing the change of this number (see `operations`) and all later ones."""
        self._lose_power_at = operation

    def fail(self, operation: str, path_part: str = "", error: Exception | None = None, times: int = 1) -> None:
        """Let the next `times` operations of that kind on paths that contain `path_part` raise OSError."""
        self._failures.append((operation, path_part, error or OSError(errno.EIO, "simulated"), [times]))

    def copy(self, clock: Clock | None = None, rng: random.Random | None = None) -> "SimDisk":
        """A new disk with the same content, synced and unsynced. No file is open on it."""
        other = SimDisk(clock or self.clock, rng or random.Random(0))
        other.operations = self.operations
        other._root = copy.deepcopy(self._root)
        return other

    def put_back(self, other: "SimDisk") -> None:
        """Have the content of a copy, and no other. No file may be open."""
        self._root = copy.deepcopy(other._root)

    def content(self, path: str) -> dict[str, bytes | None]:
        """Every file below a folder with its content, and every folder (None), by path."""
        found: dict[str, bytes | None] = {}
        for name, node in self._folder(path).entries.items():
            below = f"{path.rstrip('/')}/{name}"
            if isinstance(node, _Directory):
                found[below] = None
                found |= self.content(below)
            else:
                found[below] = bytes(node.data)
        return found

    def data_of(self, path: str) -> bytearray:
        """A file's content as it is now, synced or not: no copy, to be looked at and not to be kept."""
        return self._file(path).data

    def copy_tree(self, source: str, target: str) -> None:
        """Copy a folder and its content, synced or unsynced as it is. The copy's own name is durable."""
        parent, name = self._parent(target)
        parent.entries[name] = parent.stable[name] = copy.deepcopy(self._folder(source))

    def repair(self) -> None:
        """End all failures that a test asked for."""
        self._failures.clear()

    @property
    def is_losing_power(self) -> bool:
        """Whether a power loss is planned, or has happened and `crash` has not been called yet."""
        return self._lose_power_at is not None

    def crash(self, unsynced: str = "lost") -> None:
        """Cut the power: open files cannot be used any more, and locks are gone.

        Unsynced changes are `lost`, `kept`, `torn` or `scattered`. `torn`: each file keeps some of its changes in
        order, the last of them cut anywhere, and each folder keeps some of its new names (by the disk's own random
        stream). `scattered`: as `torn`, but each change of a file is kept or lost on its own, so that holes of zeros
        remain, also inside a change.
        """
        assert unsynced in ("lost", "kept", "torn", "scattered")
        self.life += 1
        self.boots += unsynced != "kept"
        self.open_files = 0
        self.locks.clear()
        self._lose_power_at = None
        self._failures.clear()
        self._settle(self._root, unsynced)

    def _settle(self, directory: _Directory, unsynced: str) -> None:
        if unsynced == "lost":
            directory.entries = dict(directory.stable)
        elif unsynced in ("torn", "scattered"):
            names = sorted(directory.entries.keys() | directory.stable.keys())
            changed = [name for name in names if directory.entries.get(name) is not directory.stable.get(name)]
            survivors = {name for name in changed if self.rng.random() < 0.5}
            source = {name: (directory.entries if name in survivors else directory.stable) for name in changed}
            settled = {name: node for name, node in directory.stable.items() if name not in source}
            settled.update({name: source[name][name] for name in changed if name in source[name]})
            # A rename is atomic: there is always exactly one of the two names.
            kept = {id(node) for node in settled.values()}
            for name, node in directory.stable.items():
                moved = any(node is other for other in directory.entries.values())
                if id(node) not in kept and moved:
                    settled.setdefault(name, node)
            seen: set[int] = set()
            directory.entries = {}
            for name in sorted(settled):
                if id(settled[name]) not in seen:
                    seen.add(id(settled[name]))
                    directory.entries[name] = settled[name]
        directory.stable = dict(directory.entries)
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if isinstance(node, _Directory):
                self._settle(node, unsynced)
                continue
            if unsynced == "kept":
                node.sync(len(node.unsynced))
            elif unsynced == "scattered":
                for position, content in node.unsynced:
                    if self.rng.random() < 0.5:
                        _apply(node.stable, position, self._with_a_hole(content))
            elif unsynced == "torn" and node.unsynced:
                survivors_count = self.rng.randint(0, len(node.unsynced))
                torn = node.unsynced[survivors_count] if survivors_count < len(node.unsynced) else None
                node.sync(survivors_count)
                if torn is not None and torn[1]:
                    _apply(node.stable, torn[0], torn[1][: self.rng.randint(0, len(torn[1]))])
            node.unsynced.clear()
            node.data = bytearray(node.stable)

    def _with_a_hole(self, content: bytes | None) -> bytes | None:
        """What remains of one write if not all of its sectors were written.

        The first bytes always remain: no checksum covers these fields of a record batch, so their loss could not be
        noticed.
        """
        if not content or len(content) <= _WRITTEN_TOGETHER or self.rng.random() < 0.6:
            return content
        start = self.rng.randrange(_WRITTEN_TOGETHER, len(content))
        end = self.rng.randint(start, len(content))
        return content[:start] + bytes(end - start) + content[end:]

    # -- bookkeeping of changes and failures

    def raise_planned_failure(self, operation: str, path: str) -> None:
        """Raise the error that a test asked for, if there is one for this operation."""
        for kind, part, error, left in self._failures:
            if kind == operation and part in path and left[0] > 0:
                left[0] -= 1
                raise SyncFailedError(*error.args) if kind in ("sync", "sync_directory") else error

    def begin_change(self, operation: str, path: str) -> None:
        """Count a change of the disk. Raises if the power or the operation fails here."""
        if self._lose_power_at is not None and self.operations >= self._lose_power_at:
            raise PowerLoss(f"{operation} {path}")
        if self.on_change is not None:
            self.on_change(operation, path)
        self.operations += 1
        if self.journal is not None:
            self.journal.append((operation, path))
        if self.read_only and not operation.startswith("sync"):
            raise OSError(errno.EROFS, "simulated: read-only file system", path)
        self.raise_planned_failure(operation, path)

    def room_for(self, inode: _Inode, size: int) -> int:
        """How many bytes would be left if the file grew to `size`; negative if there is too little room."""
        if self.capacity_bytes == UNBOUNDED:
            return 0
        growth = max(size - len(inode.data), 0)
        return self.capacity_bytes - self._used(self._root) - growth if growth else 0

    # -- the tree

    def _parts(self, path: str) -> list[str]:
        assert path.startswith("/"), f"absolute paths only: {path}"
        return [part for part in path.split("/") if part]

    def _find(self, path: str) -> _Inode | _Directory:
        node: _Inode | _Directory = self._root
        for part in self._parts(path):
            if not isinstance(node, _Directory) or part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = node.entries[part]
        return node

    def _folder(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
        return node

    def _file(self, path: str) -> _Inode:
        node = self._find(path)
        if not isinstance(node, _Inode):
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parts = self._parts(path)
        return self._folder("/" + "/".join(parts[:-1])), parts[-1]

    # -- Disk

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file."""
        self.raise_planned_failure("open", path)
        if self.open_files_limit is not None and self.open_files >= self.open_files_limit:
            raise OSError(errno.EMFILE, "simulated: too many open files", path)
        if self.read_only and not read_only:
            raise OSError(errno.EROFS, "simulated: read-only file system", path)
        parent, name = self._parent(path)
        if name not in parent.entries:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.begin_change("create", path)
            parent.entries[name] = _Inode(self.clock.now_ms())
        return SimFile(self, path, self._file(path), read_only)

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: str) -> bool:
        """Whether it is a folder."""
        return self.exists(path) and isinstance(self._find(path), _Directory)

    def list_directory(self, path: str) -> list[str]:
        """Names, sorted."""
        self.raise_planned_failure("list", path)
        return sorted(self._folder(path).entries)

    def make_directory(self, path: str) -> None:
        """Make a folder and its parents."""
        node = self._root
        for part in self._parts(path):
            child = node.entries.get(part)
            if child is None:
                self.begin_change("make_directory", path)
                child = node.entries[part] = _Directory(self.clock.now_ms())
            if not isinstance(child, _Directory):
                raise FileExistsError(errno.EEXIST, "a file has that name", path)
            node = child

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._file(path)
        self.begin_change("remove", path)
        parent, name = self._parent(path)
        del parent.entries[name]

    def remove_tree(self, path: str) -> None:
        """Remove a folder."""
        if self.exists(path):
            self._folder(path)
            self.begin_change("remove", path)
            parent, name = self._parent(path)
            del parent.entries[name]

    def rename(self, source: str, target: str) -> None:
        """Atomically rename."""
        node = self._find(source)
        self.begin_change("rename", source)
        source_parent, source_name = self._parent(source)
        target_parent, target_name = self._parent(target)
        existing = target_parent.entries.get(target_name)
        if isinstance(existing, _Directory) and existing.entries:
            raise OSError(errno.ENOTEMPTY, "folder not empty", target)
        del source_parent.entries[source_name]
        target_parent.entries[target_name] = node

    def identity(self, path: str) -> tuple[int, int]:
        """See `Disk`."""
        return 0, id(self._file(path))

    def file_size(self, path: str) -> int:
        """Size."""
        return len(self._file(path).data)

    def modified_ms(self, path: str) -> int:
        """Time of the last change."""
        return self._find(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set it."""
        self._find(path).modified_ms = modified_ms

    def is_private(self, path: str) -> bool:
        """Nobody else is here."""
        return True

    def make_private(self, path: str, *, create: bool = False) -> bool:
        """Nobody else is here."""
        return True

    def sync_directory(self, path: str) -> None:
        """Make names durable."""
        folder = self._folder(path)
        self.begin_change("sync_directory", path)
        folder.stable = dict(folder.entries)

    def sync_in_background(
        self, files: Sequence[File], done: Callable[[OSError | None], None], directories: Sequence[str] = ()
    ) -> None:
        """Sync what was written up to now; `done` is called in a later event."""
        asked: list[tuple[Any, int]] = [(file, _changes_so_far(file)) for file in files]

        def finish() -> None:
            failure: OSError | None = None
            for file, operations in asked:
                try:
                    self.begin_change("sync", file.path)
                except OSError as error:
                    failure = failure or error
                    continue
                file.inode.sync(min(operations, len(file.inode.unsynced)))
            for path in directories:
                try:
                    self.sync_directory(path)
                except OSError as error:
                    failure = failure or error
            done(failure)

        life = self.life

        def finish_in_this_life() -> None:
            if life == self.life:
                finish()

        if self.sync_ms:
            self.clock.call_later(self.sync_ms, finish_in_this_life)
        else:
            self.clock.call_soon(finish_in_this_life)

    def sync_all(self, files: Sequence[str], directories: Sequence[str] = ()) -> dict[str, OSError]:
        """Sync files, then folders, one by one."""
        failures: dict[str, OSError] = {}
        for path in files:
            try:
                SimFile(self, path, self._file(path), read_only=True).sync()
            except OSError as error:
                failures[path] = error
        for path in directories:
            try:
                self.sync_directory(path)
            except OSError as error:
                failures[path] = error
        return failures

    def open_files_max(self) -> int:
        """The limit that a real system usually has."""
        return 1024 if self.open_files_limit is None else self.open_files_limit

    def total_and_free_bytes(self, path: str) -> tuple[int, int]:
        """Capacity, and what is left of it."""
        return self.capacity_bytes, self.capacity_bytes - self._used(self._root)

    def _used(self, directory: _Directory) -> int:
        return sum(
            self._used(node) if isinstance(node, _Directory) else len(node.data) for node in directory.entries.values()
        )

    def boot_id(self) -> str:
        """Another one after each loss of power."""
        return f"boot {self.boots}"

    def lock(self, path: str) -> DirectoryLock:
        """Take a lock; BlockingIOError when it is held."""
        if path in self.locks:
            raise BlockingIOError(f"{path} is locked")
        self.open(path, create=True).close()
        self.locks.add(path)
        return _SimLock(self, path)

    def is_locked(self, path: str) -> bool:
        """Whether it is held."""
        if path not in self.locks:
            self.open(path).close()
        return path in self.locks


def _changes_so_far(file: File) -> int:
    assert isinstance(file, SimFile)
    return len(file.inode.unsynced)
