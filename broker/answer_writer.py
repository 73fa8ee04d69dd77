"""The way of the answers of one connection to its client.

Small answers to frames of one read are joined and sent together. Records that a fetch found in a file are not read into
memory. They are sent from the file as the client takes them, by the operating system or in pieces, in turns with the
other connections (senders.py). If the file is gone in the middle of an answer, the connection is closed, because the
client was told the size of the answer already.
"""

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

from barnabas.broker.senders import Senders
from barnabas.protocol.message import Part, Reference
from barnabas.runtime.ports import Buffer, Clock, Network, Timer
from barnabas.storage.open_files import FileRange

logger = logging.getLogger("barnabas.broker")

PART_JOINED_BELOW: Final = 32 * 1024  # bytes; to copy fewer costs less than another send
UNSENT_BYTES_MAX: Final = 64 * 1024  # small answers are collected up to here, then sent together
WRITE_BUFFER_HIGH: Final = 32 * 1024
WRITE_BUFFER_LOW: Final = 0  # sending from a file needs an empty write buffer
PIECE_BYTES: Final = 128 * 1024  # read from a file and written at a time, where the system does not send from it


class Answered(Protocol):
    """The connection that the answers belong to."""

    client_host: str

    def note_activity(self) -> None:
        """The client takes a part of an answer."""

    def all_sent(self) -> None:
        """An answer from files has been sent as a whole."""

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""


class Sending(Protocol):
    """Counts the time in which an answer is sent, because its client has a quota."""

    began_ms: float  # of its encoding

    def now_ms(self) -> float:
        """The time."""

    def note(self, began_ms: float) -> None:
        """Count the time since then."""


class _Over:
    """In the place of a connection that is over."""

    client_host = ""

    def note_activity(self) -> None:
        """Nothing."""

    def all_sent(self) -> None:
        """Nothing."""

    def abort(self) -> None:
        """Nothing."""


_OVER: Final = _Over()


class AnswerWriter:
    """Sends answers in order. Asked for no further answer unless the client `takes_answers`."""

    __slots__ = (
        "_connection",
        "_from_files",
        "_is_full",
        "_mute",
        "_muted_until_ms",
        "_network",
        "_senders",
        "_sending",
        "_transport",
        "_unsent",
        "_unsent_bytes",
        "collects",
        "takes_answers",
    )

    def __init__(self, transport: asyncio.Transport, network: Network, senders: Senders, connection: Answered) -> None:
        self._transport = transport
        self._network = network
        self._senders = senders
        self._connection = connection
        self._unsent: list[Buffer] = []  # small answers to frames of one read
        self._unsent_bytes = 0
        self.collects = False  # small answers are kept until `flush`, and sent together
        self._from_files: deque[Part] = deque()  # what is left of an answer that is sent from files
        self._sending: Sending | None = None  # counts the time that this takes; None: nobody counts
        self._is_full = False  # the write buffer is above its high mark
        self._mute: Timer | None = None  # runs while no request is handled, because the client is above a quota
        self._muted_until_ms = 0.0
        self.takes_answers = True  # the client has taken what was sent to it, and need not wait
        transport.set_write_buffer_limits(WRITE_BUFFER_HIGH, WRITE_BUFFER_LOW)

    @property
    def is_sending(self) -> bool:
        """Whether an answer from files is under way."""
        return bool(self._from_files)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be sent here. (The transport may have something.)"""
        return not self._unsent and not self._from_files

    def pause(self) -> None:
        """The client takes its answers too slowly."""
        self._is_full = True
        self.takes_answers = False

    def resume(self) -> None:
        """The client has taken what was written."""
        self._is_full = False
        if self._from_files:
            self._senders.ask(self)
        else:
            self.takes_answers = self._mute is None

    def count(self, sending: Sending) -> None:
        """Count the time of the last answer; what is left of it is counted when it is sent."""
        sending.note(sending.began_ms)
        self._sending = sending if self._from_files else None

    def mute(self, clock: Clock, throttle_ms: int) -> None:
        """Ask for no further answer for so long. What is written goes out meanwhile."""
        until_ms = clock.monotonic_ms() + throttle_ms
        if self._mute is not None:
            if until_ms <= self._muted_until_ms:
                return
            self._mute.cancel()
        self._muted_until_ms = until_ms
        self.takes_answers = False
        self._mute = clock.call_later(throttle_ms, self._unmute)

    def _unmute(self) -> None:
        self._mute = None
        if not self._is_full and not self._from_files:
            self.takes_answers = True
            self._connection.all_sent()

    def write(self, parts: list[Part]) -> None:
        """Send an answer: large parts without a copy, small ones joined with those of neighbouring answers."""
        for slot, part in enumerate(parts):
            size = len(part)
            if type(part) is not bytearray and isinstance(part, Reference):  # a small answer is a bytearray
                self.takes_answers = False
                self._from_files.extend((*self._unsent, *parts[slot:]))
                self._unsent.clear()
                self._unsent_bytes = 0
                self._senders.ask(self)
                return
            if size < PART_JOINED_BELOW:
                self._unsent.append(part)
                self._unsent_bytes += size
            else:
                self._send_unsent()
                self._transport.write(part)
        if not self.collects or self._unsent_bytes >= UNSENT_BYTES_MAX:
            self._send_unsent()

    def flush(self) -> None:
        """Send what was collected, and collect no more."""
        self.collects = False
        if self._unsent:
            self._send_unsent()

    def _send_unsent(self) -> None:
        unsent = self._unsent
        if unsent:
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
            unsent.clear()
            self._unsent_bytes = 0

    def send_some(self, bytes_max: int) -> int:
        """One turn: send more of the answer under way, about `bytes_max` at most. Returns how many bytes were sent."""
        from_files = self._from_files
        if not from_files:  # the connection was lost meanwhile
            return 0
        transport = self._transport
        self._connection.note_activity()
        left = bytes_max
        sending = self._sending
        began_ms = 0.0 if sending is None else sending.now_ms()
        while from_files and left > 0 and not self._is_full:
            if transport.is_closing():  # connection_lost will follow
                return bytes_max - left
            part = from_files[0]
            size = len(part)
            if isinstance(part, FileRange):
                sent = part.send(self._network, transport, left)
                if not sent:
                    piece = part.read(PIECE_BYTES)
                    if piece is None:
                        self._break_off()
                        return bytes_max - left
                    transport.write(piece)
                    sent = len(piece)
                left -= sent
                if sent < size:
                    continue
                part.release()
            else:
                assert not isinstance(part, Reference)
                transport.write(part)
                left -= size
            from_files.popleft()
        if sending is not None:
            sending.note(began_ms)
        if not from_files:
            self._sending = None
            self.takes_answers = not self._is_full and self._mute is None
            self._connection.all_sent()
        elif not self._is_full:
            self._senders.ask(self)
        return bytes_max - left

    def _break_off(self) -> None:
        """A part of an answer was sent, and its rest is not on the disk any more."""
        host = self._connection.client_host
        logger.warning("closing the connection of %s: records of its answer are gone from the disk", host)
        self._connection.abort()

    def drop(self) -> None:
        """Nobody takes answers any more: what waits is dropped, and what comes is not kept back."""
        self._is_full = False
        self._forget_mute()
        self.takes_answers = True
        self._unsent.clear()
        self._unsent_bytes = 0
        for part in self._from_files:
            if isinstance(part, FileRange):
                part.release()
        self._from_files.clear()

    def end(self) -> None:
        """The connection is over, and nothing waits: let go of it, so that no cycle keeps the memory of both."""
        self._forget_mute()
        self._connection = _OVER

    def _forget_mute(self) -> None:
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None
