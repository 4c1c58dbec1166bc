"""DistributedDataParallel with gloo, as an alternative in other benchmarks."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from benchmarks.processes import CONTEXT

WARM_STEPS = 3
"""Uncounted warm-up steps after a pause."""


def plain_steps(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, batch: int
) -> Callable[[], None]:
    """Return the step of a plain training loop: rows of a shuffled epoch, forward, loss, backward, SGD with
    momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    order, at = torch.randperm(len(inputs)), 0

    def step() -> None:
        nonlocal order, at
        if at + batch > len(inputs):
            order, at = torch.randperm(len(inputs)), 0
        rows = order[at : at + batch]
        at += batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.index_select(0, rows)), targets.index_select(0, rows))
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's
        optimizer.step()
        loss.item()

    return step


def _member(
    rank: int,
    size: int,
    port: int,
    make: Callable[[], tuple[nn.Module, Any, Any, int]],
    pipe: Connection,
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    model, inputs, targets, batch = make()
    plain = plain_steps(nn.parallel.DistributedDataParallel(model), inputs, targets, batch)

    def steps(count: int, wait: float) -> None:
        for _ in range(count):
            time.sleep(wait)
            plain()

    steps(5, 0.0)
    pipe.send(0)
    while asked := pipe.recv():
        count, wait = asked
        steps(WARM_STEPS, wait)
        began = time.perf_counter()
        steps(count, wait)
        pipe.send(time.perf_counter() - began)
    torch.distributed.destroy_process_group()
    os._exit(0)  # the destructor of the process group can deadlock on the GIL


class Group:
    """DDP processes that wait for requests to run steps."""

    def __init__(self, make: Callable[[], tuple[nn.Module, Any, Any, int]], size: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        pipes = [CONTEXT.Pipe() for _ in range(size)]
        self.pipes = [ours for ours, _ in pipes]
        self.members = [
            CONTEXT.Process(target=_member, args=(rank, size, port, make, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for member in self.members:
            member.start()
        for _, theirs in pipes:
            theirs.close()  # if a member dies, `recv` then raises EOFError
        for pipe in self.pipes:
            pipe.recv()

    def seconds(self, count: int, waits: Sequence[float]) -> float:
        """Return the seconds that `count` steps take. Member i sleeps for `waits[i]` seconds before each."""
        for pipe, wait in zip(self.pipes, waits, strict=True):
            pipe.send((count, wait))
        return float(max(pipe.recv() for pipe in self.pipes))

    def close(self) -> None:
        """Stop the processes."""
        for pipe in self.pipes:
            pipe.send(None)
        for member in self.members:
            member.join()
