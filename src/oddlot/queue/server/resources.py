"""GPUs and cores of this machine, and which of them are free."""

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.jobs import Placement


def count_cpus() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_indices() -> list[int]:
    """Return the indices of the NVIDIA GPUs that this process may use. Without a driver, the list is empty.

    Raise UsageError if CUDA_VISIBLE_DEVICES has UUIDs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [one.strip() for one in visible.split(",")]
        if any(one.startswith(("GPU-", "MIG-")) for one in names):
            message = f"CUDA_VISIBLE_DEVICES = {visible} names GPUs by UUID: use indices such as 0,1, or pass --gpus"
            raise UsageError(message, "gpu_uuids", visible=visible)
        return [int(one) for one in names if one.isdecimal()]
    with suppress(OSError, subprocess.TimeoutExpired):
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=20, check=False
        )
        return list(range(sum(line.startswith("GPU ") for line in listed.stdout.splitlines())))
    return []


class Indices:
    """Indices of GPUs or cores, and the ones in use."""

    def __init__(self, names: Iterable[int]) -> None:
        self.free = sorted(names)

    def take(self, count: int) -> tuple[int, ...]:
        """Take the smallest free indices. If too few are free, as after a change of the machine, take fewer."""
        taken, self.free = self.free[:count], self.free[count:]
        return tuple(taken)

    def remove(self, taken: Iterable[int]) -> None:
        """Mark indices as used."""
        used = set(taken)
        self.free = [one for one in self.free if one not in used]

    def give_back(self, taken: Iterable[int]) -> None:
        """Mark indices as free."""
        self.free = sorted({*self.free, *taken})


class Devices:
    """GPUs and cores that attempts use.

    Parameters
    ----------
    gpus
        Indices of the GPUs.
    cpus
        Number of cores.
    pin
        Whether to bind attempts to cores.
    """

    def __init__(self, gpus: Iterable[int], cpus: int, *, pin: bool) -> None:
        self.gpus = Indices(gpus)
        cores = sorted(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_getaffinity") else []
        self.cores = Indices(cores[:cpus])

    def take(self, placement: Placement) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Take GPUs and, with pinning, cores for a placement on this machine."""
        return self.gpus.take(sum(part.gpus for part in placement)), self.cores.take(
            sum(part.cpus for part in placement)
        )

    def remove(self, gpus: Iterable[int], cores: Iterable[int]) -> None:
        """Mark GPUs and cores as used."""
        self.gpus.remove(gpus)
        self.cores.remove(cores)

    def give_back(self, gpus: Iterable[int], cores: Iterable[int]) -> None:
        """Mark GPUs and cores as free."""
        self.gpus.give_back(gpus)
        self.cores.give_back(cores)
