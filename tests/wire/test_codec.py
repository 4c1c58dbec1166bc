"""Codecs: round trips, rounding and damaged packets."""

import contextlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from oddlot.core.support.errors import UsageError
from oddlot.wire.codec import Codec
from oddlot.wire.framing import FrameError
from oddlot.wire.half import Half
from oddlot.wire.nonzero_blocks import NonZero
from oddlot.wire.packet import DTYPES, Bytes, Packet
from oddlot.wire.plain import Plain
from tests.transcripts import raises, warns

TENSORS = [(name, (torch.randn(size) * 50).to(dtype)) for size, (name, dtype) in enumerate(DTYPES.items())]


def through_bytes(packet: Packet, spare: int = 0) -> Packet:
    out = np.full(packet.size + spare, 255, np.uint8)
    assert packet.write(out) == packet.size
    return Packet.read(out)


@pytest.mark.parametrize(
    ("codec", "half"),
    [(Plain(), None), (Half(), torch.bfloat16), (Half("fp16"), torch.float16)],
    ids=["plain", "bf16", "fp16"],
)
def test_half_rounds_only_wide_floats(codec: Codec, half: torch.dtype | None) -> None:
    """Only floats wider than 16 bits are rounded. All dtypes are tested here. `check_codec` tests other values."""
    back = codec.decode(through_bytes(codec.encode(TENSORS), spare=7))
    assert [name for name, _ in back] == [name for name, _ in TENSORS]
    for (_, before), (_, after) in zip(TENSORS, back, strict=True):
        rounded = half if half and before.dtype in (torch.float32, torch.float64) else before.dtype
        assert before.dtype == after.dtype
        assert torch.equal(after, before.to(rounded).to(before.dtype))


def test_arrays_of_a_decompressing_codec_are_read() -> None:
    packet = Plain().encode(TENSORS)
    unpacked = [np.frombuffer(array.tobytes(), np.uint8) for array in packet.arrays]
    back = Plain().decode(replace(packet, arrays=unpacked))
    assert [tensor.tolist() for _, tensor in back] == [tensor.tolist() for _, tensor in TENSORS]


def test_half_saves_bytes_and_fp16_overflows_to_infinity() -> None:
    many = [("0", torch.randn(1000))]
    assert [codec.encode(many).arrays[0].size for codec in (Plain(), Half())] == [4000, 2000]
    tensors = [("0", torch.tensor([70000.0, -70000.0, 1.0]))]
    assert Half("fp16").decode(Half("fp16").encode(tensors))[0][1].tolist() == [torch.inf, -torch.inf, 1.0]
    assert Half("bf16").decode(Half("bf16").encode(tensors))[0][1].isfinite().all()


@pytest.mark.parametrize(("small", "warned"), [(2, True), (1, False)], ids=["over 1 %", "1 %"])
def test_half_warns_if_values_underflow(small: int, warned: bool) -> None:
    tensors = [("0", torch.cat([torch.zeros(1000), torch.ones(100 - small), torch.full((small,), 1e-9)]))]
    with warns("values_underflow", dtype="fp16", share=small / 100) if warned else contextlib.nullcontext():
        Half("fp16").encode(tensors)


def test_plain_does_not_copy() -> None:
    tensor = torch.zeros(10)
    packet = Plain().encode([("0", tensor)])
    tensor.fill_(3)
    assert Plain().decode(packet)[0][1].tolist() == [3.0] * 10


def test_arrays_are_aligned_and_readable_from_read_only_memory() -> None:
    packet = Plain().encode([("a", torch.arange(3)), ("b", torch.zeros(5))])
    out = np.zeros(packet.size + 100, np.uint8)
    packet.write(out)
    base = out.ctypes.data
    assert [(array.ctypes.data - base) % 64 for array in Packet.read(out).arrays] == [0, 0]
    frozen = np.frombuffer(out.tobytes(), np.uint8)
    assert Plain().decode(Packet.read(frozen))[0][1].tolist() == [0, 1, 2]


def test_too_small_output_raises() -> None:
    packet = Plain().encode([("a", torch.zeros(100))])
    with raises(ValueError):
        packet.write(np.zeros(50, np.uint8))


@given(st.data())
def test_damaged_packets_give_frame_errors_or_tensors(data: st.DataObject) -> None:
    """Packets, unlike frames, have no checksum. Reading a damaged packet raises no error but `FrameError`."""
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


def test_invalid_packet_header_raises_frame_error() -> None:
    nonsense = [[-5], [10**9], [True], [1.5]]
    sizes: list[object] = [["plain", {}, size] for size in nonsense]
    for head in ([1, {}, []], ["plain", [], []], ["plain", {}], {}, 7, *sizes):
        text = json.dumps(head).encode()
        source = np.frombuffer(len(text).to_bytes(8, "little") + text + bytes(200), np.uint8)
        with raises(FrameError, "not_a_packet"):
            Packet.read(source)


def test_metadata_that_does_not_match_the_arrays_raises() -> None:
    abouts: list[dict[str, Any]] = [
        {},
        {"names": ["a"], "dtypes": ["float99"], "sent": ["float32"]},
        {"names": ["a"], "dtypes": ["float32"], "sent": ["int64"]},
        {"names": ["a"], "dtypes": [[]], "sent": ["float32"]},
        {"names": [], "dtypes": [], "sent": []},
        {"names": 5, "dtypes": [], "sent": []},
    ]
    for about in abouts:
        with raises(FrameError, "damaged_packet"):
            Plain().decode(Packet("plain", about, [np.zeros(4, np.uint8)]))


def test_packet_of_another_codec_raises() -> None:
    for codec, name in ((Half(), "half-bf16"), (NonZero(), "nonzero")):
        with raises(FrameError, "other_codec", given="plain", codec=name):
            codec.decode(Plain().encode([]))


def test_invalid_half_dtype_or_inner_codec_is_rejected() -> None:
    with raises(UsageError, "invalid_value", name="of", given=NonZero()):
        NonZero(NonZero())
    with raises(UsageError, "invalid_value", name="dtype", given="int8"):
        Half("int8")  # type: ignore[arg-type]
