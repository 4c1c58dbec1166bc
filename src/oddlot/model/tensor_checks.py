"""Checks before a run that each parameter and buffer of a model can be merged, copied and saved."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from oddlot.core.support.errors import UsageError
from oddlot.core.support.user_warnings import warn

MERGEABLE = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.bool,
        torch.int64,
        torch.int32,
        torch.int16,
    }
    | {torch.int8, torch.uint8, torch.uint64, torch.uint32, torch.uint16}
)
"""Dtypes of tensors that can be merged."""
SAVABLE = MERGEABLE | {torch.complex64}
"""Dtypes that safetensors can write."""


def check_tensors(module: nn.Module) -> None:
    """Check every parameter and saved buffer of the module.

    Raise UsageError if a tensor has no shape or memory yet (lazy, meta), is sparse or quantized, has a dtype that
    cannot be saved, is a complex trainable parameter, or has elements that share memory with each other or with another
    tensor.
    """
    for what, name, tensor in _named_tensors(module):
        _check_kind(what, name, tensor)
        if what == "parameter" and tensor.requires_grad and tensor.is_complex():
            raise _rejection(
                what,
                name,
                "complex_parameter",
                f"is {tensor.dtype}: complex parameters cannot be merged",
                "store the real and the imaginary part as two real parameters",
                dtype=tensor.dtype,
            )
        if _overlaps_itself(tensor):
            raise _rejection(
                what,
                name,
                "overlapping_tensor",
                "has elements that share memory, as after expand()",
                "use .clone() or .contiguous() when you create it",
            )
    _check_apart(module)


def warn_of_extra_state(module: nn.Module) -> None:
    """Warn about modules with `get_extra_state`, because such state is neither merged nor saved."""
    names = [
        name or type(owner).__name__
        for name, owner in module.named_modules()
        if type(owner).get_extra_state is not nn.Module.get_extra_state
    ]
    if names:
        warn(
            f"the extra state (get_extra_state) of {', '.join(names[:3])} is neither merged nor saved: keep it in a "
            "buffer if it matters",
            "extra_state",
            modules=names,
        )


def is_plain(tensor: Tensor) -> bool:
    """Return whether values can be copied into a tensor."""
    dense = tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
    return dense and tensor.dtype in SAVABLE and not _overlaps_itself(tensor)


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield each parameter and saved buffer once."""
    saved = module.state_dict(keep_vars=True)
    yield from (("parameter", name, parameter) for name, parameter in module.named_parameters())
    yield from (("buffer", name, buffer) for name, buffer in module.named_buffers() if name in saved)


def _check_kind(what: str, name: str, tensor: Tensor) -> None:
    """Raise UsageError for a tensor that a run cannot copy, merge or save."""
    if is_lazy(tensor):
        message = "has no shape yet (lazy)"
        help_ = "run one batch through the model in the job's model factory"
        raise _rejection(what, name, "lazy_parameter", message, help_)
    if tensor.device.type == "meta":
        message, help_ = "is on the meta device, so it has no values", "create the model on a real device"
        raise _rejection(what, name, "meta_tensor", message, help_)
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        message = f"is {kind}: such tensors cannot be copied to workers or saved"
        help_ = "use .to_dense(), or create it in forward()"
        raise _rejection(what, name, "not_dense", message, help_, layout=kind)
    if tensor.dtype not in SAVABLE:
        message, help_ = f"is {tensor.dtype}, which cannot be merged or saved", "use float32 or bfloat16"
        raise _rejection(what, name, "unsupported_dtype", message, help_, dtype=tensor.dtype)


def _rejection(what: str, name: str, code: str, message: str, help_: str, **fields: Any) -> UsageError:
    return UsageError(f"{what} {name} {message}: {help_}", code, "", **{what: name, **fields})


def _overlaps_itself(tensor: Tensor) -> bool:
    """Return whether two elements may share memory. For a few unusual as_strided() views, True is wrong."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach = stride * (size - 1) + reach
    return False


def _check_apart(module: nn.Module) -> None:
    """Raise UsageError if two different tensors share memory."""
    storages: dict[int, list[tuple[str, str, Tensor]]] = {}
    for what, name, tensor in _named_tensors(module):
        if tensor.numel():
            storages.setdefault(tensor.untyped_storage().data_ptr(), []).append((what, name, tensor))
    for tensors in storages.values():
        used = torch.zeros(
            tensors[0][2].untyped_storage().nbytes() if len(tensors) > 1 else 0,
            dtype=torch.uint8,
            device="cpu",
        )
        for number, (what, name, tensor) in enumerate(tensors if len(tensors) > 1 else ()):
            places = _bytes_of(tensor, used)
            if places.any():
                other = next(before for _, before, one in tensors[:number] if _share_memory(one, tensor))
                message, help_ = f"shares memory with {other}", "use one of them, or .clone()"
                raise _rejection(what, name, "shared_memory", message, help_, other=other)
            places.fill_(1)


def _bytes_of(tensor: Tensor, memory: Tensor) -> Tensor:
    """Return the bytes of the tensor within `memory`, the bytes of its storage."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    return memory.as_strided((*tensor.shape, size), (*strides, 1), tensor.storage_offset() * size)


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one storage have a byte in common."""
    used = torch.zeros(one.untyped_storage().nbytes(), dtype=torch.uint8, device="cpu")
    _bytes_of(one, used).fill_(1)
    return bool(_bytes_of(other, used).any())
