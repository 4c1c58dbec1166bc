"""Frames of messages between peers: encoding and decoding restore a message, and invalid bytes are rejected."""

import json
import tracemalloc
from contextlib import suppress
from io import BytesIO
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oddlot.codecs import Half, Plain
from oddlot.core.membership_messages import Ack, PeerStatus, Ping, PingRequest
from oddlot.core.peers import PeerModel
from oddlot.engines.mesh.frames import KIND, decode, encode
from oddlot.engines.mesh.messages import (
    Done,
    Finished,
    FromPeer,
    ModelForAverage,
    ModelMessage,
    ModelRequest,
    PeerMessage,
    SnapshotRequest,
    State,
    StateRequest,
    Stop,
    Tensors,
)
from oddlot.model.block_pool import Pool
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.wire.codec import Codec
from oddlot.wire.framing import FrameError, pack
from tests.transcripts import raises

NEWS = (PeerStatus("w2", "127.0.0.1:5", 3, "suspected"),)
MESSAGES: list[PeerMessage] = [
    Ping(1, NEWS),
    Ack(1, NEWS),
    PingRequest(2, "w3"),
    ModelRequest(7),
    SnapshotRequest(1),
    StateRequest("127.0.0.1:5"),
    Finished("epochs>=3"),
    Stop("interrupted"),
    Done(),
]


def came(
    message: PeerMessage, tensors: Tensors | None, layout: Layout, codec: Codec | None = None
) -> FromPeer:
    """Encode and decode a message."""
    codec = codec or Plain()
    return read(b"".join(encode(message, tensors, codec)), layout, codec)


def read(frame: bytes, layout: Layout, codec: Codec | None = None, most: int = 1 << 20) -> FromPeer:
    """Decode a frame."""
    stream = BytesIO(frame)

    def fill(memory: memoryview) -> None:
        if stream.readinto(memory) < len(memory):
            raise EOFError

    return decode(fill, "w1", codec or Plain(), Pool(lambda: FlatBuffer.empty(layout)), most)


def model() -> torch.nn.Module:
    """Return a model with parameters, a buffer and a counter."""
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


@pytest.fixture
def flat() -> FlatBuffer:
    made = model()
    block = FlatBuffer.empty(Layout.from_module(made))
    block.gather(made)
    block.view("1.num_batches_tracked").fill_(5)
    block.view("1.running_var").fill_(123.675)
    return block


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_message_is_restored(message: PeerMessage, flat: FlatBuffer) -> None:
    got = came(message, None, flat.layout)
    assert (got.message, got.sender, got.tensors) == (message, "w1", None)


def test_exchanged_model_is_encoded_and_others_are_exact(flat: FlatBuffer) -> None:
    exchange = ModelMessage(PeerModel("w1>1", "w1", 8, request_tag=2))
    for message, exact in ((exchange, False), (ModelForAverage(1, 5), True), (State(2), True)):
        got = came(message, Tensors(flat, lambda: None), flat.layout, Half("bf16"))
        assert got.tensors is not None
        assert torch.equal(got.tensors.weights.view("0.weight"), flat.view("0.weight")) == exact
        assert torch.equal(got.tensors.weights.view("1.running_var"), flat.view("1.running_var"))
        assert got.tensors.weights.view("1.num_batches_tracked") == 0, "a merge adds what a peer has counted"


def test_selected_layers_are_sent_with_the_buffers(flat: FlatBuffer) -> None:
    message = ModelMessage(PeerModel("w1>1", "w1", 8, layers=(1,)))
    whole = came(ModelMessage(PeerModel("w1>1", "w1", 8)), Tensors(flat, lambda: None), flat.layout)
    got = came(message, Tensors(flat, lambda: None, (1,)), flat.layout)
    assert got.bytes < whole.bytes
    assert got.tensors is not None
    assert torch.equal(got.tensors.weights.view("0.bias"), flat.view("0.bias"))
    assert not got.tensors.weights.view("0.weight").any()
    assert torch.equal(got.tensors.weights.view("1.running_var"), flat.view("1.running_var"))


def test_optimizer_state_is_sent_with_the_state(flat: FlatBuffer) -> None:
    momentum = {"optimizer_steps": torch.arange(4), "optimizer/0/momentum/0": torch.rand(64)}
    got = came(State(1), Tensors(flat, lambda: None, None, momentum), flat.layout)
    assert got.tensors is not None
    assert got.tensors.optimizer is not None
    assert all(torch.equal(got.tensors.optimizer[name], one) for name, one in momentum.items())


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's
    """A counter of the bytes of large tensors that PyTorch copies, creates or converts."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.nbytes > LARGE and func.__name__ not in VIEWS:
            self.bytes += out.nbytes
        return out


LARGE = 4096
VIEWS = {
    "view.dtype",
    "view.default",
    "slice.Tensor",
    "detach.default",
    "alias.default",
    "lift_fresh.default",
}


@pytest.mark.parametrize(("codec", "sent", "received"), [(Plain(), 0, 0), (Half("bf16"), 0.5, 2)])
def test_model_is_copied_once_per_send_and_receive(codec: Codec, sent: float, received: float) -> None:
    """The parts of a frame share the model's memory. Only a codec allocates more."""
    layout = Layout.from_module(torch.nn.Linear(500, 500))
    block, pool = FlatBuffer.empty(layout), [FlatBuffer.empty(layout)]
    message = ModelMessage(PeerModel("w1>1", "w1", 8))
    with Copies() as copies:  # type: ignore[no-untyped-call]
        parts = encode(message, Tensors(block, lambda: None), codec)
    assert copies.bytes == pytest.approx(sent * layout.bytes, rel=0.01)
    stream = BytesIO(b"".join(parts))
    source = SimpleNamespace(take=pool.pop, give=pool.append)
    tracemalloc.start()
    with Copies() as copies:  # type: ignore[no-untyped-call]
        got = decode(stream.readinto, "w1", codec, source, 2 * layout.bytes)  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert copies.bytes == pytest.approx(received * layout.bytes, rel=0.01)
    assert peak < sent * layout.bytes + 50_000
    got.release()
    assert len(pool) == 1


def test_model_of_another_layout_is_a_problem(flat: FlatBuffer) -> None:
    other = Layout.from_module(torch.nn.Linear(3, 5))
    message = ModelMessage(PeerModel("w1>1", "w1", 8))
    got = came(message, Tensors(flat, lambda: None), other)
    assert (got.tensors, bool(got.problem)) == (None, True)


@pytest.mark.parametrize("layers", [(9,), (1, 0), (-1,), (0, 0)])
def test_invalid_layers_are_a_problem(layers: tuple[int, ...], flat: FlatBuffer) -> None:
    model = PeerModel("w1>1", "w1", 8, layers=(0,))
    _, text, *arrays = encode(ModelMessage(model), Tensors(flat, lambda: None, (0,)), Plain())
    there = b'"layers":[0]'
    assert there in bytes(text)
    changed = bytes(text[4:]).replace(
        there, b'"layers":' + json.dumps(list(layers)).replace(" ", "").encode()
    )
    got = read(pack(KIND, b"".join([len(changed).to_bytes(4, "little"), changed, *arrays])), flat.layout)
    assert got.problem


def test_random_bytes_raise_only_frame_errors(flat: FlatBuffer) -> None:
    """Changed bytes lead to a FrameError, a problem or a message. No other error is raised."""
    chance = Random(1)
    good = b"".join(encode(ModelMessage(PeerModel("w1>1", "w1", 8)), Tensors(flat, lambda: None), Plain()))[
        24:
    ]
    for number in range(300):
        body = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            body[chance.randrange(min(len(body), 400))] = chance.randrange(256)
        end = chance.randrange(1, len(body)) if number % 2 else len(body)
        with suppress(FrameError):
            read(pack(KIND, bytes(body[:end])), flat.layout)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"x" * 50, "not_a_frame"),
        (pack(2, b"{}"), "not_a_message"),
        (pack(KIND, b"\xff\xff\xff\xff"), "not_a_message"),
        (pack(KIND, b"\x02\0\0\0[]"), "not_a_message"),
        (pack(KIND, b"\0" * 200), "message_too_long"),
    ],
    ids=["other bytes", "other kind", "no text", "a list", "long"],
)
def test_invalid_frame_is_rejected(frame: bytes, code: str, flat: FlatBuffer) -> None:
    with raises(FrameError, code):
        read(frame, flat.layout, most=100)


def test_damaged_model_is_rejected(flat: FlatBuffer) -> None:
    frame = bytearray(b"".join(encode(ModelForAverage(1, 5), Tensors(flat, lambda: None), Plain())))
    frame[-200] ^= 1
    with raises(FrameError, "damaged_body"):
        read(bytes(frame), flat.layout)
