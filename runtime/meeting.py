"""The brokers of a cluster on one machine wait for each other, while a test ends their lives and begins new ones.

All go from step to step together (`reach`). The broker with the lowest node id is the host: the others connect to its
socket beside the tree, and each step is a line of JSON there, and one back. The end of a connection tells at once that
a process is gone. Files instead of a socket would have to be looked at again and again.
"""

import asyncio
import json
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

MET_WITHIN_S = 10.0  # until all have got the command of the test
STEP_WITHIN_S = 120.0  # a copy of very much data may take long
TRIED_EVERY_S = 0.005
LINE_BYTES_MAX = 1 << 24
PATH_BYTES_MAX = 100  # of a socket; the system's limit is 104 to 108

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Act = Callable[[dict[int, Any]], Any]  # what the host does when all have come that far


class MeetingError(Exception):
    """Not all brokers have come, or one has gone. The message says which."""


class Meeting:
    """One command of a test to all brokers of a cluster, as one of them takes part in it.

    `path` is that of the socket, `about` the command, which is the same for all.
    """

    def __init__(self, path: str, about: str, node_id: int, node_ids: Collection[int]) -> None:
        assert node_id in node_ids, "a broker meets others without itself"
        if len(path.encode()) > PATH_BYTES_MAX:
            raise MeetingError(f"the path {path} of a socket beside the tree is too long: use a shorter one")
        self._path = path
        self._about = about
        self._node_id = node_id
        self._host = min(node_ids)
        self._guests = sorted(set(node_ids) - {self._host})
        self._server: asyncio.AbstractServer | None = None
        self._came: dict[int, Peer] = {}  # at the host
        self._all_came = asyncio.Event()
        self._to_host: Peer | None = None
        self._is_over = False

    @property
    def is_host(self) -> bool:
        """Whether this broker does what is done for all."""
        return self._node_id == self._host

    async def reach(self, said: Any = None, act: Act | None = None) -> tuple[dict[int, Any], Any]:
        """Wait until all have come that far: what each has said, and what came of what the host then did.

        MeetingError: somebody is missing. Then the meeting is over, for all.
        """
        if self._is_over:
            raise MeetingError("it is over already")
        try:
            if self.is_host:
                return await self._as_host(said, act)
            return await self._as_guest(said)
        except TimeoutError:
            missing = self._missing()
            self.close()
            raise MeetingError(f"not all brokers took part in time: {missing}") from None
        except (OSError, ValueError) as error:  # a connection that ended, in the middle of a line perhaps
            self.close()
            raise MeetingError(str(error)) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._is_over = True
        server, self._server = self._server, None
        if server is not None:
            server.close()
            with suppress(OSError):
                os.unlink(self._path)
        for _, writer in (*self._came.values(), *([] if self._to_host is None else [self._to_host])):
            writer.close()
        self._came.clear()
        self._to_host = None

    def _missing(self) -> str:
        if not self.is_host:
            return f"broker {self._host} does not answer"
        missing = [str(number) for number in self._guests if number not in self._came]
        return f"no command has come to broker {', '.join(missing)}" if missing else "one is silent"

    # ------------------------------------------------------------------ the host

    async def _as_host(self, said: Any, act: Act | None) -> tuple[dict[int, Any], Any]:
        if self._guests and self._server is None:
            with suppress(FileNotFoundError):  # of a process that was killed
                os.unlink(self._path)
            self._server = await asyncio.start_unix_server(self._accepted, self._path, limit=LINE_BYTES_MAX)
            async with asyncio.timeout(MET_WITHIN_S):
                await self._all_came.wait()
        heard = {self._host: said}
        for number in self._guests:
            heard[number] = await _read(self._came[number][0], number)
        outcome = None if act is None else act(heard)
        for number in self._guests:
            _write(self._came[number][1], [list(heard.items()), outcome])
        return heard, outcome

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):
            node_id, about = await _read(reader, -1)
            if about == self._about and node_id in self._guests and not self._is_over:
                self._came[node_id] = reader, writer
                _write(writer, "welcome")
                if len(self._came) == len(self._guests):
                    self._all_came.set()
                return
        writer.close()

    # ------------------------------------------------------------------ the others

    async def _as_guest(self, said: Any) -> tuple[dict[int, Any], Any]:
        if self._to_host is None:
            async with asyncio.timeout(MET_WITHIN_S):
                self._to_host = await self._find_host()
        reader, writer = self._to_host
        _write(writer, said)
        heard, outcome = await _read(reader, self._host)
        return dict(heard), outcome

    async def _find_host(self) -> Peer:
        while True:  # it may get its command last, or be at the end of another meeting
            with suppress(OSError, ValueError):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=LINE_BYTES_MAX)
                try:
                    _write(writer, [self._node_id, self._about])
                    await _read(reader, self._host)
                except BaseException:
                    writer.close()
                    raise
                return reader, writer
            await asyncio.sleep(TRIED_EVERY_S)


async def _read(reader: asyncio.StreamReader, node_id: int) -> Any:
    """What the other says. ConnectionError: it is gone."""
    line = b""
    with suppress(ConnectionError):
        # Before Python 3.12, `wait_for` forgets that it was cancelled if the line, or the end, comes at that moment.
        async with asyncio.timeout(STEP_WITHIN_S):
            line = await reader.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError(f"broker {node_id} has gone, or does not take part any more")
    return json.loads(line)


def _write(writer: asyncio.StreamWriter, said: Any) -> None:
    writer.write(json.dumps(said).encode() + b"\n")
