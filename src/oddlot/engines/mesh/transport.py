"""TCP connections between the processes of peers, on this machine.

Each peer listens on 127.0.0.1. A message is sent on a connection that its sender has opened. One thread sends to each
peer, and one thread receives from each. Before any message is read, both sides prove by an HMAC challenge that they
know the secret of this start of the run, and the sender reports the layout of its model.
"""

import contextlib
import json
import queue
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from multiprocessing import AuthenticationError
from multiprocessing.connection import answer_challenge, deliver_challenge
from typing import Any

from oddlot.core.tasks import NodeId
from oddlot.engines.mesh.frames import decode, encode
from oddlot.engines.mesh.messages import PeerMessage, Tensors, kind_of
from oddlot.model.block_pool import Pool
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.wire.codec import Codec
from oddlot.wire.framing import FrameError

HOST = "127.0.0.1"
HANDSHAKE_SECONDS, SEND_SECONDS = 5.0, 30.0
"""Timeouts of a handshake and of sending one message, in seconds."""
HELLO_BYTES = 4096
"""Maximum size of a message of the handshake."""
CONTROL_BYTES = 1 << 20
"""Maximum size of a message without its tensors."""
MAX_BUFFERS = 1024
"""Buffers per system call, at most IOV_MAX."""
MAX_SPARE = 4
"""Maximum number of unused blocks that are kept for models and gradients."""
MAX_WAITING = 8
"""Maximum number of queued messages to a peer. Further messages are dropped, as by a network."""


@dataclass(frozen=True)
class Hello:
    """The handshake of a peer that opens a connection."""

    peer: NodeId
    layout: str
    """Fingerprint of the model's layout."""
    address: str = ""
    """Listening address of the peer."""

    def problem(self, other: "Hello") -> str:
        """Return why the peer `other` is rejected; empty if it is accepted."""
        if other.layout == self.layout:
            return ""
        message = (
            f"{other.peer} has another model than {self.peer} (layouts {other.layout} and {self.layout})"
        )
        return f"{message}: its factory must make the same tensors on every peer"


@dataclass(frozen=True)
class Unreachable:
    """Event: a peer cannot be reached, or has closed its connection."""

    peer: NodeId
    is_gone: bool = False
    """Whether nothing listens at its address: its process has ended."""


@dataclass(frozen=True)
class Rejected:
    """Event: a connection was rejected by this peer or, if `by` is given, by another peer."""

    reason: str
    by: NodeId = ""
    sender: NodeId = ""
    """Peer that has sent an invalid message, if that is the reason; else empty."""


@dataclass(frozen=True)
class StrangerRejected:
    """Event: a connection that is not from a peer of this run was rejected. Only the first rejection is reported."""

    reason: str


@dataclass
class LinkBytes:
    """Bytes that were sent to one peer."""

    by_message: Counter[str] = field(default_factory=Counter)
    """Bytes of frames, by the kind of message."""
    by_system: int = 0
    """Bytes that the operating system counted on closed connections (Linux)."""


class Transport:
    """The connections of a peer. It sends messages, and puts received messages into `incoming`. Only `close` blocks.

    Some items of `incoming` are functions. Call them to release tensors that were sent or dropped.
    """

    def __init__(self, me: NodeId, secret: bytes, layout: Layout, codec: Codec) -> None:
        self.secret, self.codec = secret, codec
        self.incoming: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.blocks = Pool(lambda: FlatBuffer.empty(layout), MAX_SPARE)
        """Blocks of received models and of gradients. They are reused after they were released."""
        self.max_bytes = CONTROL_BYTES + 8 * layout.bytes
        self.links: dict[NodeId, _Link] = {}
        self.listener = socket.create_server((HOST, 0), backlog=64)
        self.hello = Hello(me, layout.fingerprint, self.address)
        self.addresses: dict[NodeId, str] = {}
        """Addresses of peers that have connected."""
        self.strangers = 0
        """Number of rejected connections."""
        self._counting = threading.Lock()
        self.is_closed = False
        self._accepting = _start(self._accept)

    @property
    def address(self) -> str:
        """Return the listening address."""
        host, port = self.listener.getsockname()
        return f"{host}:{port}"

    def send(self, peer: NodeId, address: str, message: PeerMessage, tensors: Tensors | None = None) -> None:
        """Queue a message for the peer at an address. Drop it if the queue is full."""
        link = self.links.get(peer)
        if link is None or link.address != address:
            link = self.links[peer] = _Link(self, peer, address)
        link.put(message, tensors)

    def sent_bytes(self) -> Mapping[NodeId, LinkBytes]:
        """Return the bytes sent to each peer so far."""
        return {peer: link.counted() for peer, link in self.links.items()}

    def close(self) -> None:
        """Send queued messages for a short time, then close all connections."""
        if self.is_closed:
            return
        for link in self.links.values():
            link.waiting.put(None)
        for link in self.links.values():
            link.thread.join(1.0)
        self.is_closed = True
        with contextlib.suppress(OSError):
            socket.create_connection(self.listener.getsockname()).close()  # ends `accept`
        self._accepting.join(1.0)

    # --- receiving -----------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                continue  # the other side has disconnected
            if self.is_closed:
                connection.close()
                self.listener.close()
                return
            _start(self._receive, connection)

    def _receive(self, connection: socket.socket) -> None:
        """Authenticate the other side, then read messages until the connection ends."""
        peer = ""
        with contextlib.suppress(OSError, EOFError), connection:
            connection.settimeout(HANDSHAKE_SECONDS)
            speech = _Speech(connection)
            try:
                speech.prove(self.secret, asks_first=True)
                hello = Hello(**json.loads(speech.recv_bytes(HELLO_BYTES)))
            except (ConnectionError, TimeoutError):
                return  # it has ended, or is silent
            except (AuthenticationError, OSError, ValueError, TypeError) as error:
                self._reject(f"it did not prove that it belongs to the run ({error})")
                return
            problem = self.hello.problem(hello)
            speech.send_bytes(json.dumps({"problem": problem, "by": self.hello.peer}).encode())
            if problem:
                self._reject(problem)
                return
            connection.settimeout(None)
            peer = hello.peer
            self.addresses[peer] = hello.address
            try:
                fill = partial(_fill, connection)
                while True:
                    self.incoming.put(decode(fill, peer, self.codec, self.blocks, self.max_bytes))
            except FrameError as error:
                self.incoming.put(Rejected(f"{peer} sent an invalid message: {error}", sender=peer))
        if peer:
            self.incoming.put(Unreachable(peer))

    def _reject(self, reason: str) -> None:
        """Count a rejected connection. Only the first is reported, because any process may connect often."""
        with self._counting:
            self.strangers += 1
            is_first = self.strangers == 1
        if is_first:
            self.incoming.put(StrangerRejected(reason))


class _Link:
    """A connection to one peer, with a queue and a thread that sends messages."""

    def __init__(self, transport: Transport, peer: NodeId, address: str) -> None:
        self.transport, self.peer, self.address = transport, peer, address
        self.waiting: queue.SimpleQueue[tuple[PeerMessage, Tensors | None] | None] = queue.SimpleQueue()
        self.bytes = LinkBytes()
        self.connection: socket.socket | None = None
        self.thread = _start(self._work)

    def put(self, message: PeerMessage, tensors: Tensors | None) -> None:
        if self.waiting.qsize() < MAX_WAITING:
            self.waiting.put((message, tensors))
        elif tensors is not None:
            tensors.release()

    def counted(self) -> LinkBytes:
        system = self.bytes.by_system + (_system_bytes(self.connection) if self.connection else 0)
        return LinkBytes(Counter(self.bytes.by_message), system)

    def _work(self) -> None:
        while (item := self.waiting.get()) is not None:
            message, tensors = item
            try:
                self._send(message, encode(message, tensors, self.transport.codec))
            except Exception as error:  # noqa: BLE001 - no message may end the thread
                self.transport.incoming.put(Rejected(f"{message} to {self.peer} cannot be sent: {error!r}"))
            finally:
                if tensors is not None:
                    self.transport.incoming.put(tensors.release)
        self._close()

    def _send(self, message: PeerMessage, frame: list[memoryview]) -> None:
        try:
            connection = self.connection or self._connect()
            self.bytes.by_message[kind_of(message)] += _send(connection, frame)
        except (OSError, EOFError, AuthenticationError, ValueError) as error:
            self._close()
            self.transport.incoming.put(Unreachable(self.peer, isinstance(error, ConnectionRefusedError)))

    def _connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        connection = socket.create_connection((host, int(port)), HANDSHAKE_SECONDS)
        speech = _Speech(connection)
        try:
            speech.prove(self.transport.secret, asks_first=False)
            speech.send_bytes(json.dumps(asdict(self.transport.hello)).encode())
            answer = json.loads(speech.recv_bytes(HELLO_BYTES))
        except BaseException:
            connection.close()
            raise
        if answer["problem"]:
            connection.close()
            self.transport.incoming.put(Rejected(str(answer["problem"]), str(answer["by"])))
            raise OSError(answer["problem"])
        connection.settimeout(SEND_SECONDS)
        self.connection = connection
        return connection

    def _close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            self.bytes.by_system += _system_bytes(connection)
            connection.close()


def _start(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


class _Speech:
    """Short messages on a socket, with the methods that the challenges of `multiprocessing.connection` need:
    `send_bytes` and `recv_bytes`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def prove(self, secret: bytes, *, asks_first: bool) -> None:
        """Prove that this side knows the secret, and let the other side prove it."""
        steps: list[Callable[[Any, bytes], None]] = [deliver_challenge, answer_challenge]
        for step in steps if asks_first else reversed(steps):
            step(self, secret)

    def send_bytes(self, data: bytes) -> None:
        self.sock.sendall(len(data).to_bytes(4, "big") + data)

    def recv_bytes(self, most: int) -> bytes:
        _fill(self.sock, memoryview(length := bytearray(4)))
        if (size := int.from_bytes(length, "big")) > most:
            raise OSError(f"a message of {size} bytes is longer than {most}")
        _fill(self.sock, memoryview(data := bytearray(size)))
        return bytes(data)


def _fill(sock: socket.socket, memory: memoryview) -> None:
    """Receive until the memory is full. Raise EOFError if the connection ends earlier."""
    while memory:
        if not (count := sock.recv_into(memory)):
            raise EOFError("the connection has ended")
        memory = memory[count:]


def _send(sock: socket.socket, parts: Iterable[memoryview]) -> int:
    """Send parts of a frame without copying them. Return the number of bytes."""
    waiting, sent = deque(part for part in parts if part), 0
    while waiting:
        sent += (left := sock.sendmsg(islice(waiting, MAX_BUFFERS)))
        while left and left >= len(waiting[0]):
            left -= len(waiting.popleft())
        if left:
            waiting[0] = waiting[0][left:]
    return sent


_SENT_AT = 120
"""Offset of `tcpi_bytes_acked` (u64) in Linux's `struct tcp_info`."""


def _system_bytes(connection: socket.socket) -> int:
    """Return the acknowledged bytes of a connection, counted by the operating system; 0 if it does not count them."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return 0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, option, 256)
    except OSError:
        return 0
    return int(struct.unpack_from("<Q", info, _SENT_AT)[0]) if len(info) >= _SENT_AT + 8 else 0
