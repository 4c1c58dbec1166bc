"""Zeros that do not travel: what comes back, what it takes, and what a damaged packet gives."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oddlot
from oddlot import (
    VCASGD,
    Asynchronous,
    Half,
    Job,
    Local,
    LocalSGD,
    Machine,
    NonZero,
    Plain,
    Simulated,
    Synchronous,
    UsageError,
)
from oddlot.core.strategy import Strategy
from oddlot.testing import check_codec
from oddlot.wire.codec import Packet
from oddlot.wire.framing import FrameError

ROWS, WIDTH, SAMPLES = 1_000, 16, 96


@pytest.mark.parametrize(("codec", "error"), [(NonZero(), 0.0), (NonZero(Half()), 2**-8)])
def test_what_was_sent_comes_back(codec: NonZero, error: float) -> None:
    check_codec(codec, relative_error=error)


def rows(*which: int) -> Tensor:
    """A table of numbers in these rows alone."""
    table = torch.zeros(ROWS, WIDTH)
    for row in which:
        table[row] = torch.arange(WIDTH) + row
    return table.view(-1)


def test_only_blocks_with_numbers_travel() -> None:
    """A row is one block of 64 bytes here; a bit each says which are there."""
    packet = NonZero().encode([("0", rows(3, 999)), ("1", rows())])
    assert [array.size for array in packet.arrays] == [125, 2 * 64, 125, 0]
    ((_, first), (_, second)) = NonZero().decode(packet)
    assert torch.equal(first, rows(3, 999))
    assert torch.equal(second, rows())


def test_what_would_not_be_smaller_travels_whole() -> None:
    full = torch.randn(1000)
    packet = NonZero().encode([("0", full), ("1", rows(5))])
    assert [array.size for array in packet.arrays] == [4000, 0, 125, 64]
    assert torch.equal(NonZero().decode(packet)[0][1], full)


def test_halves_of_numbers_are_left_out_too() -> None:
    packet = NonZero(Half()).encode([("0", rows(4, 5))])
    assert [array.size for array in packet.arrays] == [63, 64], "two rows of 32 bytes are a block"
    assert torch.equal(NonZero(Half()).decode(packet)[0][1], rows(4, 5))


def test_a_zero_with_a_sign_travels() -> None:
    signed = torch.zeros(320)
    signed[17] = -0.0
    assert torch.signbit(NonZero().decode(NonZero().encode([("0", signed)]))[0][1])[17]


def test_no_other_codec_is_inside() -> None:
    with pytest.raises(UsageError, match=r"NonZero\(of=NonZero"):
        NonZero(NonZero())


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [10**15]},
        {"sizes": [-64]},
        {"sizes": ["x"]},
        {"sizes": [64_064]},
        {"hows": [1, 1]},
        {"hows": []},
        {"about": 5},
        {"of": "half-bf16"},
    ],
)
def test_damaged_words_are_told(change: dict[str, object]) -> None:
    packet = NonZero().encode([("0", rows(3))])
    with pytest.raises(FrameError):
        NonZero().decode(Packet("nonzero", packet.about | change, packet.arrays))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("spoil", [lambda a: a[:-1], lambda a: np.append(a, a), lambda a: a * 0 + 255])
def test_damaged_arrays_are_told(place: int, spoil: "object") -> None:
    packet = NonZero().encode([("0", rows(3, 9))])
    arrays = list(packet.arrays)
    arrays[place] = spoil(arrays[place])  # type: ignore[operator]  # a function
    if place == 1 and arrays[1].size == packet.arrays[1].size:
        return  # other numbers, which nobody can know
    with pytest.raises(FrameError):
        NonZero().decode(Packet("nonzero", packet.about, arrays))
    with pytest.raises(FrameError, match="'plain' was given"):
        NonZero().decode(Plain().encode([("0", rows(3))]))


def embedding() -> Job:
    """Each sample touches one row of a table that is large beside it."""
    words = torch.arange(SAMPLES) * 10
    targets = torch.sin(words.float())[:, None]

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 1))

    return Job(
        model,
        (words, targets),
        loss=nn.functional.mse_loss,
        batch=8,
        optimizer=oddlot.SGD(lr=0.1),
        name="words",
    )


STRATEGIES: list[tuple[Strategy, int]] = [
    (Synchronous(), 1),
    (Asynchronous(), 1),
    (LocalSGD(steps=2), 1),
    (VCASGD(alpha=0.5), 6),
]


@pytest.mark.parametrize(("strategy", "shards"), STRATEGIES)
def test_a_run_is_the_same_with_fewer_bytes(strategy: Strategy, shards: int) -> None:
    """Bit by bit, whatever a strategy's tasks bring: gradients, changes, weights."""
    on = [Machine("a", 0.01), Machine("b", 0.013)]
    whole, few = (
        oddlot.fit(embedding(), strategy, Simulated(on), until="epochs>=3", shards=shards, codec=codec)
        for codec in (Plain(), NonZero())
    )
    for name, tensor in few.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name]), name
    assert few.summary["bytes_up"] < 0.1 * whole.summary["bytes_up"]
    assert few.summary["seconds"] == whole.summary["seconds"], "their links take no time"


@pytest.mark.parametrize(("strategy", "shards"), STRATEGIES)
def test_workers_send_fewer_bytes(strategy: Strategy, shards: int, tmp_path: Path) -> None:
    """With one worker the order is that of the simulator, so the numbers are."""
    found = oddlot.fit(
        embedding(),
        strategy,
        Local(workers=1),
        until="epochs>=2",
        shards=shards,
        codec=NonZero(),
        out=tmp_path,
    )
    like = oddlot.fit(
        embedding(),
        strategy,
        Simulated([Machine("w1", 0.01)]),
        until="epochs>=2",
        shards=shards,
        codec=NonZero(),
    )
    assert found.summary["bytes_up"] == like.summary["bytes_up"]
    for name, tensor in found.model.state_dict().items():
        assert torch.allclose(tensor, like.model.state_dict()[name], atol=1e-6), name
    assert json.loads((tmp_path / "summary.json").read_text())["bytes_up"] == found.summary["bytes_up"]
