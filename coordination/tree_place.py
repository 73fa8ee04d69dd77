"""Whether the file that a process has open as its tree is still the one that others would open.

If somebody puts another file in its place while it is in use (a backup, say), a broker that starts would be in another
cluster than those that run, and would lead the same partitions. So those that run give up their sessions at once, and
get no others. And a broker does not start while processes live that have another file open.
"""

import logging
from contextlib import suppress

from barnabas.coordination.port import ConnectionLossError
from barnabas.coordination.session_files import SessionFiles
from barnabas.runtime.ports import Disk

logger = logging.getLogger("barnabas.coordination")


class TreePlace:
    """The name of the file, and what is wrong with it."""

    def __init__(self, disk: Disk, path: str, sessions: SessionFiles) -> None:
        self.wrong = ""  # a sentence; empty: this process may use its file
        self._disk = disk
        self._path = path
        self._sessions = sessions
        self._opened = (0, 0)  # device and inode
        self._size = 0  # SQLite never makes it smaller
        self._is_gone = False
        self._is_older = False

    @property
    def inode(self) -> int:
        """Of the file that is open."""
        return self._opened[1]

    def check_that_nobody_uses_another(self) -> None:
        """ConnectionLossError if processes live that use a file which was in this place before."""
        try:
            inode = self._disk.identity(self._path)[1]
        except FileNotFoundError:
            inode = 0
        strangers = [each for each in self._sessions.alive() if self._sessions.tree_inode(each) not in (inode, None)]
        if strangers:
            processes = sorted({process for each in strangers for process in self._sessions.processes(each)})
            who = ", ".join(map(str, processes)) or "that run"
            raise ConnectionLossError(
                "",
                f"{self._path} was replaced while it is in use: the processes {who} have another file open. Stop them "
                "first. Then put the right file there, and start all brokers",
            )

    def note_opened(self) -> None:
        """The file that is there now is opened."""
        with suppress(FileNotFoundError):  # it is gone again: `look` says so
            self._opened = self._disk.identity(self._path)

    def look(self) -> bool:
        """Whether the file in this place is the one that is open, or there is none. Says what is wrong, once.

        Without one, those that have it open go on with it, and nobody else finds it.
        """
        try:
            found, size = self._disk.identity(self._path), self._disk.file_size(self._path)
        except FileNotFoundError:
            if not self._is_gone:
                self._is_gone = True
                logger.error(
                    "%s was removed or renamed while it is in use: a broker that starts does not find it, and what it "
                    "says is lost when the last one stops. Give the file its name back; or stop all, and restore a "
                    "backup.",
                    self._path,
                )
            return not self.wrong
        self._is_gone = False
        if found != self._opened:
            self._say(f"{self._path} was replaced by another file while it is in use")
        elif size < self._size:
            self.note_older()
        elif self.wrong and not self._is_older:
            logger.warning("%s is the file again that this broker uses, which goes on", self._path)
            self.wrong = ""
        if not self.wrong:
            self._size = size
        return not self.wrong

    def note_older(self) -> None:
        """The file says less than it said before. Nothing makes that good in this process."""
        self._is_older = True
        self._say(f"{self._path} is older than it was: another file was copied over it while it is in use")

    def _say(self, wrong: str) -> None:
        if not self.wrong:
            self.wrong = wrong
            logger.error(
                "%s. Brokers that start would use the other file and lead the same partitions, so this broker serves "
                "nothing any more of what it leads. Stop all brokers of this tree, put the right file there (and move "
                "away a -wal and -shm that do not belong to it), and start them.",
                wrong,
            )
