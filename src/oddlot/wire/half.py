"""The codec that sends 16-bit floats."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from oddlot.core.support.errors import InvalidValue
from oddlot.core.support.user_warnings import warn
from oddlot.wire.codec import Codec
from oddlot.wire.packet import Named, Packet, packet_of, tensors_of

MAX_UNDERFLOW = 0.01
"""Share of the nonzero values of an update that may become 0 without a warning."""
_SAMPLED = 65_536
"""Number of values of an update that are sampled for this warning."""
_WIDE = (torch.float32, torch.float64)
_HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Half(Codec):
    """Send float32 and float64 as 16-bit floats, and other dtypes unchanged.

    - `bf16` keeps the range and has 8 bits of precision.
    - `fp16` has 11 bits of precision and a largest value of 65504. Larger magnitudes become infinite, and the update
      is rejected. Magnitudes below 3e-8 become 0.

    An OddlotWarning with the code `values_underflow` is shown if over 1 % of an update's nonzero values become 0.
    """

    dtype: Literal["bf16", "fp16"] = "bf16"
    """16-bit format: `bf16` or `fp16`."""

    def __post_init__(self) -> None:
        if self.dtype not in tuple(_HALVES):
            raise InvalidValue("dtype", self.dtype, "'bf16' or 'fp16'", of="Half")

    def encode(self, tensors: Sequence[Named]) -> Packet:
        """Return the packet with float32 and float64 rounded to 16 bits."""
        half = _HALVES[self.dtype]
        small = [(n, t.to(half) if t.dtype in _WIDE else t) for n, t in tensors]
        self._warn_of_underflow([(t, s) for (_, t), (_, s) in zip(tensors, small, strict=True) if t is not s])
        return packet_of(f"half-{self.dtype}", tensors, small)

    def decode(self, packet: Packet) -> list[Named]:
        """Return the tensors in their original dtypes."""
        tensors = tensors_of(f"half-{self.dtype}", packet)
        return [(name, tensor.to(dtype)) for name, dtype, tensor in tensors]

    def _warn_of_underflow(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Warn if too many nonzero values of the first tensors are 0 in the second tensors. Large tensors are
        sampled."""
        stride = 1 + sum(wide.numel() for wide, _ in pairs) // _SAMPLED
        nonzero = sum(int(wide[::stride].count_nonzero()) for wide, _ in pairs)
        kept = sum(int(small[::stride].count_nonzero()) for _, small in pairs)
        if nonzero - kept > MAX_UNDERFLOW * nonzero:
            message = (
                f"{self.dtype} rounds over {100 * MAX_UNDERFLOW:g} % of an update's nonzero values to 0. "
                'Use Half("bf16"), or scale the loss'
            )
            warn(message, "values_underflow", dtype=self.dtype, share=(nonzero - kept) / nonzero)
