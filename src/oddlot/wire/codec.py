"""How tensors become bytes and come back: a codec sees named 1-D tensors and nothing else."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oddlot.core.errors import InvalidValue
from oddlot.core.user_warnings import warn
from oddlot.wire.framing import FrameError

Named = tuple[str, Tensor]
Bytes = NDArray[np.uint8]

MAX_UNDERFLOW = 0.01
"""Share of the nonzero values of an update that may become 0 without a warning."""
_SAMPLED = 65_536
"""values of an update that are looked at for that"""
_ALIGNMENT_BYTES = 64
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Packet:
    """Tensors on their way: which codec, plain JSON-able words about them, contiguous 1-D uint8 arrays.

    It is self-contained: whoever has the codec's class can decode it. The arrays may be views of the tensors.
    """

    codec: str
    about: dict[str, Any]
    arrays: list[Bytes]

    @property
    def size(self) -> int:
        """Bytes that `write` needs."""
        return self._places()[-1]

    def write(self, out: Bytes) -> int:
        """Put the packet into these bytes; how many it took. ValueError when they are too few."""
        head, *places, end = self._head(), *self._places()
        if end > out.size:
            raise ValueError(f"a packet of {end} bytes does not fit into {out.size}")
        length = len(head).to_bytes(_LENGTH_BYTES, "little")
        out[: _LENGTH_BYTES + len(head)] = np.frombuffer(length + head, np.uint8)
        for start, array in zip(places, self.arrays, strict=True):
            out[start : start + array.size] = array
        return end

    @classmethod
    def read(cls, source: Bytes) -> "Packet":
        """The packet that `write` put at the start of these bytes, its arrays as views of them.

        FrameError when there is none.
        """
        try:
            end = _LENGTH_BYTES + int.from_bytes(source[:_LENGTH_BYTES].tobytes(), "little")
            codec, about, sizes = json.loads(source[_LENGTH_BYTES:end].tobytes())
            if end > source.size or type(codec) is not str or type(about) is not dict:
                raise ValueError("no codec, words and sizes")
            arrays = []
            for size in sizes:
                start = _aligned(end)
                end = start + size
                arrays.append(source[start:end])
                if type(size) is not int or size < 0 or end > source.size:
                    raise ValueError(f"an array of {size} bytes ends behind the packet")
        except (ValueError, TypeError, RecursionError) as error:
            raise FrameError(f"not a packet: {error}", "not_a_packet", reason=str(error)) from None
        return cls(codec, about, arrays)

    def _head(self) -> bytes:
        return json.dumps([self.codec, self.about, [array.size for array in self.arrays]]).encode()

    def _places(self) -> list[int]:
        """Where each array starts, and the end of all."""
        places, end = [], _LENGTH_BYTES + len(self._head())
        for array in self.arrays:
            places.append(_aligned(end))
            end = places[-1] + array.size
        return [*places, end]


class Codec(Protocol):
    """Turns tensors into packets at the sender and back at the receiver."""

    def encode(self, tensors: Sequence[Named]) -> Packet:
        """The packet of these 1-D tensors. What a codec remembers (residuals) stays with the sender."""

    def decode(self, packet: Packet) -> list[Named]:
        """The tensors, of their first names, dtypes and lengths, on the CPU.

        Their memory may be the packet's. Nothing is remembered. FrameError: not a packet of this codec.
        """


@dataclass(frozen=True, slots=True)
class Plain:
    """The tensors' own bytes; nothing is lost, and on a CPU nothing is copied."""

    def encode(self, tensors: Sequence[Named]) -> Packet:
        return _encode("plain", tensors, tensors)

    def decode(self, packet: Packet) -> list[Named]:
        return [(name, tensor) for name, _, tensor in _decode("plain", packet)]


@dataclass(frozen=True, slots=True)
class Half:
    """float32 and float64 as 16-bit floats, everything else as it is.

    bf16 keeps the range and 8 bits of precision. fp16 has 11 bits and ends at 65504: what lies beyond becomes
    infinite, and the host refuses such an update as it refuses any number that is not finite. Values below 3e-8 become
    0 in fp16: an OddlotWarning with the code `values_underflow` says so if these are over 1 % of the nonzero ones.
    """

    dtype: Literal["bf16", "fp16"] = "bf16"

    def __post_init__(self) -> None:
        if self.dtype not in tuple(_HALVES):
            raise InvalidValue("dtype", self.dtype, "'bf16' or 'fp16'")

    def encode(self, tensors: Sequence[Named]) -> Packet:
        half = _HALVES[self.dtype]
        small = [(n, t.to(half) if t.dtype in _WIDE else t) for n, t in tensors]
        self._warn_of_underflow([(t, s) for (_, t), (_, s) in zip(tensors, small, strict=True) if t is not s])
        return _encode(f"half-{self.dtype}", tensors, small)

    def decode(self, packet: Packet) -> list[Named]:
        tensors = _decode(f"half-{self.dtype}", packet)
        return [(name, tensor.to(dtype)) for name, dtype, tensor in tensors]

    def _warn_of_underflow(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Warn if too many nonzero values of the first tensors are 0 in the second ones; large ones are sampled."""
        stride = 1 + sum(wide.numel() for wide, _ in pairs) // _SAMPLED
        nonzero = sum(int(wide[::stride].count_nonzero()) for wide, _ in pairs)
        kept = sum(int(small[::stride].count_nonzero()) for _, small in pairs)
        if nonzero - kept > MAX_UNDERFLOW * nonzero:
            told = (
                f"{self.dtype} rounds over {100 * MAX_UNDERFLOW:g} % of an update's nonzero values to 0. "
                'Use Half("bf16"), or scale the loss'
            )
            warn(told, "values_underflow", dtype=self.dtype, share=(nonzero - kept) / nonzero)


_WIDE = (torch.float32, torch.float64)
_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_DTYPES = {
    name: getattr(torch, name)
    for name in [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    ]
}


def _encode(codec: str, tensors: Sequence[Named], sent: Sequence[Named]) -> Packet:
    about = {"names": [name for name, _ in tensors], "dtypes": [_name(t) for _, t in tensors]}
    about["sent"] = [_name(tensor) for _, tensor in sent]
    return Packet(codec, about, [t.detach().cpu().contiguous().view(torch.uint8).numpy() for _, t in sent])


def _decode(codec: str, packet: Packet) -> list[tuple[str, torch.dtype, Tensor]]:
    """Name, dtype at the sender's, and tensor as it travelled."""
    check_packet(packet, codec)
    try:
        words = [packet.about[key] for key in ("names", "dtypes", "sent")]
        return [
            (str(name), _DTYPES[dtype], _tensor(array).view(_DTYPES[sent]))
            for name, dtype, sent, array in zip(*words, packet.arrays, strict=True)
        ]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise damaged_packet(error) from None


def check_packet(packet: Packet, codec: str) -> None:
    """FrameError: it is a packet of another codec."""
    if packet.codec != codec:
        told = f"a packet of the codec {packet.codec!r} was given to {codec!r}"
        raise FrameError(told, "other_codec", given=packet.codec, codec=codec)


def damaged_packet(error: Exception) -> FrameError:
    """What a packet says of its arrays is not so."""
    told = f"a packet's words do not fit its arrays: {error}"
    return FrameError(told, "damaged_packet", reason=str(error))


def _tensor(array: Bytes) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
