"""Whether the files that a process has open as its tree are still those that others would open.

These are the file itself, and the -wal and the -shm that SQLite has beside it: the newest part of the tree, and the
locks that all processes share. If somebody puts another file in the place of one of them while it is in use (a backup,
say), a broker that starts would be in another cluster than those that run, and would lead the same partitions. So those
that run give up their sessions at once, and get no others. If one of them is only removed, those that run go on with
what they have open. In both cases no broker starts while processes live that have another file open.

What the file itself says, without its -wal, gets newer and never older, also when it gets shorter (VACUUM). Beside the
tree stands the number of its last change, in a file of its own. So a tree that is older than it was is known at its
next start: its -wal was lost, or it is an older copy.
"""

import logging
from contextlib import suppress

from barnabas.cluster.tree.session_files import Files, SessionFiles
from barnabas.cluster.tree.tree_file import TreeFile
from barnabas.cluster.tree.tree_opening import INDEX, LOG, BusyError, beside, counters_on_disk
from barnabas.runtime.ports import Disk, File

logger = logging.getLogger("barnabas.coordination")

PARTS = ("", LOG, INDEX)
NEWEST = ".newest"  # the end of the name of the file with the number of the last change
UNREADABLE_LOOKS_MAX = 10  # so often in a row the file may be unreadable, because somebody writes it
ZXID_MAX = 1 << 62  # SQLite's numbers have 63 bits, and those of a restored tree go on beyond the newest
STRANGE_MAX = 2  # so often in a row it may be so with all of its -wal in it, because somebody wrote in between


def read_by_others(disk: Disk, path: str) -> list[str]:
    """Those files of a tree that others than its user can read. It may hold passwords."""
    return [name for part in PARTS if not disk.is_private(name := _name(path, part))]


def _name(path: str, part: str) -> str:
    """Of a part of the tree. If the file itself is a link, its own name counts: somebody may let it lead elsewhere."""
    return beside(path, part) if part else path


class TreePlace:
    """The names of the files, and what is wrong with them."""

    def __init__(self, disk: Disk, path: str, sessions: SessionFiles) -> None:
        self.wrong = ""  # a sentence; empty: this process may use its file
        self._disk = disk
        self._path = path
        self._sessions = sessions
        self.files: Files = []  # those that are open
        self._written: tuple[int, int] | None = None  # when the file was last written, and its size
        self._zxid_on_disk = 0
        self._unreadable_looks = 0
        self._strange_looks = 0
        self._gone: set[str] = set()  # those of PARTS that were removed
        self._is_older = False
        self._newest: File | None = None

    @property
    def has_lost_log(self) -> bool:
        """Whether a process that starts would not find what is in the -wal."""
        return bool(self._gone)

    @property
    def trouble(self) -> str:
        """What is wrong, also if those that run can go on; empty: nothing."""
        if self.wrong or not self._gone:
            return self.wrong
        return f"{self._what_is_gone()} removed or renamed while in use"

    @property
    def is_unreadable(self) -> bool:
        """Whether the file has been unreadable without its -wal for so long that nobody can just be writing it.

        It is another one, or the disk is full: then SQLite has written a part of the -wal into it, and keeps the rest.
        """
        return self._unreadable_looks >= UNREADABLE_LOOKS_MAX

    def keep_private(self) -> None:
        """Let nobody else read the files, which may hold passwords. What SQLite makes has the rights of the first."""
        for part in PARTS:
            self._disk.make_private(_name(self._path, part), create=not part)
        for path in read_by_others(self._disk, self._path):
            logger.warning("others can read %s, which may hold passwords: chmod 600 it, as its owner", path)

    def check_that_nobody_uses_another(self) -> None:
        """BusyError if processes live that use files which were in this place before.

        One that stops looks like that for a moment: it has closed its files, and its session's file is still there.
        """
        here = self._found()
        strangers = []
        for session_id in self._sessions.alive():
            owner = self._sessions.owner(session_id)
            if owner is not None and owner.files != here:
                strangers.append((session_id, owner))
        if strangers:
            processes = {process for session_id, _ in strangers for process in self._sessions.processes(session_id)}
            who = ", ".join(map(str, sorted(processes))) or "processes that run"
            _, owner = strangers[0]
            # Only removed: what they write is the file, and nothing is to be put beside it.
            is_other = here[0] != owner.files[0] or any(now and now != then for now, then in zip(here, owner.files))
            then = "put the right file there, and " if is_other else ""
            parts = [
                f"{_name(self._path, part)} was {'replaced' if now else 'removed'}"
                for part, now, then in zip(PARTS, here, owner.files)
                if now != then
            ]
            raise BusyError(
                "",
                f"{' and '.join(parts)} while in use by {who}. Stop them first, with SIGTERM: the last one to stop "
                f"writes all that they know into the file that they have open. Then {then}start all brokers",
            )

    def note_opened(self) -> None:
        """The files that are there now are opened."""
        self.files = self._found()
        written = self._last_written()  # before it is read
        counters = counters_on_disk(self._path)
        if counters is not None:
            self._zxid_on_disk, self._written = counters.zxid, written
        with suppress(OSError):
            self._newest = self._disk.open(f"{self._path}{NEWEST}", create=True)

    def close(self) -> None:
        """Nothing is open any more."""
        newest, self._newest = self._newest, None
        if newest is not None:
            newest.close()

    def newest_zxid(self) -> int:
        """The number of the last change that was noted here; 0: none, or the file is damaged."""
        try:
            noted = b"" if self._newest is None else self._newest.read(0, 20)
        except OSError:
            return 0
        if not noted:
            return 0
        zxid = int(noted) if noted.isdigit() else ZXID_MAX
        if zxid < ZXID_MAX:
            return zxid
        logger.warning(
            "%s%s is damaged, it says %r: whether the tree is older than it was is not known from it",
            *(self._path, NEWEST, noted.decode("ascii", "replace")),
        )
        return 0

    def mark_if_older(self, file: TreeFile) -> None:
        """Note in the tree, which a session begins to use, if it is older than it was when it was last used."""
        zxid, newest = file.zxid(), self.newest_zxid()
        if zxid < newest:
            logger.error(
                "%s is older than it was: it ends with change %d, and there were %d. Its -wal was lost, or it is an "
                "older copy. What was changed since then (topics, settings, who leads) is not in it.",
                self._path,
                zxid,
                newest,
            )
            file.mark_restored(0, newest)

    def note_zxid(self, zxid: int) -> None:
        """A change was made and synced. It is never noted before, so what is noted is never newer than the tree."""
        if self._newest is not None:
            with suppress(OSError):  # of a full disk, say: an older number does no harm
                self._newest.write(0, b"%020d" % zxid)

    def look(self) -> bool:
        """Whether the files in this place are those that are open, or are gone. Says what is wrong, once.

        Where one is gone, those that have it open go on with it, and nobody else finds it.
        """
        here = self._found()
        changed = [part for part, now, then in zip(PARTS, here, self.files) if now and now != then]
        gone = {part for part, now, then in zip(PARTS, here, self.files) if then and not now}
        is_news, self._gone = bool(gone - self._gone), gone
        if is_news:
            self._say_gone(gone)
        if changed:
            names = " and ".join(_name(self._path, part) for part in changed)
            self._say(f"{names} was replaced by another file while it is in use")
        elif not gone and not self._is_older and self._is_as_new_as_it_was() and self.wrong:
            logger.info("%s is again the file that this broker has open: recovered", self._path)
            self.wrong = ""
        return not self.wrong

    def note_older(self) -> None:
        """The file says less than it said before. Nothing makes that good in this process."""
        self._is_older = True
        self._say(f"{self._path} is older than it was: another file was copied over it while it is in use")

    def note_log_brought_in(self) -> bool:
        """All of the -wal is in the file. False: it still cannot be read, so another file was copied over it."""
        if self.is_unreadable:
            self._strange_looks = self._strange_looks + 1 if counters_on_disk(self._path) is None else 0
            if self._strange_looks >= STRANGE_MAX:
                self.note_older()
        return not self.wrong

    def _found(self) -> Files:
        return [self._identity(_name(self._path, part)) for part in PARTS]

    def _identity(self, path: str) -> list[int]:
        try:
            return list(self._disk.identity(path))
        except FileNotFoundError:
            return []

    def _is_as_new_as_it_was(self) -> bool:
        """Whether the file still says all that it said. It is rarely written, and only then it is read."""
        written = self._last_written()
        if written is None or written == self._written:  # None: gone just now, and the next look says so
            return True
        counters = counters_on_disk(self._path)
        if counters is None:
            self._unreadable_looks += 1
            return True
        self._unreadable_looks = self._strange_looks = 0
        if counters.zxid < self._zxid_on_disk:
            self.note_older()
            return False
        self._zxid_on_disk, self._written = counters.zxid, written
        return True

    def _last_written(self) -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            return self._disk.modified_ms(self._path), self._disk.file_size(self._path)
        return None

    def _what_is_gone(self) -> str:
        names = [_name(self._path, part) for part in PARTS if part in self._gone]
        return f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'}"

    def _say_gone(self, gone: set[str]) -> None:
        what = self._what_is_gone()
        if "" in gone:
            logger.error(
                "%s removed or renamed while in use: a broker that starts does not find the file, and what it "
                "says is lost when the last one stops. Give the file its name back; or stop all, and restore a "
                "backup.",
                what,
            )
        else:
            logger.error(
                "%s removed or renamed while in use: those brokers that run go on, and no broker can start "
                "beside them. Stop all brokers of this tree with SIGTERM, and start them: the last one to stop writes "
                "all that they know into %s.",
                what,
                self._path,
            )

    def _say(self, wrong: str) -> None:
        if not self.wrong:
            self.wrong = wrong
            logger.error(
                "%s. Brokers that start would use the other file and lead the same partitions, so this broker serves "
                "nothing any more of what it leads. Stop all brokers of this tree, put the right file there (and move "
                "away a -wal and -shm that do not belong to it), and start them.",
                wrong,
            )
