"""Connections in memory with the semantics of asyncio's transports, protocols and flow control.

An address is the name of a machine and a port. Bytes between two machines may be stopped, in one direction or in both.
The bytes that arrive at a paused process wait, as they do in a kernel.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from barnabas.runtime.ports import Buffer, File, Listener
from barnabas.runtime.tls import TlsTransport

from simulator.clock import Process, SimClock

LOCALHOST = "127.0.0.1"
CONNECT_TIMEOUT_MS = 3000.0
_WILDCARDS = ("", "0.0.0.0", "::")


class SimTransport(asyncio.Transport):
    """One end of a connection. Bytes written travel to the peer after the network's latency, in order."""

    def __init__(self, network: "SimNetwork", local: tuple[str, int], remote: tuple[str, int]) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._network = network
        self.local, self.remote = local, remote
        self._protocol: asyncio.BaseProtocol | None = None
        self.peer: SimTransport | None = None
        self._outgoing: deque[bytes] = deque()  # written, not yet taken by the peer's protocol
        self._has_arrived = False  # the outgoing bytes have arrived at the peer, which does not read
        self.unread = b""  # what had arrived when the connection was lost
        self._outgoing_bytes = 0
        self._delivery_asked = False
        self._reading_paused = False
        self._closing = False
        self._lost = False
        self._end_of_file = False
        self._low, self._high = 16 * 1024, 64 * 1024
        self._writing_paused = False
        self._next_delivery_ms = 0.0  # bytes arrive in order, whatever the latency of each delivery
        self.owner: Process | None = None  # the process whose end this is
        self.gone = False  # its process is dead, or its machine is off: it takes nothing and answers nothing
        self._is_late = False  # it is gone, but bytes that it has sent are still under way

    def start(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Both ends exist: make the protocol and call its connection_made."""
        if not self.gone:
            self._protocol = factory()
            self._protocol.connection_made(self)

    # -- writing

    def write(self, data: Buffer) -> None:
        """Copy the bytes and deliver them later. After close they are dropped, as in asyncio."""
        if self._closing or self._lost:
            return
        assert not self._end_of_file, "write after write_eof"
        if len(data):
            self._outgoing.append(bytes(data))
            self._outgoing_bytes += len(data)
            self._ask_delivery()
            if self._outgoing_bytes > self._high and not self._writing_paused:
                self._writing_paused = True
                if self._protocol is not None:
                    self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Write several buffers."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Half-closing works."""
        return True

    def write_eof(self) -> None:
        """No more will be written. The peer gets the end after all bytes."""
        self._end_of_file = True
        self._ask_delivery()

    def get_write_buffer_size(self) -> int:
        """Bytes the peer has not taken yet."""
        return self._outgoing_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high)"""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When to call pause_writing and resume_writing."""
        self._high = high if high is not None else (4 * low if low is not None else 64 * 1024)
        self._low = low if low is not None else self._high // 4

    @property
    def under_way(self) -> tuple[bytes, ...]:
        """What was written, and has not arrived."""
        return tuple(self._outgoing)

    def _ask_delivery(self) -> None:
        if not self._delivery_asked:
            self._delivery_asked = True
            network = self._network
            extra_ms = network.extra_latency_ms.get((self.local[0], self.remote[0]), 0.0)
            self._next_delivery_ms = network.schedule(self._deliver, self._next_delivery_ms, extra_ms)

    def _deliver(self) -> None:
        self._delivery_asked = False
        peer = self.peer
        if peer is None or self.gone or self._lost or self._network.is_blocked(self.local[0], self.remote[0]):
            return
        if peer._lost and not peer.gone:  # the peer has closed: a write is answered by a reset
            if self._outgoing:
                self.lose(ConnectionResetError(104, "reset by peer"))
            elif self._closing:
                self.lose(None)
            return
        if peer.gone:
            is_answered = (
                not peer._is_late and peer.local[0] not in self._network.dark
            )  # the machine runs, without this
            if self._outgoing and is_answered:
                self.lose(ConnectionResetError(104, "reset by peer"))
            return
        if peer.owner is not None and peer.owner.is_paused:
            self._has_arrived = bool(self._outgoing)
            return
        while self._outgoing and not peer._reading_paused and not peer._lost:
            chunk = self._outgoing.popleft()
            self._outgoing_bytes -= len(chunk)
            if self._network.on_delivery is not None:
                self._network.on_delivery(self, chunk)
            for piece in self._network.pieces(chunk):
                self._network.hand_over(peer.owner, peer.receive, piece)
        self._has_arrived = bool(self._outgoing)
        if self._lost:
            return
        if self._writing_paused and self._outgoing_bytes <= self._low:
            self._writing_paused = False
            if self._protocol is not None and not self._closing:
                self._network.hand_over(self.owner, self._protocol.resume_writing)
        if not self._outgoing and not peer._reading_paused:
            if self._closing:
                self._lost = True
                self._network.forget(self)
                self._tell_lost(None)
            if self._closing or self._end_of_file:
                self._network.hand_over(peer.owner, peer.receive_end)

    # -- reading

    def receive(self, chunk: bytes) -> None:
        """Hand bytes to the protocol, through its own buffer if it has one."""
        protocol = self._protocol
        if self._closing or protocol is None:
            return
        if isinstance(protocol, asyncio.BufferedProtocol):
            rest = memoryview(chunk)
            while rest and not self._closing and not self._lost:
                buffer = memoryview(protocol.get_buffer(len(rest))).cast("B")
                assert len(buffer), "get_buffer returned an empty buffer"
                size = min(len(buffer), len(rest))
                buffer[:size] = rest[:size]
                protocol.buffer_updated(size)
                rest = rest[size:]
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(chunk)

    def receive_end(self) -> None:
        """The peer will send no more."""
        if self._closing or self._lost:
            return
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not protocol.eof_received():
            self.close()

    def pause_reading(self) -> None:
        """Leave bytes with the peer."""
        self._reading_paused = True

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._reading_paused = False
        if self.peer is not None:
            self.peer._ask_delivery()

    def is_reading(self) -> bool:
        """Whether bytes are taken."""
        return not self._reading_paused and not self._closing

    # -- ending

    def is_closing(self) -> bool:
        """Whether close was called, or the connection is gone."""
        return self._closing or self._lost

    def close(self) -> None:
        """Close after what was written has gone out."""
        if not self._closing:
            self._closing = True
            self._ask_delivery()

    def abort(self) -> None:
        """Close at once; what was not delivered is gone."""
        self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """End the connection for both sides. Each side can still read the bytes that have arrived there."""
        if self._lost:
            return
        self._lost = self._closing = True
        peer = self.peer
        if peer is not None:
            for sender, receiver in ((self, peer), (peer, self)):
                if sender._has_arrived:
                    receiver.unread += b"".join(sender._outgoing)
                    sender._has_arrived = False
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._network.forget(self)
        if not self.gone:
            self._tell_lost(error)
        is_blocked = self._network.is_blocked(self.local[0], self.remote[0])
        if peer is not None and not peer._lost and not self.gone and not is_blocked:
            self._network.schedule(lambda: peer.lose(error))

    def _tell_lost(self, error: Exception | None) -> None:
        protocol = self._protocol
        if protocol is not None:
            self._network.schedule(lambda: self._network.hand_over(self.owner, protocol.connection_lost, error))

    def vanish(self) -> None:
        """This end's machine stops. The other end notices it only when it writes, or by its own timers."""
        self.gone = True
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._protocol = None

    def die(self) -> None:
        """This end's process is killed: the system resets the connection, if a reset can reach the other end."""
        self.vanish()
        if self.peer is not None and not self._network.is_blocked(self.local[0], self.remote[0]):
            self.peer.lose(ConnectionResetError(104, "its process is dead"))

    def die_late(self, delay_ms: float) -> int:
        """As `die`, but the other end gets what was written, and the reset, only after a delay. Returns the bytes."""
        late_bytes = self._outgoing_bytes
        self._network.call_later(delay_ms, self._vanish_late())
        return late_bytes

    def part(self) -> Callable[[], None]:
        """This end loses the connection. When the result is called, the other end gets what was written, and a reset.

        So it is when a connection is given up while its bytes wait somewhere on their way.
        """
        self._tell_lost(ConnectionResetError(104, "simulated"))
        self._lost = self._closing = True
        self._network.forget(self)
        return self._vanish_late()

    def _vanish_late(self) -> Callable[[], None]:
        late, peer = list(self._outgoing), self.peer
        self.vanish()
        self._is_late = True

        def arrive() -> None:
            self._is_late = False
            if peer is not None and not peer._lost and not peer.gone:
                for chunk in late:
                    if self._network.on_delivery is not None:
                        self._network.on_delivery(self, chunk)
                    self._network.hand_over(peer.owner, peer.receive, chunk)
                peer.lose(ConnectionResetError(104, "simulated"))

        return arrive

    def send_again(self) -> None:
        """The network works again: send the bytes that were written meanwhile."""
        if self._outgoing or self._closing or self._end_of_file:
            self._ask_delivery()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol in use."""
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Use another protocol from now on."""
        self._protocol = protocol


class SimListener:
    """A listening endpoint in memory."""

    def __init__(
        self, network: "SimNetwork", host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._network = network
        self.host = host
        self._port = port
        self.factory = factory
        self.owner: Process | None = None
        self.is_accepting = False

    @property
    def port(self) -> int:
        """The port in use."""
        return self._port

    async def accept(self) -> None:
        """Accept connections."""
        self.is_accepting = True

    def close(self) -> None:
        """Stop accepting."""
        self._network.listeners.pop((self.host, self._port), None)


class SimNetwork:
    """One network. A delivery takes `latency_ms`; 0 means the next pass of the loop."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.latency_ms = 0.0
        self.jitter: Callable[[], float] | None = None  # if set, it returns the latency of each delivery
        self.fragment: Callable[[bytes], Iterable[bytes]] | None = None
        self.on_delivery: Callable[[SimTransport, bytes], None] | None = None
        self.is_cut = False
        self.blocked: dict[tuple[str, str], None] = {}  # machines between which no bytes travel in that direction
        self.dark: dict[str, None] = {}  # machines that are off
        self.extra_latency_ms: dict[tuple[str, str], float] = {}  # between two machines, in that direction
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.transports: dict[SimTransport, None] = {}
        self._next_port = 40_000

    def hand_over(self, owner: Process | None, callback: Callable[..., object], *args: Any) -> None:
        """Call a protocol as its process does."""
        self._clock.loop.hand_over(owner, callback, *args)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        """Call after a delay."""
        self._clock.call_later(delay_ms, callback)

    def schedule(self, callback: Callable[[], Any], not_before_ms: float = 0.0, extra_ms: float = 0.0) -> float:
        """Call after the latency, but not before an instant. Returns the time of the call."""
        latency_ms = (self.latency_ms if self.jitter is None else self.jitter()) + extra_ms
        if not latency_ms and not not_before_ms:
            self._clock.call_soon(callback)
            return 0.0
        now_ms = self._clock.monotonic_ms()
        due_ms = max(now_ms + latency_ms, not_before_ms)
        self._clock.call_later(due_ms - now_ms, callback)
        return due_ms

    def pieces(self, chunk: bytes) -> Iterable[bytes]:
        """The pieces in which a chunk arrives: the whole, or what `fragment` makes of it."""
        return (chunk,) if self.fragment is None else self.fragment(chunk)

    def cut(self) -> None:
        """Stop all bytes until `heal`. The ends do not notice it."""
        self.is_cut = True

    def heal(self) -> None:
        """Bytes travel again, everywhere."""
        if self.is_cut or self.blocked:
            self.is_cut = False
            self.blocked.clear()
            for transport in list(self.transports):
                transport.send_again()

    def block(self, source: str, target: str) -> None:
        """Stop all bytes from one machine to another. Neither end notices it."""
        self.blocked[source, target] = None

    def unblock(self, source: str, target: str, *, resets: bool = False) -> None:
        """Bytes travel again; connections that waited go on, or are reset."""
        if (source, target) in self.blocked:
            del self.blocked[source, target]
            for transport in list(self.transports):
                if (transport.local[0], transport.remote[0]) == (source, target):
                    self.reset(transport) if resets else transport.send_again()

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether bytes from one machine do not reach the other."""
        return self.is_cut or (source, target) in self.blocked

    def reset(self, transport: SimTransport) -> None:
        """Both ends lose the connection."""
        transport.lose(ConnectionResetError(104, "simulated"))

    def power_on(self, machine: str) -> None:
        """A machine runs again. What others have sent to it again and again is now answered by a reset."""
        if machine in self.dark:
            del self.dark[machine]
            for transport in list(self.transports):
                if transport.remote[0] == machine:
                    transport.send_again()

    def resumed(self, owner: Process) -> None:
        """A process is not paused any more: it takes the bytes that have arrived."""
        for transport in self.owned(owner):
            if transport.peer is not None:
                transport.peer.send_again()

    def owned(self, owner: Process) -> list[SimTransport]:
        """The open ends of one process."""
        return [transport for transport in self.transports if transport.owner is owner]

    def forget(self, transport: SimTransport) -> None:
        """The transport is gone."""
        self.transports.pop(transport, None)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def host_name(self) -> str | None:
        """A machine without a name in the network."""
        return None

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> Listener:
        """Take an address. OSError when the port is taken."""
        port = port or self._free_port()
        for other_host, other_port in self.listeners:
            if port == other_port and (host == other_host or host in _WILDCARDS or other_host in _WILDCARDS):
                raise OSError(98, f"address in use: {host}:{port}")
        listener = SimListener(self, host, port, factory)
        self.listeners[host, port] = listener
        return listener

    def _listener(self, host: str, port: int) -> SimListener:
        for (listening_host, listening_port), listener in self.listeners.items():
            fits = port == listening_port and (host == listening_host or listening_host in _WILDCARDS)
            if fits and listener.is_accepting:
                return listener
        raise ConnectionRefusedError(111, f"connection refused: {host}:{port}")

    async def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
        source: str = LOCALHOST,
        owner: Process | None = None,
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Connect from the machine `source`. ConnectionRefusedError when nobody listens."""
        await self._clock.sleep(self.latency_ms if self.jitter is None else self.jitter())
        is_away = source != host and host in self.dark
        if is_away or self.is_blocked(source, host) or self.is_blocked(host, source):
            await self._clock.sleep(CONNECT_TIMEOUT_MS)
            raise TimeoutError(110, f"no answer from {host}:{port}")
        listener = self._listener(host, port)
        local = (source, self._free_port())
        near = SimTransport(self, local, (host, port))
        far = SimTransport(self, (host, port), local)
        near.peer, far.peer = far, near
        near.owner, far.owner = owner, listener.owner
        self.transports[near] = self.transports[far] = None
        protocol = factory()
        self.hand_over(far.owner, far.start, listener.factory)
        near.start(lambda: protocol)
        return near, protocol

    def send_file(self, transport: asyncio.Transport, file: File, position: int, length: int) -> int:
        """Always 0: this network cannot send from a file, so the caller reads it."""
        return 0

    def unread(self, transport: asyncio.Transport) -> bytes:
        """The bytes that had arrived at a transport when it was lost."""
        if isinstance(transport, TlsTransport):
            return transport.decrypted(self.unread(transport.below))
        return transport.unread if isinstance(transport, SimTransport) else b""
