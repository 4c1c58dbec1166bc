"""Errors of the job's own code in a minibatch, with the rows of the minibatch and a hint."""

import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from oddlot.core.support.errors import JobError
from oddlot.core.support.user_code import trace_of, user_code_failed
from oddlot.data.batches import Batches, Indices


class LoadingFailed(Exception):
    """The job's code failed in a loading process. The text is the traceback there."""


MAX_ROWS = 64
"""Largest number of rows that an error lists."""
_OF_DTYPE = re.compile(r"dtype|scalar type|[Tt]ype \(|type torch")
"""Matches PyTorch's errors about dtypes."""


def minibatch_failed(
    where: str,
    error: BaseException,
    data: Batches,
    indices: Indices,
    batch: Any,
    model: nn.Module,
    hint: tuple[str, str] | None = None,
) -> JobError:
    """Return the error for an exception in a minibatch of these samples. `batch` is None if it was not read yet.

    The error has the fields `rows` (only the row that was being read, if it is known), `parts` (of `Shards`, with these
    rows) and `hint` (a code). The argument `hint` is the default: a code and a text.
    """
    rows = sorted(indices.tolist()) if data.reading is None else [data.reading]
    word, advice = _dtypes(error, batch, model) or _sparse(error, model) or hint or ("", "")
    parts = [*map(str, data.shards.parts_of(indices))] if data.shards else []
    given = {"rows": rows, "parts": parts, "hint": word}
    fields = {name: value for name, value in given.items() if value}
    beside = f" (part {', '.join(parts)})" if parts else ""
    message = f" with {data.setting}[{named_rows(rows)}]{beside}{advice and f'. {advice}'}"
    return user_code_failed(where, _trace_of(error), message, **fields)


def _trace_of(error: BaseException) -> str:
    return str(error) if isinstance(error, LoadingFailed) else trace_of(error)


def named_rows(rows: list[int]) -> str:
    """Return the rows as an index, such as `3, 7` or `0:256`."""
    if len(rows) > 2 and rows == list(range(rows[0], rows[-1] + 1)):
        return f"{rows[0]}:{rows[-1] + 1}"
    more = f" and {len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else ""
    return ", ".join(map(str, rows[:MAX_ROWS])) + more


def _dtypes(error: BaseException, batch: Any, model: nn.Module) -> tuple[str, str] | None:
    """Return the hint if PyTorch rejects the dtypes of the batch."""
    if not (isinstance(error, RuntimeError | ValueError) and _OF_DTYPE.search(str(error))):
        return None
    has, needs = (
        list(dict.fromkeys(map(_short, tensors))) for tensors in (_tensors(batch), model.parameters())
    )
    if not set(has) - set(needs):
        return None
    message = (
        f"The batch has {', '.join(has)}, but the parameters are {', '.join(needs)}: convert the data with "
    )
    return "dtypes", f'{message}tensor.to(torch.{needs[0]}), or array.astype("{needs[0]}") for numpy'


def _sparse(error: BaseException, model: nn.Module) -> tuple[str, str] | None:
    """Return the hint if an optimizer rejects sparse gradients."""
    names = [name for name, one in model.named_parameters() if one.grad is not None and one.grad.is_sparse]
    if not (names and isinstance(error, RuntimeError) and "sparse" in str(error)):
        return None
    return "sparse_gradients", (
        f"The gradient of {', '.join(names)} is sparse: use sparse=False, or an optimizer that accepts sparse "
        "gradients, without weight_decay"
    )


def _short(tensor: Tensor) -> str:
    """Return the name of a tensor's dtype, such as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, including tensors in nested dicts, tuples and lists."""
    if isinstance(batch, Tensor):
        yield batch
    for part in (
        batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple | list) else ()
    ):
        yield from _tensors(part)
