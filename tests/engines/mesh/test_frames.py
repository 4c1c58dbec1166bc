"""Messages of peers as bytes: they come back as they were, and other bytes are refused."""

import json
from contextlib import suppress
from random import Random

import pytest
import torch

from oddlot.codecs import Half, Plain
from oddlot.core.membership import Ack, News, Ping, PingRequest
from oddlot.core.peers import PeerModel
from oddlot.engines.mesh.frames import KIND, decode, encode
from oddlot.engines.mesh.messages import (
    Done,
    Finished,
    Inject,
    ModelMessage,
    ModelRequest,
    PeerMessage,
    Snapshot,
    SnapshotRequest,
    State,
    StateRequest,
    Stop,
    Tensors,
)
from oddlot.train.flat_buffer import FlatBuffer, Layout
from oddlot.wire.framing import FrameError, pack
from tests.transcripts import raises

NEWS = (News("w2", "127.0.0.1:5", 3, "suspected"),)
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
    Inject("slow w1", "slow", "w1", factor=2.0),
]


def model() -> torch.nn.Module:
    """A model with parameters, a buffer and a counter."""
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
def test_a_message_comes_back(message: PeerMessage, flat: FlatBuffer) -> None:
    came = decode(encode(message, None, Plain()), "w1", flat.layout, Plain())
    assert (came.message, came.sender, came.tensors) == (message, "w1", None)


def test_an_exchanged_model_is_encoded_and_others_are_exact(flat: FlatBuffer) -> None:
    exchange = ModelMessage(PeerModel("w1>1", "w1", 8, answers=2))
    for message, exact in ((exchange, False), (Snapshot(1, 5), True), (State(2), True)):
        came = decode(
            encode(message, Tensors(flat, lambda: None), Half("bf16")), "w1", flat.layout, Half("bf16")
        )
        assert came.tensors is not None
        assert torch.equal(came.tensors.weights.view("0.weight"), flat.view("0.weight")) == exact
        assert torch.equal(came.tensors.weights.view("1.running_var"), flat.view("1.running_var"))
        assert came.tensors.weights.view("1.num_batches_tracked") == 0, "a merge adds what a peer has counted"


def test_some_layers_travel_with_the_buffers(flat: FlatBuffer) -> None:
    message = ModelMessage(PeerModel("w1>1", "w1", 8, layers=(1,)))
    whole = encode(message, Tensors(flat, lambda: None), Plain())
    part = encode(message, Tensors(flat, lambda: None, (1,)), Plain())
    came = decode(part, "w1", flat.layout, Plain())
    assert len(part) < len(whole)
    assert came.tensors is not None
    assert torch.equal(came.tensors.weights.view("0.bias"), flat.view("0.bias"))
    assert not came.tensors.weights.view("0.weight").any()
    assert torch.equal(came.tensors.weights.view("1.running_var"), flat.view("1.running_var"))


def test_the_state_of_an_optimizer_travels_with_the_state(flat: FlatBuffer) -> None:
    momentum = {"optimizer_steps": torch.arange(4), "optimizer/0/momentum/0": torch.rand(64)}
    came = decode(
        encode(State(1), Tensors(flat, lambda: None, None, momentum), Plain()), "w1", flat.layout, Plain()
    )
    assert came.tensors is not None
    assert came.tensors.optimizer is not None
    assert all(torch.equal(came.tensors.optimizer[name], one) for name, one in momentum.items())


def test_a_model_of_another_layout_is_told_as_a_problem(flat: FlatBuffer) -> None:
    other = Layout.from_module(torch.nn.Linear(3, 5))
    message = ModelMessage(PeerModel("w1>1", "w1", 8))
    came = decode(encode(message, Tensors(flat, lambda: None), Plain()), "w1", other, Plain())
    assert came.tensors is None
    assert came.problem


@pytest.mark.parametrize("layers", [(9,), (1, 0), (-1,), (0, 0)])
def test_layers_that_do_not_exist_are_a_problem(layers: tuple[int, ...], flat: FlatBuffer) -> None:
    model = PeerModel("w1>1", "w1", 8, layers=(0,))
    frame = encode(ModelMessage(model), Tensors(flat, lambda: None, (0,)), Plain())
    text = b'"layers":[0]'
    assert text in frame
    body = frame[24:].replace(text, b'"layers":' + json.dumps(list(layers)).replace(" ", "").encode())
    length = int.from_bytes(body[:4], "little") + len(body) - len(frame[24:])
    came = decode(pack(KIND, length.to_bytes(4, "little") + body[4:]), "w1", flat.layout, Plain())
    assert came.problem


def test_hostile_bytes_are_refused_or_told(flat: FlatBuffer) -> None:
    """Whatever is changed: a frame error, a problem, or a message; nothing else is raised."""
    chance = Random(1)
    good = encode(ModelMessage(PeerModel("w1>1", "w1", 8)), Tensors(flat, lambda: None), Plain())[24:]
    for _ in range(300):
        body = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            body[chance.randrange(min(len(body), 400))] = chance.randrange(256)
        with suppress(FrameError):
            decode(pack(KIND, bytes(body[: chance.randrange(1, len(body))])), "w1", flat.layout, Plain())


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"", "short_header"),
        (b"x" * 50, "not_a_frame"),
        (pack(2, b"{}"), "not_a_message"),
        (pack(KIND, b"\xff\xff\xff\xff"), "not_a_message"),
        (pack(KIND, b"\x02\0\0\0[]"), "not_a_message"),
    ],
    ids=["empty", "other bytes", "other kind", "no text", "a list"],
)
def test_what_is_no_message_is_refused(frame: bytes, code: str, flat: FlatBuffer) -> None:
    with raises(FrameError, code):
        decode(frame, "w1", flat.layout, Plain())
