"""Pickling of the job and the run's settings for workers. Workers share the memory of large arrays."""

import io
import mmap
import pickle
import sys
import warnings
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.user_code import parts_of_function

SHARED = {"r": "r", "r+": "c", "w+": "c"}
"""Modes of memory-mapped arrays that equal their file, and the read-only or private modes of workers."""


def travelling(array: "np.memmap[Any, Any]") -> tuple[Any, tuple[Any, ...]]:
    """Reduce a memory-mapped array for pickling: to the path of its file, or to an ordinary array.

    Parts of a mapped file, and private copies (mode `c`) with possible changes, become ordinary arrays.
    """
    base: object = array.base
    order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else None
    # The base of a complete map is the mmap; the base of a part is another array.
    whole = isinstance(base, mmap.mmap) and order is not None and array.mode in SHARED
    size = _size(array.filename) if whole and array.filename else None
    if size is None or size < array.offset + array.nbytes:
        return np.asarray, (np.asarray(array),)
    mode = SHARED[array.mode]
    return opened, (str(array.filename), size, array.dtype, mode, array.offset, array.shape, order)


def opened(
    path: str, size: int, dtype: Any, mode: str, offset: int, shape: tuple[int, ...], order: str
) -> "np.memmap[Any, Any]":
    """Map the array in a file of `size` bytes. Raise JobError if the file was removed or changed."""
    help_ = "Do not change memory-mapped files during a run"
    now = _size(path)
    if now != size:
        became = "it was removed" if now is None else f"it has {now:,} bytes instead of {size:,}"
        message = f"{path} has changed: {became}. The job's data are memory-mapped from it. {help_}"
        raise JobError(message, "data_file_changed", path=path, bytes=now, expected=size)
    try:
        return np.memmap(path, dtype, mode, offset, shape, order)  # type: ignore[call-overload, no-any-return]  # of any order
    except (OSError, ValueError) as error:
        message = f"{path}, from which the job's data are memory-mapped, cannot be read: {error}. {help_}"
        raise JobError(message, "unreadable_file", path=path, reason=str(error)) from None


def _size(path: str | Path) -> int | None:
    """Return the size of a file, or None if it does not exist."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


MAX_DEPTH = 6
"""Maximum depth of the search for the part of a value that cannot be pickled."""


def _shared(tensor: Tensor) -> tuple[Any, tuple[Any, ...]]:
    """Reduce a tensor for pickling: a CPU tensor to an array, so that workers share its memory."""
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized
    if not plain or tensor.nbytes > tensor.untyped_storage().nbytes():  # after expand() it may be very large
        reduced: tuple[Any, tuple[Any, ...]] = tensor.__reduce_ex__(2)  # type: ignore[no-untyped-call]  # PyTorch's
        return reduced
    numbers = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return _tensor, (numbers.numpy(), tensor.dtype, tensor.shape, tensor.requires_grad)


def _tensor(array: Any, dtype: torch.dtype, shape: torch.Size, requires_grad: bool) -> Tensor:
    """Return the tensor that `_shared` pickled."""
    return tensor_of(array).view(dtype).view(shape).requires_grad_(requires_grad)


def tensor_of(array: "np.ndarray[Any, Any]") -> Tensor:
    """Return a tensor that shares the memory of an array. It must not be changed if the array is read-only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch has no read-only tensors
        return torch.from_numpy(array)


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """A cloudpickle pickler that shares tensors and memory-mapped arrays instead of copying them into each worker."""

    dispatch_table: ClassVar = ChainMap(
        {np.memmap: travelling, Tensor: _shared}, *cloudpickle.Pickler.dispatch_table.maps
    )

    def reducer_override(self, obj: Any) -> Any:
        """Pickle objects that stand for modules, such as `torch.backends.cudnn`, by name."""
        if (
            isinstance(obj, ModuleType)
            and type(obj) is not ModuleType
            and sys.modules.get(obj.__name__) is obj
        ):
            return import_module, (obj.__name__,)
        return super().reducer_override(obj)


@contextmanager
def _script_by_value() -> Iterator[None]:
    """Let cloudpickle pickle `__mp_main__`, the script in a spawned child, by value, like `__main__`."""
    script = sys.modules.get("__mp_main__")
    if script is None or script.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(script)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(script)


def pickled(value: Any) -> list[memoryview]:
    """Return the pickle of a value, followed by the memory of its large arrays.

    Functions and classes of a script or notebook are pickled by value, so neither needs a `__main__` guard.
    Workers import other modules by name. A memory-mapped array is pickled as the path of its file, and workers map the
    file too.
    Raise UsageError with the name of the attribute if the value cannot be pickled.
    """
    buffers: list[Any] = []
    try:
        with _script_by_value():
            text = _dumped(value, buffers.append)
            return [text, *(buffer.raw() for buffer in buffers)]
    except Exception as error:
        with _script_by_value():
            attribute = _culprit(value)
        reason = f"{type(error).__name__}: {error}"
        message = (
            f"the job cannot be sent to workers, because of {attribute or 'one of its values'} "
            f"({reason}): have its "
        )
        raise UsageError(
            f"{message}functions open files, locks and connections themselves",
            "cannot_be_pickled",
            attribute=attribute,
            reason=reason,
        ) from error


def unpickled(parts: Sequence[Any]) -> Any:
    """Return the value that was pickled. Its large arrays share the memory of the parts."""
    return cloudpickle.loads(parts[0], buffers=parts[1:])


def _dumped(value: Any, keep: Any) -> memoryview:
    _Packer(out := io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=keep).dump(value)
    return out.getbuffer()


def _culprit(value: Any, depth: int = MAX_DEPTH) -> str:
    """Return the path of the innermost part that cannot be pickled, such as `job.loss.lock`, or an empty string."""
    for name, part in _parts(value).items():
        try:
            _dumped(part, lambda _: None)
        except Exception:  # noqa: BLE001 - pickling calls the user's own methods
            inner = _culprit(part, depth - 1) if depth else ""
            return f"{name}.{inner}" if inner else name
    return ""


def _parts(value: Any) -> Mapping[str, Any]:
    """Return the named parts of a value. The parts of a function are its globals and closure."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    if isinstance(value, list | tuple):
        return {str(index): part for index, part in enumerate(value)}
    return parts_of_function(value) or getattr(value, "__dict__", {})
