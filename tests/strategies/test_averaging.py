"""Averaging of weights, shard by shard, against plain PyTorch."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import oddlot
from oddlot import (
    VCASGD,
    Downpour,
    ElasticAveraging,
    FederatedAveraging,
    Job,
    Machine,
    Run,
    Simulated,
    Strategy,
    fit,
)
from oddlot.core.commands import Blend, Start, Step
from oddlot.core.events import Arrived
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import Task
from oddlot.data.batches import order
from oddlot.machines import Hub
from tests.fits import SAMPLES, Place, a_job, distance, everything, fleet, local, trained

pytestmark = pytest.mark.usefixtures("fork_server")

SHARDS = 4
PLACES: dict[str, Place] = {"local": local(2), "simulated": fleet(2)}


def local_pass(job: Job, start: nn.Module, spans: tuple[Span, ...], shards: int) -> nn.Module:
    """Return the model after one pass over a client's shard with a new optimizer."""
    model = job.model()
    model.load_state_dict(start.state_dict())
    assert isinstance(job.optimizer, oddlot.SGD)
    optimizer = torch.optim.SGD(model.parameters(), job.optimizer.lr, job.optimizer.momentum)
    (span,) = spans
    rows = order(0, span.epoch, SAMPLES, shards)[span.start : span.stop]
    for batch in torch.from_numpy(rows.copy()).split(job.batch_size):  # type: ignore[no-untyped-call]  # PyTorch's
        optimizer.zero_grad()
        job.batch_loss(model, tuple(part[batch] for part in job.train_data)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def average(parts: list[tuple[float, nn.Module]]) -> nn.Module:
    """Return the weighted sum of models."""
    total = deepcopy(parts[0][1])
    with torch.no_grad():
        for name, parameter in total.named_parameters():
            terms = [share * dict(model.named_parameters())[name] for share, model in parts]
            parameter.copy_(torch.stack(terms).sum(dim=0))
    return total


def replayed(job: Job, run: Run, shards: int = 1) -> nn.Module:
    """Repeat the merges of a run in order, with PyTorch only."""
    torch.manual_seed(0)
    versions, given = [job.model()], dict[str, Task]()
    ends, homes = dict[str, nn.Module](), dict[str, nn.Module]()
    for record in run.records:
        if isinstance(record.event, Arrived):
            task = given[record.event.update.id]
            start = versions[task.version]
            if task.pull is not None and task.node in homes:
                start = average([(task.pull, start), (1 - task.pull, homes[task.node])])
            ends[task.id] = homes[task.node] = local_pass(job, start, task.spans, shards)
        for action in record.actions:
            match action:
                case Start(task):
                    given[task.id] = task
                case Blend(shares):
                    read = record.event.update.read if isinstance(record.event, Arrived) else None
                    parts = [(1 - sum(shares.values()), versions[-1 if read is None else read])]
                    versions.append(
                        average(parts + [(share, ends[update]) for update, share in shares.items()])
                    )
                case Step(shares):
                    (update,) = shares
                    start, end = versions[given[update].version], ends[update]
                    versions.append(average([(1.0, versions[-1]), (-1.0, start), (1.0, end)]))
    return versions[-1]


@pytest.mark.parametrize(
    ("strategy", "place"),
    [
        (VCASGD(newest=False), "local"),
        (VCASGD(newest=False), "simulated"),
        (VCASGD(), "simulated"),
        (FederatedAveraging(), "local"),
        (FederatedAveraging(), "simulated"),
        (FederatedAveraging(clients=3), "simulated"),
    ],
    ids=str,
)
def test_averaged_weights_match_plain_pytorch(strategy: Strategy, place: str) -> None:
    job = a_job()
    run, state = trained(job, strategy, PLACES[place], "epochs>=3", shards=SHARDS)
    assert distance(run.model, replayed(job, run, SHARDS)) < 1e-6
    assert sorted(state.merged) == everything(SAMPLES, 3)
    tasks = [action.task for r in run.records for action in r.actions if isinstance(action, Start)]
    assert len(tasks) == 3 * SHARDS, "a task is a whole shard"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("strategy", [ElasticAveraging(steps=2), Downpour(steps=2)], ids=repr)
def test_baselines_match_plain_pytorch(strategy: Strategy, place: str) -> None:
    job = a_job()
    run, state = trained(job, strategy, PLACES[place], "epochs>=3")
    assert distance(run.model, replayed(job, run)) < 1e-5
    assert sorted(state.merged) == everything(SAMPLES, 3)


def test_vc_asgd_starts_tasks_from_the_newest_weights() -> None:
    run, _ = trained(a_job(), VCASGD(), fleet(2), "epochs>=3", shards=SHARDS)
    merged, epochs = 0, set[int]()
    for record in run.records:
        merged += sum(isinstance(action, Blend) for action in record.actions)
        for task in (action.task for action in record.actions if isinstance(action, Start)):
            assert task.version == merged
            epochs.add(task.spans[0].epoch - merged // SHARDS)
    assert epochs == {0, 1}, "epochs overlap"


def test_vc_asgd_newest_false_starts_from_an_epochs_first_weights() -> None:
    run, _ = trained(a_job(), VCASGD(newest=False), fleet(2), "epochs>=3", shards=SHARDS)
    tasks = [action.task for r in run.records for action in r.actions if isinstance(action, Start)]
    starts = {(task.spans[0].epoch, task.version) for task in tasks}
    assert starts == {(0, 0), (1, SHARDS), (2, 2 * SHARDS)}


def test_alpha_grows_with_the_epoch() -> None:
    run, _ = trained(a_job(), VCASGD(), fleet(1), "epochs>=3", shards=2)
    blends = [action for r in run.records for action in r.actions if isinstance(action, Blend)]
    shares = [share for blend in blends for share in blend.shares.values()]
    assert shares == pytest.approx([1 / 2] * 2 + [1 / 3] * 2 + [1 / 4] * 2)


@pytest.mark.filterwarnings("ignore:VCASGD assigns whole shards")
def test_overwriting_store_loses_updates_written_after_a_read() -> None:
    """Two busy servers overwrite updates that they have not read."""
    job, hub = a_job(), Hub(seconds_per_update=0.4, servers=2, overwrites=True)
    on = Simulated([Machine(f"m{i}", 0.01 * (1 + i / 4)) for i in range(6)], hub=hub)
    run = fit(job, VCASGD(alpha=0.5), on, until="epochs>=4", shards=SHARDS)
    assert distance(run.model, replayed(job, run, SHARDS)) < 1e-6
    reads = [record.event.update.read for record in run.records if isinstance(record.event, Arrived)]
    (depths := [0]).extend(0 for _ in reads)
    for version, read in enumerate(reads, 1):
        assert read is not None
        depths[version] = depths[read] + 1
    lost = run.summary["versions"] - depths[-1]
    assert lost == run.summary["overwritten"] > 2
    assert run.summary["samples_merged"] == 4 * SAMPLES, "what is overwritten is counted apart"
