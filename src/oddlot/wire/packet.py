"""Packets: named tensors as arrays of bytes, and functions to make and to read them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oddlot.wire.framing import FrameError

Named = tuple[str, Tensor]
Bytes = NDArray[np.uint8]

DTYPES = {
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
        "uint16",
        "uint32",
        "uint64",
        "bool",
    ]
}
"""Dtypes of a packet's tensors, by their names."""
_ALIGNMENT_BYTES = 64
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Packet:
    """Encoded tensors. A packet is self-contained: the codec's class can decode it."""

    codec: str
    """Name of the codec."""
    about: dict[str, Any]
    """JSON data about the tensors."""
    arrays: list[Bytes]
    """Contiguous 1-D arrays of uint8. They may be views of the tensors."""

    @property
    def size(self) -> int:
        """Return the number of bytes that `write` needs."""
        return self._places()[-1]

    def write(self, out: Bytes) -> int:
        """Write the packet into `out` and return its size. Raise ValueError if `out` is too small."""
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
        """Read the packet at the start of these bytes. Its arrays are views of them.

        Raise FrameError if there is no valid packet.
        """
        try:
            end = _LENGTH_BYTES + int.from_bytes(source[:_LENGTH_BYTES].tobytes(), "little")
            codec, about, sizes = json.loads(source[_LENGTH_BYTES:end].tobytes())
            if end > source.size or type(codec) is not str or type(about) is not dict:
                raise ValueError("the header is not [codec, about, sizes]")
            arrays = []
            for size in sizes:
                start = _aligned(end)
                end = start + size
                arrays.append(source[start:end])
                if type(size) is not int or size < 0 or end > source.size:
                    raise ValueError(f"an array of {size} bytes ends after the end of the packet")
        except (ValueError, TypeError, RecursionError) as error:
            raise FrameError(f"not a packet: {error}", "not_a_packet", reason=str(error)) from None
        return cls(codec, about, arrays)

    def _head(self) -> bytes:
        return json.dumps([self.codec, self.about, [array.size for array in self.arrays]]).encode()

    def _places(self) -> list[int]:
        """Return the start of each array, and the end of the packet."""
        places, end = [], _LENGTH_BYTES + len(self._head())
        for array in self.arrays:
            places.append(_aligned(end))
            end = places[-1] + array.size
        return [*places, end]


def packet_of(codec: str, tensors: Sequence[Named], sent: Sequence[Named]) -> Packet:
    """Return the packet of `tensors`, sent in the form of `sent`, such as 16-bit floats."""
    about = {"names": [name for name, _ in tensors], "dtypes": [_name(t) for _, t in tensors]}
    about["sent"] = [_name(tensor) for _, tensor in sent]
    return Packet(codec, about, [t.detach().cpu().contiguous().view(torch.uint8).numpy() for _, t in sent])


def tensors_of(codec: str, packet: Packet) -> list[tuple[str, torch.dtype, Tensor]]:
    """Return each name, dtype at the sender, and tensor as it was sent.

    Raise FrameError for a packet of another codec.
    """
    check_packet(packet, codec)
    try:
        words = [packet.about[key] for key in ("names", "dtypes", "sent")]
        return [
            (str(name), DTYPES[dtype], _tensor(array).view(DTYPES[sent]))
            for name, dtype, sent, array in zip(*words, packet.arrays, strict=True)
        ]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise damaged_packet(error) from None


def check_packet(packet: Packet, codec: str) -> None:
    """Raise FrameError for a packet of another codec."""
    if packet.codec != codec:
        message = f"the codec {codec!r} cannot decode a packet of the codec {packet.codec!r}"
        raise FrameError(message, "other_codec", given=packet.codec, codec=codec)


def damaged_packet(error: Exception) -> FrameError:
    """Return the error for a packet whose header does not fit its arrays."""
    message = f"the header of a packet does not fit its arrays: {error}"
    return FrameError(message, "damaged_packet", reason=str(error))


def _tensor(array: Bytes) -> Tensor:
    if not array.size:  # an empty array has stride 0, and no view of another dtype
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
