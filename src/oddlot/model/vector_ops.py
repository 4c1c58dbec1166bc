"""Weighted sums and finite checks, limited by memory bandwidth.

Merges work chunk by chunk, so sums stay in the cache. For a large float32 section on a CPU, the sum is a compiled loop
over four streams with prefetching. It is about 25 % faster than separate PyTorch operations (`python -m
benchmarks.hub`) and takes 1 s to compile. Other sections use PyTorch operations.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import isfinite
from typing import Any

import torch
from torch import Tensor

CHUNK_NUMBERS = 1 << 20
"""Elements per chunk. A chunk of float32 has 4 MiB and fits in the cache."""
LARGE_NUMBERS = 1 << 22
"""Smallest number of elements of a section for the compiled loop."""

_TURN = 128
_PREFETCH_NUMBERS = 256
"""Prefetch distance, in elements: two to three times the memory latency."""
_NUMBERS_PER_LINE = 16
_STREAMS = 4

Mix = Callable[[Tensor, float, Sequence[Tensor], Sequence[float]], None]
"""`mix(out, keep, tensors, shares)` computes out <- keep x out + sum of share x tensor. keep=0 ignores `out`."""


def chunks(numbers: int, device: torch.device) -> Iterator[slice]:
    """Yield consecutive slices that cover `numbers` elements. They are longer on a GPU."""
    length = CHUNK_NUMBERS if device.type == "cpu" else 64 * CHUNK_NUMBERS
    return (slice(start, min(start + length, numbers)) for start in range(0, numbers, length))


def mixer(section: Tensor) -> Mix:
    """Return the fastest `Mix` for chunks of this section."""
    if section.numel() >= LARGE_NUMBERS and section.dtype == torch.float32 and section.device.type == "cpu":
        return _compiled()
    return mix


def mix(out: Tensor, keep: float, tensors: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Compute a `Mix` with PyTorch operations. `out` may have a wider dtype than the tensors."""
    first = 0
    if keep == 0 and len(tensors) > 1 and shares[0] == 1 and tensors[0].dtype == out.dtype:
        torch.add(tensors[0], tensors[1], alpha=shares[1], out=out)
        first = 2
    elif keep == 0:
        out.zero_()
    elif keep != 1:
        out.mul_(keep)
    for tensor, share in zip(tensors[first:], shares[first:], strict=True):
        out.add_(tensor, alpha=share)


def move(
    mix: Mix, source: Tensor, target: Tensor, keep: float, tensors: Sequence[Tensor], shares: Sequence[float]
) -> None:
    """Compute target <- keep x source + sum of share x tensor. `target` may be `source`."""
    if target.data_ptr() == source.data_ptr():
        mix(target, keep, tensors, shares)
    elif keep == 0:  # 0 x infinity is NaN
        mix(target, 0.0, tensors, shares)
    else:
        mix(target, 0.0, [source, *tensors], [keep, *shares])


def is_finite(section: Tensor) -> bool:
    """Return whether all numbers are finite. Single numbers are checked only if the sum is not finite."""
    wide = torch.float32 if section.dtype == torch.float16 else None
    return isfinite(section.sum(dtype=wide).item()) or all(
        bool(torch.isfinite(section[span]).all()) for span in chunks(section.numel(), section.device)
    )


@cache
def _compiled() -> Mix:
    add_four = _compile()

    def mix_fast(out: Tensor, keep: float, tensors: Sequence[Tensor], shares: Sequence[float]) -> None:
        streams = [tensor.numpy() for tensor in tensors]
        target = out.numpy()
        for start in range(0, max(len(streams), 1), _STREAMS):
            group, weights = streams[start : start + _STREAMS], list(shares[start : start + _STREAMS])
            # Unused streams read the first stream, because it is in the cache.
            group += [group[0] if group else target] * (_STREAMS - len(group))
            weights += [0.0] * (_STREAMS - len(weights))
            add_four(target, keep if start == 0 else 1.0, *group, *weights)

    return mix_fast


def _compile() -> Any:
    """Compile out <- keep x out + sum of share x stream for four streams of float32."""
    from numba import float32, njit, uint64, void

    from oddlot.sparse.kernels.prefetch import prefetch

    stream = float32[::1]
    zero = float32(0)

    @njit(void(stream, float32, *[stream] * 4, *[float32] * 4), nogil=True, fastmath={"contract"})
    def add_four(  # type: ignore[no-untyped-def]  # numba has the types
        out, keep, a, b, c, d, share_a, share_b, share_c, share_d
    ):
        numbers = uint64(out.size)  # unsigned, to avoid a test of the sign of each index
        start = uint64(0)
        while start + uint64(_TURN) <= numbers:
            for line in range(_TURN // _NUMBERS_PER_LINE):
                ahead = start + uint64(_PREFETCH_NUMBERS + line * _NUMBERS_PER_LINE)
                prefetch(out, ahead)
                prefetch(a, ahead)
                prefetch(b, ahead)
                prefetch(c, ahead)
                prefetch(d, ahead)
            for offset in range(_TURN):
                i = start + uint64(offset)
                kept = zero if keep == zero else keep * out[i]
                out[i] = kept + (share_a * a[i] + share_b * b[i] + share_c * c[i] + share_d * d[i])
            start += uint64(_TURN)
        while start < numbers:
            kept = zero if keep == zero else keep * out[start]
            out[start] = kept + (
                share_a * a[start] + share_b * b[start] + share_c * c[start] + share_d * d[start]
            )
            start += uint64(1)

    return add_four
