"""Loading processes return the same minibatches, report failures with the sample, and end with their worker."""

import faulthandler
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, get_worker_info

from oddlot import Job, LocalSGD, Synchronous, accuracy, fit
from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import JobError
from oddlot.data.batches import Batches
from oddlot.data.sample_order import Minibatch, minibatches, sample_order
from oddlot.data.seeded_fetch import SeededFetch
from oddlot.engines.local.orphans import wait_until_gone
from oddlot.engines.processes.loading_processes import LoadingProcesses
from oddlot.train.sample_failures import LoadingFailed
from tests.fits import distance, local
from tests.transcripts import raises, warns

SIZE = 24
ORDER = sample_order(SIZE)


class Noisy(Dataset[Any]):
    """A dataset with random samples. `act` is called with each index first."""

    def __init__(self, act: Callable[[int], None] = lambda index: None, width: int = 3) -> None:
        self.act, self.width = act, width

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.act(index)
        noise = torch.rand(self.width) + random.random() + np.random.rand()  # noqa: NPY002
        return noise * index / SIZE, index % 2


def batches(size: int = 4) -> list[Minibatch]:
    return minibatches(ORDER, 3, [Span(0, 0, SIZE)], size)


@contextmanager
def loading(data: Any, count: int = 2, start: Any = None, collate: Any = None) -> Iterator[LoadingProcesses]:
    pool = LoadingProcesses(count, SeededFetch(Batches(data, collate), 3), start)
    try:
        yield pool
    finally:
        pids = [process.pid for process in pool.processes]
        pool.close()
        assert wait_until_gone(pids, 10)


@pytest.mark.parametrize("width", [3, 20_000], ids=["inline", "shared memory"])
def test_processes_load_what_the_worker_would(width: int) -> None:
    here = SeededFetch(Batches(Noisy(width=width)), 3)
    with loading(Noisy(width=width)) as pool:
        for number, minibatch in enumerate(batches()):
            pool.request(number, minibatch)
        for number, minibatch in reversed([*enumerate(batches())]):
            inputs, targets = pool.result(number)
            expected = here(minibatch)
            assert torch.equal(inputs, expected[0])
            assert torch.equal(targets, expected[1])
            inputs += 1  # writable


def test_dropped_requests_are_not_loaded(tmp_path: Path) -> None:
    """A process finishes the minibatch that it is loading, and skips the dropped ones behind it."""
    gate = tmp_path / "gate"

    def wait(index: int) -> None:
        (tmp_path / str(index)).touch()
        while not gate.exists():
            time.sleep(0.001)

    first, second, third = batches(8)
    with loading(Noisy(wait), count=1) as pool:
        for number, minibatch in enumerate((first, second, third)):
            pool.request(number, minibatch)
        while not (tmp_path / str(first.indices[0])).exists():
            time.sleep(0.001)
        pool.drop([0, 1])
        gate.touch()
        pool.result(2)
        assert not pool.done
        assert not pool.processes[0].pending
    read = {int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()}
    assert read == {*first.indices.tolist(), *third.indices.tolist()}


BAD = int(batches()[1].indices[2])


def fail(index: int) -> None:
    if index == BAD:
        raise OSError("the file is gone")


def test_error_in_a_process_has_its_traceback_and_sample() -> None:
    with loading(Noisy(fail)) as pool:
        pool.request(0, batches()[1])
        with pytest.raises(LoadingFailed, match="the file is gone"):
            pool.result(0)
        assert pool.fetch.batches.reading == BAD
        pool.request(1, batches()[0])
        pool.result(1)


def segfault() -> None:
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize(
    ("end", "code"),
    [(lambda: os._exit(3), 3), (segfault, -signal.SIGSEGV)],
    ids=["exit", "segfault"],
)
def test_end_of_a_process_names_the_sample(end: Callable[[], None], code: int) -> None:
    with loading(Noisy(lambda index: end() if index == BAD else None), count=1) as pool:
        for number, minibatch in enumerate(batches()):
            pool.request(number, minibatch)
        pool.result(0)
        with raises(JobError, "loading_process_ended", exit_code=code, rows=[BAD]):
            pool.result(1)


def test_end_is_noticed_while_a_grandchild_holds_the_pipe(tmp_path: Path) -> None:
    def leave_child() -> None:
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            signal.pause()
        (tmp_path / "pid").write_text(str(pid))
        os._exit(3)

    with loading(Noisy(lambda index: leave_child() if index == BAD else None), count=1) as pool:
        pool.request(0, batches()[1])
        with raises(JobError, "loading_process_ended", exit_code=3, rows=[BAD]):
            pool.result(0)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_process_killed_from_outside_is_replaced(tmp_path: Path) -> None:
    """A minibatch that three processes were killed for fails the run."""

    def killed(index: int, times: int) -> None:
        marks = len(list(tmp_path.iterdir()))
        if index == BAD and marks < times:
            (tmp_path / str(marks)).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    with loading(Noisy(lambda index: killed(index, 2)), count=1) as pool:
        for number, minibatch in enumerate(batches()):
            pool.request(number, minibatch)
        with warns("loading_process_killed", signal="SIGKILL"):
            found = [pool.result(number)[0] for number in range(len(batches()))]
    assert torch.equal(found[1], SeededFetch(Batches(Noisy()), 3)(batches()[1])[0])
    with loading(Noisy(lambda index: killed(index, 9)), count=1) as pool:
        pool.request(0, batches()[1])
        with warns("loading_process_killed"), raises(JobError, "loading_process_ended", rows=[BAD]):
            pool.result(0)


def test_processes_end_with_a_killed_worker(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        pool = LoadingProcesses(2, SeededFetch(Batches(Noisy()), 3))
        pool.request(0, batches()[0])
        pool.result(0)
        (tmp_path / "part").write_text(" ".join(str(process.pid) for process in pool.processes))
        (tmp_path / "part").rename(tmp_path / "pids")
        signal.pause()
    while not (tmp_path / "pids").exists():
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert wait_until_gone([*map(int, (tmp_path / "pids").read_text().split())], 10)


class Opened(Noisy):
    """A dataset that its loading process opens."""

    number: int | None = None

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(self.number or 0), torch.get_num_threads()])


def open_data(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert (info.id, info.num_workers) == (number, 2)
    vars(info.dataset)["number"] = 10 + number


def test_start_function_can_open_the_dataset() -> None:
    with loading(Opened(), start=open_data) as pool:
        for number, minibatch in enumerate(batches()[:2]):
            pool.request(number, minibatch)
        assert {float(pool.result(number)[0, 0]) for number in range(2)} == {10.0, 11.0}
    with loading(Opened(), start=lambda number: 1 / 0) as pool:
        pool.request(0, batches()[0])
        with pytest.raises(LoadingFailed, match="ZeroDivisionError"):
            pool.result(0)


def test_minibatch_that_cannot_be_pickled_is_named() -> None:
    with loading(Noisy(), collate=lambda samples: [samples, Lock()]) as pool:
        pool.request(0, batches()[0])
        with raises(JobError, "batch_not_pickled", attribute="1.1"):
            pool.result(0)


def a_job(data: Any = None, **settings: Any) -> Job:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2))

    data = Noisy() if data is None else data
    given: dict[str, Any] = {"loss": nn.functional.cross_entropy, "batch_size": 4, "device": "cpu"}
    return Job(net, data, **given | settings)


@pytest.mark.parametrize("strategy", [Synchronous(), LocalSGD(steps=3)], ids=["one minibatch", "three"])
def test_run_that_loads_ahead_ends_with_the_same_model(strategy: Any) -> None:
    settings: dict[str, Any] = {"eval_data": Noisy(width=3), "metrics": {"accuracy": accuracy}}
    one, two = (
        fit(a_job(load_workers=count, **settings), strategy, local(1), until="epochs>=2", quiet=True)
        for count in (0, 2)
    )
    assert distance(one.model, two.model) == 0
    assert two.summary["samples_merged"] == 2 * SIZE
    assert one.metrics == two.metrics


def test_next_minibatch_is_read_while_a_step_computes(tmp_path: Path) -> None:
    """Each step waits until the next minibatch of its epoch is being read, which only a loading process can do."""
    order = sample_order(SIZE).epoch(0, 0).indices.tolist()
    following = dict(zip(order[:-4:4], order[4::4], strict=True))

    class Read(Noisy):
        def __getitem__(self, index: int) -> Any:
            (tmp_path / str(index)).touch()
            return torch.full((3,), float(index)), index

    def step(model: nn.Module, batch: Any) -> Tensor:
        after = following.get(int(batch[1][0]))
        until = time.monotonic() + 60
        while after is not None and not (tmp_path / str(after)).exists():
            assert time.monotonic() < until, "the next minibatch is not read"
            time.sleep(0.001)
        return model(batch[0]).sum() * 0.0  # type: ignore[no-any-return]

    job = a_job(Read(), loss=None, training_step=step, load_workers=1)
    run = fit(job, Synchronous(), local(1), until="epochs>=1", quiet=True)
    assert run.summary["samples_merged"] == SIZE


def test_failures_in_loading_processes_stop_a_run() -> None:
    with raises(JobError, "user_code_failed", rows=[BAD]):
        fit(a_job(Noisy(fail), load_workers=1), Synchronous(), local(1), until="epochs>=2", quiet=True)
    with raises(JobError, "loading_process_ended", rows=[BAD], exit_code=4) as ended:
        data = Noisy(lambda index: os._exit(4) if index == BAD else None)
        fit(a_job(data, load_workers=1), Synchronous(), local(1), until="epochs>=2", quiet=True)
    assert ended.fields["task"].startswith("w1:")
