"""Connections between peers: accepted and rejected peers, and reports of broken connections."""

import json
import queue
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, replace
from multiprocessing.connection import Client, answer_challenge, deliver_challenge
from types import FunctionType
from typing import Any

import pytest
import torch

from oddlot.codecs import Plain
from oddlot.core.membership_messages import Ping
from oddlot.core.peers import PeerModel
from oddlot.engines.mesh.messages import FromPeer, ModelMessage, Tensors
from oddlot.engines.mesh.transport import (
    MAX_BUFFERS,
    Hello,
    Rejected,
    StrangerRejected,
    Transport,
    Unreachable,
    _fill,
    _send,
)
from oddlot.model.flat_buffer import FlatBuffer, Layout

LAYOUT = Layout.from_module(torch.nn.Linear(2, 2))
HELLO = Hello("w1", LAYOUT.fingerprint)
SECRET = b"secret"


@pytest.fixture
def here() -> Iterator[Transport]:
    transport = Transport("w1", SECRET, LAYOUT, Plain())
    yield transport
    transport.close()


@pytest.fixture
def there() -> Iterator[Transport]:
    transport = Transport("w2", SECRET, LAYOUT, Plain())
    yield transport
    transport.close()


def got(transport: Transport, kind: type) -> Any:
    """Wait for a message of this kind, and return it."""
    while True:
        try:
            message = transport.incoming.get(timeout=20)
        except queue.Empty:
            raise AssertionError(f"no {kind.__name__} came") from None
        if isinstance(message, kind):
            return message


def test_messages_and_tensors_arrive_and_are_counted(here: Transport, there: Transport) -> None:
    block = FlatBuffer.empty(LAYOUT)
    block.view("weight").fill_(3.0)
    released = []
    here.send("w2", there.address, Ping(1))
    assert got(there, FromPeer).message == Ping(1)
    message = ModelMessage(PeerModel("w1>1", "w1", 8))
    here.send("w2", there.address, message, Tensors(block, lambda: released.append(1)))
    came = got(there, FromPeer)
    assert (came.sender, came.message) == ("w1", message)
    assert torch.equal(came.tensors.weights.view("weight"), block.view("weight"))
    got(here, FunctionType)()
    assert released == [1]
    sent = here.sent_bytes()["w2"]
    assert sent.by_message["exchange"] == came.bytes


def test_peer_with_another_model_is_rejected(here: Transport) -> None:
    stranger = Transport("w9", SECRET, Layout.from_module(torch.nn.Linear(2, 3)), Plain())
    stranger.send("w1", here.address, Ping(1))
    rejected, message = got(here, StrangerRejected), got(stranger, Rejected)
    assert "w9" in rejected.reason
    assert message.by == "w1"
    stranger.close()


def test_wrong_secret_is_rejected(here: Transport) -> None:
    stranger = Transport("w9", b"wrong", LAYOUT, Plain())
    stranger.send("w1", here.address, Ping(1))
    got(here, StrangerRejected)
    assert not got(stranger, Unreachable).is_gone
    stranger.close()


def test_strangers_are_counted_and_only_the_first_is_reported(here: Transport, there: Transport) -> None:
    host, _, port = here.address.rpartition(":")
    for _ in range(20):
        with Client((host, int(port))) as stranger, suppress(OSError, EOFError):
            stranger.recv_bytes()
            stranger.send_bytes(b"nonsense")
            while True:
                stranger.recv_bytes()  # until it is rejected
    there.send("w1", here.address, Ping(1))
    came = [here.incoming.get(timeout=20) for _ in range(2)]
    assert {type(one) for one in came} == {StrangerRejected, FromPeer}
    assert here.strangers == 20


def test_ended_peer_is_reported_as_gone(here: Transport, there: Transport) -> None:
    here.send("w2", there.address, Ping(1))
    got(there, FromPeer)
    address = there.address
    there.close()
    here.send("w3", address, Ping(2))
    assert got(here, Unreachable) == Unreachable("w3", is_gone=True)


def test_connections_without_a_handshake_do_not_block_others(here: Transport, there: Transport) -> None:
    host, _, port = here.address.rpartition(":")
    with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))) as loud:
        loud.sendall(b"\xff" * 1000)
        there.send("w1", here.address, Ping(1))
        assert got(here, FromPeer).message == Ping(1)


def test_invalid_message_of_a_peer_closes_its_connection(here: Transport) -> None:
    host, _, port = here.address.rpartition(":")
    with Client((host, int(port))) as connection:
        answer_challenge(connection, SECRET)
        deliver_challenge(connection, SECRET)
        connection.send_bytes(json.dumps(asdict(replace(HELLO, peer="w7"))).encode())
        connection.recv_bytes()
        connection.send_bytes(b"nonsense" * 3)
        assert "w7" in got(here, Rejected).reason
        assert got(here, Unreachable).peer == "w7"


def test_large_model_is_sent_without_copies() -> None:
    layout = Layout.from_module(torch.nn.Linear(1000, 1000))
    with (
        closing(Transport("w1", SECRET, layout, Plain())) as here,
        closing(Transport("w2", SECRET, layout, Plain())) as there,
    ):
        weights, addresses = FlatBuffer.empty(layout), set[int]()
        weights.view("weight").normal_()
        tracemalloc.start()
        for number in range(3):
            message = ModelMessage(PeerModel(f"w1>{number}", "w1", 8))
            here.send("w2", there.address, message, Tensors(weights, lambda: None))
            came = got(there, FromPeer)
            got(here, FunctionType)
            assert torch.equal(came.tensors.weights.memory, weights.memory)
            addresses.add(came.tensors.weights.memory.data_ptr())
            came.release()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(addresses) == 1
    assert peak < layout.bytes / 4


def test_frame_with_many_parts_is_sent() -> None:
    """A frame may have empty parts, and more parts than one system call can send."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parts = [memoryview(bytes([number % 256]) * (number % 5)) for number in range(3 * MAX_BUFFERS)]
        assert _send(ours, parts) == sum(map(len, parts))
        data = bytearray(sum(map(len, parts)))
        _fill(theirs, memoryview(data))
    assert data == b"".join(parts)


def test_messages_to_a_peer_that_does_not_read_are_dropped(here: Transport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        released: list[int] = []
        for number in range(30):
            block = FlatBuffer.empty(LAYOUT)
            message = ModelMessage(PeerModel(f"w1>{number}", "w1", 8))
            here.send("w2", address, message, Tensors(block, lambda number=number: released.append(number)))  # type: ignore[misc]
        assert len(released) >= 20
