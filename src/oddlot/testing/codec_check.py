"""`check_codec`: a property test that a codec decodes the tensors that it encoded."""

import copy
import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from oddlot.core.support.errors import UsageError
from oddlot.wire.codec import Codec
from oddlot.wire.packet import Named, Packet

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8")
}
SPECIAL = [0.0, -0.0, 1.0, torch.nan, torch.inf, -torch.inf]


class BrokenCodec(AssertionError):
    """A codec does not decode the tensors that it encoded. `code` identifies the fault."""

    def __init__(self, sentence: str, code: str) -> None:
        super().__init__(sentence)
        self.code = code


def check_codec(codec: Codec, *, relative_error: float = 0.0, examples: int = 100) -> None:
    """Raise BrokenCodec unless a codec decodes every packet to the encoded tensors.

    - Names, dtypes and lengths are equal.
    - Values are equal. For float32 and float64, absolute values from 0.001 to 10,000 are tested and may differ by
      `relative_error` (2**-8 for bfloat16, 2**-11 for float16). NaN, infinities and zeros are always equal.
    - Packets are plain data, and the same tensors give the same packet.

    A codec with state is tested on copies in its present state. Raise UsageError if Hypothesis is missing.

    Args:
        codec: The codec.
        relative_error: Largest relative error of float32 and float64 values.
        examples: Number of random examples.
    """
    try:
        from hypothesis import HealthCheck, Phase, given, settings, strategies as st
    except ImportError:
        message = "check_codec needs Hypothesis: pip install hypothesis"
        raise UsageError(message, "not_installed", package="hypothesis") from None

    special = st.sampled_from(SPECIAL)
    number = st.one_of(special, st.floats(1e-3, 1e4), st.floats(-1e4, -1e-3))
    tensor = st.tuples(st.sampled_from([*DTYPES]), st.lists(number, max_size=20))

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],  # the explain phase takes longer than these two
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(tensor, max_size=4))
    def every_packet(contents: list[tuple[str, list[float]]]) -> None:
        _check(
            codec,
            [(f"{i}.{dtype}", _tensor(dtype, numbers)) for i, (dtype, numbers) in enumerate(contents)],
            relative_error,
        )

    every_packet()


def _tensor(dtype: str, numbers: list[float]) -> Tensor:
    whole = not DTYPES[dtype].is_floating_point
    return torch.tensor(
        [int(abs(n)) % 200 if n - n == 0 else 7 for n in numbers] if whole else numbers, dtype=DTYPES[dtype]
    )


def _check(codec: Codec, tensors: Sequence[Named], relative_error: float) -> None:
    before = [(name, tensor.clone()) for name, tensor in tensors]
    packet = copy.deepcopy(codec).encode(tensors)
    try:
        _compare(before, tensors, 0.0)
    except BrokenCodec as error:
        raise BrokenCodec(f"encoding changed its input: {error}", "input_changed") from None
    if not all(type(a) is np.ndarray and a.dtype == np.uint8 and a.ndim == 1 for a in packet.arrays):
        raise BrokenCodec(f"a packet must have 1-D arrays of uint8, not {packet.arrays}", "no_plain_arrays")
    if json.loads(json.dumps(packet.about)) != packet.about:
        raise BrokenCodec(f"`about` of a packet must be JSON data, not {packet.about}", "no_plain_data")
    sent = _bytes(packet)
    again = copy.deepcopy(codec).encode(tensors)
    if not np.array_equal(sent, _bytes(again)):
        raise BrokenCodec(f"encoding {tensors} twice gave different packets", "packets_differ")
    _compare(tensors, codec.decode(Packet.read(sent)), relative_error)


def _bytes(packet: Packet) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    out = np.zeros(packet.size, np.uint8)
    packet.write(out)
    return out


def _compare(sent: Sequence[Named], back: Sequence[Named], relative_error: float) -> None:
    heads = [[(name, tensor.dtype, tensor.shape) for name, tensor in tensors] for tensors in (sent, back)]
    if heads[0] != heads[1]:
        raise BrokenCodec(f"encoded {heads[0]}, but decoded {heads[1]}", "heads_changed")
    for (name, before), (_, after) in zip(sent, back, strict=True):
        error = relative_error if before.dtype in {torch.float32, torch.float64} else 0.0
        close = torch.isclose(after, before, rtol=error, atol=0.0, equal_nan=True)
        if not bool(close.all()):
            raise BrokenCodec(f"{name} changed from {before} to {after}", "values_changed")
        signs = torch.signbit(before.double()) == torch.signbit(after.double())
        if not bool((signs | before.isnan()).all()):
            raise BrokenCodec(f"{name} changed its sign", "signs_changed")
