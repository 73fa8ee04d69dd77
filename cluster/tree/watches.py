"""The watches of one session with the embedded tree, and which of them a change by another process fires.

For changes of its own session the tree says what happened (`tell`). For changes made by other processes, `compare`
looks at the nodes that were touched since the last look, and compares each with the zxid at which its watch was left,
as ZooKeeper does for a client that reconnects. Several changes between two looks bring one event. A node that was made
and deleted again in between brings none.
"""

from collections.abc import Callable, Iterator, Sequence

from barnabas.cluster.tree.operations import parent_of
from barnabas.cluster.tree.port import EventType, Watch, WatchEvent
from barnabas.cluster.tree.tree_file import TreeFile
from barnabas.protocol.named_tuple import NamedTuple


class _Watched(NamedTuple):
    watch: Watch
    zxid: int  # of the tree when it was left
    existed: bool


class Watches:
    """Watches are called by `call_soon`, in the order of the changes."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._call_soon = call_soon
        self._data: dict[str, list[_Watched]] = {}
        self._children: dict[str, list[_Watched]] = {}
        self._session = object()  # another one when all watches were dropped

    def leave_on_data(self, path: str, watch: Watch, zxid: int, *, existed: bool) -> None:
        """Leave a watch on a node that was read, or found missing, at that time."""
        self._data.setdefault(path, []).append(_Watched(watch, zxid, existed))

    def leave_on_children(self, path: str, watch: Watch, zxid: int) -> None:
        """Leave a watch on a node whose children were read at that time."""
        self._children.setdefault(path, []).append(_Watched(watch, zxid, existed=True))

    def drop_all(self) -> None:
        """Forget all watches, also those that fired but were not called yet."""
        self._data.clear()
        self._children.clear()
        self._session = object()

    def tell(self, event: WatchEvent) -> None:
        """Fire the watches that wait for this event."""
        if event.type is not EventType.CHILDREN:
            self._fire(self._data.pop(event.path, ()), event)
        if event.type in (EventType.CHILDREN, EventType.DELETED):
            self._fire(self._children.pop(event.path, ()), event)

    def compare(self, file: TreeFile, since: int) -> None:
        """Fire the watches whose nodes were changed after `since` and after the watch was left."""
        if not self._data and not self._children:
            return
        touched = _Touched(file, since)
        due: list[tuple[int, WatchEvent, _Watched]] = []
        for watches, children in ((self._data, False), (self._children, True)):
            for path in [path for path in watches if path in touched.paths or touched.is_gone(path)]:
                for one in watches[path]:
                    change = _change_since(file, path, one, children=children)
                    if change is not None:
                        due.append((*change, one))
                        watches[path] = [other for other in watches[path] if other is not one]
                if not watches[path]:
                    del watches[path]
        for _, event, one in sorted(due, key=lambda change: change[0]):
            self._fire((one,), event)

    def _fire(self, watched: Sequence[_Watched], event: WatchEvent) -> None:
        session = self._session

        def deliver(watch: Watch) -> None:
            if self._session is session:
                watch(event)

        for one in watched:
            self._call_soon(lambda watch=one.watch: deliver(watch))  # type: ignore[misc]


class _Touched:
    """What was changed since a look at the tree. There may be very many nodes, so few of them are asked for."""

    def __init__(self, file: TreeFile, since: int) -> None:
        self.paths = file.changed_since(since)  # of nodes that are there
        self._file = file
        self._names: dict[str, set[str]] = {}  # the children of those nodes

    def is_gone(self, path: str) -> bool:
        """Whether a node that was not touched itself is not there any more.

        That shows as a change of its parent, or of the nearest node above that is there.
        """
        child = path
        for above in _above(path):
            if above in self.paths:
                return child.rpartition("/")[2] not in self._names_in(above)
            child = above
        return False

    def _names_in(self, path: str) -> set[str]:
        names = self._names.get(path)
        if names is None:
            names = self._names[path] = set(self._file.children(path))
        return names


def _change_since(file: TreeFile, path: str, watched: _Watched, *, children: bool) -> tuple[int, WatchEvent] | None:
    """What happened to a node since a watch was left on it, and when."""
    last = file.last_changes(path)
    if last is None:
        if not watched.existed:
            return None
        above = file.last_changes(parent_of(path))
        return (0 if above is None else above.pzxid), WatchEvent(EventType.DELETED, path)
    if not watched.existed:
        return last.czxid, WatchEvent(EventType.CREATED, path)
    changed_at, event_type = (last.pzxid, EventType.CHILDREN) if children else (last.mzxid, EventType.DATA)
    return (changed_at, WatchEvent(event_type, path)) if changed_at > watched.zxid else None


def _above(path: str) -> Iterator[str]:
    """The nodes above a node, up to the root."""
    while path != "/":
        path = parent_of(path)
        yield path
