"""Coordinate-wise trimmed means of several streams of numbers, near memory speed.

A large section on a CPU uses a compiled loop (`sparse/kernels/trimming.py`), which is 15 times faster than PyTorch's
sort, or with few updates one that is compiled for their number (`fused_trimming.py`). Other sections use the sort.
16-bit floats are converted to float32.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oddlot.model.sorting_network import trimming_network
from oddlot.model.vector_ops import LARGE_NUMBERS, chunks

FUSED_NUMBERS = 1 << 20
"""Smallest number of elements for which a loop is compiled that is good for one number of updates only."""
SORTED_NUMBERS = 1 << 16
"""Elements per chunk for PyTorch's sort on a CPU, so that its copies stay in the cache."""


def trimmed_mean(values: Sequence[Tensor], trim: int, out: Tensor) -> Tensor:
    """Write the mean of each column without its `trim` smallest and `trim` largest values into `out`.

    Return the number of values of each stream below or above all kept values of their column, as int64 on the CPU.
    Values that are equal to a kept value count as kept. The values must be finite.
    """
    if out.numel() >= LARGE_NUMBERS and out.device.type == "cpu" and out.dtype != torch.float64:
        return _in_tiles(values, trim, out)
    counts = torch.zeros(len(values), dtype=torch.int64, device=out.device)
    wide = torch.promote_types(out.dtype, torch.float32)
    step = SORTED_NUMBERS if out.device.type == "cpu" else 64 * SORTED_NUMBERS
    for start in range(0, out.numel(), step):
        span = slice(start, start + step)
        columns = torch.stack([stream[span] for stream in values]).to(wide)
        kept = columns.sort(dim=0).values[trim : len(values) - trim]
        counts += ((columns < kept[0]) | (columns > kept[-1])).sum(dim=1)
        out[span].copy_(kept.mean(dim=0))
    return counts.cpu()


def _in_tiles(values: Sequence[Tensor], trim: int, out: Tensor) -> Tensor:
    """Compute a trimmed mean with the compiled loop, chunk by chunk. 16-bit floats are converted to float32."""
    kernel = _kernel(len(values), trim, out.numel())
    counts = torch.zeros(len(values), dtype=torch.int64)
    for span in chunks(out.numel(), out.device):
        parts = [stream[span].float().contiguous() for stream in values]  # copies only 16-bit floats
        target = out[span] if out.dtype == torch.float32 else torch.empty(parts[0].numel())
        addresses = torch.tensor([part.data_ptr() for part in parts]).numpy()
        kernel(addresses, target.numpy(), counts.numpy())
        if target.dtype != out.dtype:
            out[span].copy_(target)
    return counts


def _kernel(rows: int, trim: int, numbers: int) -> Callable[..., None]:
    """Return a compiled loop that takes the addresses of the rows, the result and the counts."""
    from oddlot.sparse.kernels.fused_trimming import MAX_ROWS, fused_kernel  # these compile code
    from oddlot.sparse.kernels.trimming import trim_columns

    network = trimming_network(rows, trim)
    if rows <= MAX_ROWS and numbers >= FUSED_NUMBERS:
        return fused_kernel(rows, trim, network)
    pairs = torch.tensor(network, dtype=torch.int64).reshape(-1, 2).numpy()
    return lambda addresses, out, counts: trim_columns(addresses, pairs, trim, out, counts)
