"""Codecs: what comes back, what is lost, and what a damaged packet gives."""

import contextlib
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oddlot.core.errors import UsageError
from oddlot.wire.codec import Bytes, Codec, Half, Named, Packet, Plain
from oddlot.wire.framing import FrameError

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


@st.composite
def named(draw: st.DrawFn) -> list[Named]:
    dtypes = draw(st.lists(st.sampled_from([*DTYPES, torch.int16, torch.int8, torch.bool]), max_size=5))
    sizes = [draw(st.integers(0, 40)) for _ in dtypes]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return [
        (f"{i}", (torch.randn(size, generator=generator) * 50).to(dtype))
        for i, (dtype, size) in enumerate(zip(dtypes, sizes, strict=True))
    ]


def through_bytes(packet: Packet, spare: int = 0) -> Packet:
    out = np.full(packet.size + spare, 255, np.uint8)
    assert packet.write(out) == packet.size
    return Packet.read(out)


@given(named())
def test_plain_loses_nothing(tensors: list[Named]) -> None:
    back = Plain().decode(through_bytes(Plain().encode(tensors), spare=7))
    assert [name for name, _ in back] == [name for name, _ in tensors]
    for (_, before), (_, after) in zip(tensors, back, strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)


@given(named(), st.sampled_from(["bf16", "fp16"]))
def test_half_rounds_wide_floats_and_nothing_else(tensors: list[Named], dtype: str) -> None:
    codec = Half("bf16" if dtype == "bf16" else "fp16")
    half = torch.bfloat16 if dtype == "bf16" else torch.float16
    back = codec.decode(through_bytes(codec.encode(tensors)))
    for (_, before), (_, after) in zip(tensors, back, strict=True):
        wide = before.dtype in (torch.float32, torch.float64)
        assert before.dtype == after.dtype
        assert torch.equal(after, before.to(half).to(before.dtype) if wide else before)


def test_half_halves_the_bytes() -> None:
    tensors = [("0", torch.randn(1000))]
    assert Plain().encode(tensors).arrays[0].size == 4000
    assert Half().encode(tensors).arrays[0].size == 2000


def test_numbers_beyond_the_range_of_fp16_become_infinite() -> None:
    tensors = [("0", torch.tensor([70000.0, -70000.0, 1.0]))]
    assert Half("fp16").decode(Half("fp16").encode(tensors))[0][1].tolist() == [torch.inf, -torch.inf, 1.0]
    assert Half("bf16").decode(Half("bf16").encode(tensors))[0][1].isfinite().all()


def test_plain_copies_nothing() -> None:
    tensor = torch.zeros(10)
    packet = Plain().encode([("0", tensor)])
    tensor.fill_(3)
    assert Plain().decode(packet)[0][1].tolist() == [3.0] * 10


def test_arrays_are_aligned_where_they_are_written() -> None:
    packet = Plain().encode([("a", torch.zeros(3)), ("b", torch.zeros(5))])
    out = np.zeros(packet.size + 100, np.uint8)
    packet.write(out)
    base = out.ctypes.data
    assert [(array.ctypes.data - base) % 64 for array in Packet.read(out).arrays] == [0, 0]


def test_a_packet_can_be_read_from_memory_that_cannot_be_written() -> None:
    packet = Plain().encode([("a", torch.arange(3))])
    out = np.zeros(packet.size, np.uint8)
    packet.write(out)
    frozen = np.frombuffer(out.tobytes(), np.uint8)
    assert Plain().decode(Packet.read(frozen))[0][1].tolist() == [0, 1, 2]


def test_a_packet_that_does_not_fit_is_told() -> None:
    packet = Plain().encode([("a", torch.zeros(100))])
    with pytest.raises(ValueError, match="does not fit into 50"):
        packet.write(np.zeros(50, np.uint8))


@given(st.data())
def test_damaged_packets_give_frame_errors_or_tensors(data: st.DataObject) -> None:
    """A packet has no checksum of its own (frames have), but damage never gives anything but `FrameError`."""
    codecs: list[Codec] = [Plain(), Half()]
    codec = data.draw(st.sampled_from(codecs))
    packet = codec.encode([("a", torch.zeros(4)), ("b", torch.zeros(3, dtype=torch.int64))])
    whole = np.zeros(packet.size, np.uint8)
    packet.write(whole)
    damaged: Bytes = whole[: data.draw(st.integers(0, whole.size))].copy()
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged.size:
            damaged[data.draw(st.integers(0, damaged.size - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        codec.decode(Packet.read(damaged))


@pytest.mark.parametrize(
    "head",
    [
        [1, {}, []],
        ["plain", [], []],
        ["plain", {}, [-5]],
        ["plain", {}, [10**9]],
        ["plain", {}, [True]],
        ["plain", {}, [1.5]],
        ["plain", {}],
        {},
        7,
    ],
)
def test_a_head_that_promises_nonsense_is_told(head: object) -> None:
    text = json.dumps(head).encode()
    source = np.frombuffer(len(text).to_bytes(8, "little") + text + bytes(200), np.uint8)
    with pytest.raises(FrameError, match="not a packet"):
        Packet.read(source)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"names": ["a"], "dtypes": ["float99"], "sent": ["float32"]},
        {"names": ["a"], "dtypes": ["float32"], "sent": ["int64"]},
        {"names": ["a"], "dtypes": [[]], "sent": ["float32"]},
        {"names": [], "dtypes": [], "sent": []},
        {"names": 5, "dtypes": [], "sent": []},
    ],
)
def test_words_that_do_not_fit_the_arrays_are_told(about: dict[str, object]) -> None:
    with pytest.raises(FrameError, match="do not fit"):
        Plain().decode(Packet("plain", about, [np.zeros(4, np.uint8)]))


def test_a_packet_of_another_codec_is_told() -> None:
    with pytest.raises(FrameError, match="codec 'plain' was given to 'half-bf16'"):
        Half().decode(Plain().encode([]))


def test_an_unknown_half_is_told() -> None:
    with pytest.raises(UsageError, match="choose 'bf16' or 'fp16'"):
        Half("int8")  # type: ignore[arg-type]
