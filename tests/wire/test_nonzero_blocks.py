"""The codec that leaves out zeros: round trips, sizes and damaged packets."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oddlot
from oddlot import VCASGD, Asynchronous, Job, LocalSGD, Machine, Simulated, Synchronous
from oddlot.codecs import Half, NonZero, Plain
from oddlot.core.strategy import Strategy
from oddlot.testing import check_codec
from oddlot.wire.codec import Codec
from oddlot.wire.framing import FrameError
from tests.fits import Place, distance, local
from tests.transcripts import raises

ROWS, WIDTH, SAMPLES = 1_000, 16, 96


@pytest.mark.parametrize(("codec", "error"), [(NonZero(), 0.0), (NonZero(Half()), 2**-8)])
def test_nonzero_codec_round_trips(codec: NonZero, error: float) -> None:
    check_codec(codec, relative_error=error, examples=40)


def rows(*which: int) -> Tensor:
    """Return a flattened table with nonzero values in the given rows only."""
    table = torch.zeros(ROWS, WIDTH)
    for row in which:
        table[row] = torch.arange(WIDTH) + row
    return table.view(-1)


def test_only_nonzero_blocks_are_sent() -> None:
    """A row is one block of 64 bytes here, with one bit in the bitmap."""
    packet = NonZero().encode([("0", rows(3, 999)), ("1", rows())])
    assert [array.size for array in packet.arrays] == [125, 2 * 64, 125, 0]
    ((_, first), (_, second)) = NonZero().decode(packet)
    assert torch.equal(first, rows(3, 999))
    assert torch.equal(second, rows())


def test_bytes_after_the_last_block_round_trip() -> None:
    """The array has two blocks of zeros and ten more bytes."""
    sent = torch.cat([torch.zeros(128, dtype=torch.uint8), torch.arange(1, 11, dtype=torch.uint8)])
    packet = NonZero().encode([("0", sent)])
    assert [array.size for array in packet.arrays] == [1, 10]
    assert torch.equal(NonZero().decode(packet)[0][1], sent)


def test_dense_arrays_are_sent_uncompressed() -> None:
    full = torch.randn(1000)
    packet = NonZero().encode([("0", full), ("1", rows(5))])
    assert [array.size for array in packet.arrays] == [4000, 0, 125, 64]
    assert torch.equal(NonZero().decode(packet)[0][1], full)


def test_nonzero_combines_with_half() -> None:
    packet = NonZero(Half()).encode([("0", rows(4, 5))])
    assert [array.size for array in packet.arrays] == [63, 64], "two rows of 32 bytes are a block"
    assert torch.equal(NonZero(Half()).decode(packet)[0][1], rows(4, 5))


def test_negative_zero_is_sent() -> None:
    signed = torch.zeros(320)
    signed[17] = -0.0
    assert torch.signbit(NonZero().decode(NonZero().encode([("0", signed)]))[0][1])[17]


def test_damaged_packet_raises_frame_error() -> None:
    packet = NonZero().encode([("0", rows(3, 9))])
    bits, rest = packet.arrays
    for key, value in [
        *(("sizes", sizes) for sizes in ([10**15], [-64], ["x"], [inf], [64_064])),
        ("hows", [1, 1]),
        ("hows", []),
        ("about", 5),
    ]:
        with raises(FrameError, "damaged_packet"):
            NonZero().decode(replace(packet, about=packet.about | {key: value}))
    for arrays in (
        [bits[:-1], rest],
        [np.append(bits, bits), rest],
        [bits * 0 + 255, rest],
        [bits, rest[:-1]],
        [bits, np.append(rest, rest)],
    ):
        with raises(FrameError, "damaged_packet"):
            NonZero().decode(replace(packet, arrays=arrays))
    with raises(FrameError, "other_codec", given="half-bf16", codec="plain"):
        NonZero().decode(replace(packet, about=packet.about | {"of": "half-bf16"}))


def name_of(strategy: Strategy) -> str:
    return type(strategy).__name__


def embedding() -> Job:
    """Return a job with a large embedding. Each sample uses one row."""
    words = torch.arange(SAMPLES) * 10
    targets = torch.sin(words.float())[:, None]

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 1))

    rule = oddlot.SGD(lr=0.1)
    return Job(model, (words, targets), nn.functional.mse_loss, batch_size=8, optimizer=rule, name="words")


def ran(strategy: Strategy, on: Place, codec: Codec | None = None, **settings: Any) -> oddlot.Run:
    shards = 6 if isinstance(strategy, VCASGD) else 1
    options = {"until": "epochs>=2", "shards": shards, "codec": codec or NonZero(), **settings}
    return oddlot.fit(embedding(), strategy, on, **options)


@pytest.mark.parametrize(
    "strategy", [Synchronous(), Asynchronous(), LocalSGD(steps=2), VCASGD(alpha=0.5)], ids=name_of
)
def test_nonzero_run_is_bitwise_equal_with_fewer_bytes(strategy: Strategy) -> None:
    """The results are bitwise equal for all kinds of updates: gradients, deltas and weights."""
    on = Simulated([Machine("a", 0.01), Machine("b", 0.013)])
    whole, few = (ran(strategy, on, codec) for codec in (Plain(), NonZero()))
    assert distance(few.model, whole.model) == 0
    assert few.summary["bytes_up"] < 0.1 * whole.summary["bytes_up"]
    assert few.summary["seconds"] == whole.summary["seconds"], "their links take no time"


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("strategy", [Asynchronous(), LocalSGD(steps=2), VCASGD(alpha=0.5)], ids=name_of)
def test_local_workers_send_the_simulated_number_of_bytes(strategy: Strategy, tmp_path: Path) -> None:
    """With one worker, the order of tasks and thus the results equal the simulator's."""
    found = ran(strategy, local(1), out=tmp_path)
    like = ran(strategy, Simulated([Machine("w1", 0.01)]))
    assert found.summary["bytes_up"] == like.summary["bytes_up"]
    assert distance(found.model, like.model) < 1e-6
    assert json.loads((tmp_path / "summary.json").read_text())["bytes_up"] == found.summary["bytes_up"]
