"""`check_codec` finds codecs that change their data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from oddlot.testing import check_codec
from oddlot.testing.codec_check import BrokenCodec
from oddlot.wire.codec import Codec
from oddlot.wire.half import Half
from oddlot.wire.packet import Named, Packet
from oddlot.wire.plain import Plain


@pytest.mark.parametrize(
    ("codec", "relative_error"), [(Plain(), 0.0), (Half("bf16"), 2**-8), (Half("fp16"), 2**-11)], ids=repr
)
def test_built_in_codecs_pass(codec: Codec, relative_error: float) -> None:
    check_codec(codec, relative_error=relative_error)


@dataclass
class Bad(Codec):
    """The plain codec, as the base of codecs with a fault."""

    sent: int = 0

    def change(self, tensors: list[Named]) -> list[Named]:
        return tensors

    def encode(self, tensors: Sequence[Named]) -> Packet:
        self.sent += 1
        return Plain().encode(tensors)

    def decode(self, packet: Packet) -> list[Named]:
        return self.change(Plain().decode(packet))


class Reorders(Bad):
    def change(self, tensors: list[Named]) -> list[Named]:
        return tensors[::-1]


class Widens(Bad):
    def change(self, tensors: list[Named]) -> list[Named]:
        return [(name, tensor.double()) for name, tensor in tensors]


class Scales(Bad):
    def change(self, tensors: list[Named]) -> list[Named]:
        return [(name, tensor * 1.01 if tensor.is_floating_point() else tensor) for name, tensor in tensors]


class Mends(Bad):
    def change(self, tensors: list[Named]) -> list[Named]:
        return [
            (name, tensor.nan_to_num() if tensor.is_floating_point() else tensor) for name, tensor in tensors
        ]


class LosesSigns(Bad):
    def change(self, tensors: list[Named]) -> list[Named]:
        return [(name, tensor + 0.0 if tensor.is_floating_point() else tensor) for name, tensor in tensors]


class WearsOut(Bad):
    def encode(self, tensors: Sequence[Named]) -> Packet:
        packet = super().encode(tensors)
        for _, tensor in tensors:
            tensor.zero_()
        return packet


class SendsLists(Bad):
    def encode(self, tensors: Sequence[Named]) -> Packet:
        packet = super().encode(tensors)
        return Packet(packet.codec, packet.about, [array.tolist() for array in packet.arrays])


class SendsObjects(Bad):
    def encode(self, tensors: Sequence[Named]) -> Packet:
        packet = super().encode(tensors)
        return Packet(packet.codec, packet.about | {"dtypes": tuple(packet.about["dtypes"])}, packet.arrays)


@dataclass
class Noisy(Bad):
    counts: list[int] = field(default_factory=list)

    def encode(self, tensors: Sequence[Named]) -> Packet:
        noise = torch.rand(1)
        return Plain().encode(
            [(n, t + noise.to(t.dtype) if t.dtype == torch.float32 else t) for n, t in tensors]
        )


@pytest.mark.parametrize(
    ("codec", "code"),
    [
        (Reorders(), "heads_changed"),
        (Widens(), "heads_changed"),
        (Scales(), "values_changed"),
        (Mends(), "values_changed"),
        (LosesSigns(), "signs_changed"),
        (WearsOut(), "input_changed"),
        (SendsLists(), "no_plain_arrays"),
        (SendsObjects(), "no_plain_data"),
        (Noisy(), "packets_differ"),
        (Half(), "values_changed"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_broken_codec_is_found(codec: Codec, code: str) -> None:
    with pytest.raises(BrokenCodec) as caught:
        check_codec(codec)
    assert caught.value.code == code


def test_codec_is_not_modified() -> None:
    codec = Bad()
    check_codec(codec, examples=5)
    assert codec.sent == 0
