"""Tests of encoded updates: codecs change parameters, but not buffers."""

import pytest
import torch
from torch import nn

from oddlot.core.tasks import Kind
from oddlot.engines.payloads import decode_into, encoded, most_bytes
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.wire.codec import Codec
from oddlot.wire.half import Half
from oddlot.wire.nonzero_blocks import NonZero
from oddlot.wire.packet import Packet

BUFFERS = {
    "mean": torch.tensor([123.675, 116.28]),
    "mask": torch.tensor([0.0, -1e9, -torch.inf]),
    "place": torch.tensor([3e9], dtype=torch.float64).to(torch.uint32),
}


@pytest.mark.parametrize("kind", ["gradient", "weights"])
@pytest.mark.parametrize("codec", [Half("bf16"), Half("fp16"), NonZero(), NonZero(Half())])
def test_codecs_do_not_change_buffers(codec: Codec, kind: Kind) -> None:
    model = nn.Linear(3, 2)
    for name, buffer in BUFFERS.items():
        model.register_buffer(name, buffer)
    layout = Layout.from_module(model)
    start, sent, found = (FlatBuffer.empty(layout) for _ in range(3))
    start.gather(model)
    sent.copy_(start)
    weight = sent.view("weight").clone()
    packet = encoded(sent, codec, kind, start)
    memory = torch.zeros(packet.size, dtype=torch.uint8).numpy()
    assert packet.write(memory) <= most_bytes(codec, layout)
    decode_into(found, codec, Packet.read(memory), kind, start)
    assert all(torch.equal(found.view(name), buffer) for name, buffer in BUFFERS.items())
    assert torch.equal(found.view("weight"), weight) == codec.of_changes
