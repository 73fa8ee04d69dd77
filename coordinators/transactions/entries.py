"""The transactional ids of one shard: those in use as entries, idle ones as their records have them.

A coordinator loads a hundred thousand ids, and few of them are used. The value of an idle one that its coordinator
wrote has one of few forms, of which nothing can be wrong (`records.is_plain`). So it stays as it stands in the log, and
is decoded when the id is used. That takes half of the memory, and a load has less to do.
"""

from collections.abc import Iterator

from barnabas.coordinators.transactions.decisions import Entry
from barnabas.coordinators.transactions.records import decode_plain


class Entries:
    """By transactional id."""

    __slots__ = ("_in_use", "_stored")

    def __init__(self) -> None:
        self._in_use: dict[str, Entry] = {}
        self._stored: dict[str, bytes] = {}  # values of idle ids, which nothing is known of but their records

    def __len__(self) -> int:
        return len(self._in_use) + len(self._stored)

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._in_use or transactional_id in self._stored

    def get(self, transactional_id: str) -> Entry | None:
        """The entry of an id that is used now."""
        entry = self._in_use.get(transactional_id)
        if entry is None:
            value = self._stored.pop(transactional_id, None)
            if value is not None:
                entry = self._in_use[transactional_id] = Entry(decode_plain(transactional_id, value))
        return entry

    def __getitem__(self, transactional_id: str) -> Entry:
        entry = self._in_use.get(transactional_id) or self.get(transactional_id)
        if entry is None:
            raise KeyError(transactional_id)
        return entry

    def look(self, transactional_id: str) -> Entry | None:
        """The entry of an id that is only looked at. Changes of it may be lost."""
        value = self._stored.get(transactional_id)
        if value is not None:
            return Entry(decode_plain(transactional_id, value))
        return self._in_use.get(transactional_id)

    def add(self, entry: Entry) -> None:
        """Add one, unless the id is known."""
        transactional_id = entry.transaction.transactional_id
        if transactional_id not in self._stored:
            self._in_use.setdefault(transactional_id, entry)

    def store(self, transactional_id: str, value: bytes) -> None:
        """Keep an idle id as the plain value of its record."""
        self._in_use.pop(transactional_id, None)
        self._stored[transactional_id] = value

    def remove(self, transactional_id: str) -> None:
        self._in_use.pop(transactional_id, None)
        self._stored.pop(transactional_id, None)

    def in_use(self) -> list[Entry]:
        """The entries of ids that are used, or were; all that are not idle are among them."""
        return list(self._in_use.values())

    def ids(self) -> list[str]:
        return [*self._in_use, *self._stored]

    def looks(self) -> Iterator[tuple[str, Entry]]:
        """All ids with their entries, to be looked at only. Ids may come and go meanwhile."""
        for transactional_id in self.ids():
            entry = self.look(transactional_id)
            if entry is not None:
                yield transactional_id, entry
