"""The devices of workers: a GPU for each, or the CPU."""

import torch

from oddlot.core.support.errors import UsageError


def choose_device(wish: str, worker: int = 0) -> torch.device:
    """Return the device of a worker. With n GPUs, worker i uses GPU i modulo n.

    If `wish` has a number, such as `cuda:1`, every worker uses this GPU.
    """
    if wish != "auto":
        device = _named_device(wish)
    elif torch.cuda.is_available():
        device = torch.device("cuda")
    else:
        device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if device.type == "cuda" and ":" not in wish:
        return torch.device("cuda", worker % torch.cuda.device_count())
    return device


def _named_device(wish: str) -> torch.device:
    try:
        device = torch.device(wish)
    except RuntimeError:
        raise UsageError(
            f"unknown device {wish!r}: use auto, cpu, cuda, cuda:1, ... or mps",
            "unknown_device",
            "device",
            given=wish,
        ) from None
    backends = {"cuda": torch.cuda, "mps": torch.backends.mps}
    if device.type in backends and not backends[device.type].is_available():
        raise UsageError(
            f"device = {wish!r} is not available: PyTorch finds no {device.type} on this machine",
            "missing_device",
            "device",
            given=wish,
            type=device.type,
        )
    return device
