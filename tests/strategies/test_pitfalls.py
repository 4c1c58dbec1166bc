"""Effects of averaging weights on BatchNorm statistics and optimizer state, and effects of the number of shards."""

from dataclasses import replace
from math import exp, prod

import pytest
import torch
from torch import nn

from benchmarks.parity.plain_loop import torch_optimizer
from oddlot import VCASGD, Adam, Job, Machine, Run, Shards, Simulated
from oddlot.core.commands import Blend, Start
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.core.tasks import Task
from oddlot.data.batches import order
from oddlot.machines import Lifetime
from tests.fits import SAMPLES, Place, a_job, distance, fleet, local, net, rows, trained

pytestmark = pytest.mark.usefixtures("fork_server")

SHARDS = 4
State = dict[str, torch.Tensor]
BOTH = pytest.mark.parametrize("on", [local(2), fleet(2)], ids=["local", "simulated"])


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def blended(model: State, client: State, start: State, share: float) -> State:
    """Return (1 - share) W + share W_c, for statistics too. Counters increase by the client's count."""
    return {
        name: (1 - share) * part + share * client[name]
        if part.is_floating_point()
        else part + client[name] - start[name]
        for name, part in model.items()
    }


def replayed(job: Job, run: Run, keep: bool = False) -> nn.Module:
    """Repeat a run with PyTorch only. `keep` keeps each node's optimizer between tasks."""
    torch.manual_seed(0)
    model = job.model()
    versions = [{name: part.clone() for name, part in model.state_dict().items()}]
    optimizers = dict[str, torch.optim.Optimizer]()
    given = dict[str, Task]()
    ends = dict[str, dict[str, torch.Tensor]]()
    for record in run.records:
        if isinstance(record.event, Arrived):
            task = given[record.event.update.id]
            model.load_state_dict(versions[task.version])
            optimizer = optimizers.get(task.node) if keep else None
            if optimizer is None:
                optimizer = optimizers[task.node] = torch_optimizer(job.optimizer, model.parameters())
            (span,) = task.spans
            picked = torch.from_numpy(order(0, span.epoch, SAMPLES, SHARDS)[span.start : span.stop].copy())
            for batch in picked.split(job.batch_size):  # type: ignore[no-untyped-call]  # PyTorch's
                optimizer.zero_grad()
                job.batch_loss(model, tuple(part[batch] for part in job.train_data)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            ends[task.id] = {name: part.clone() for name, part in model.state_dict().items()}
        for action in record.actions:
            if isinstance(action, Start):
                given[action.task.id] = action.task
            elif isinstance(action, Blend):
                ((update, share),) = action.shares.items()
                start = versions[given[update].version]
                versions.append(blended(versions[-1], ends[update], start, share))
    model.load_state_dict(versions[-1])
    return model


@BOTH
def test_batchnorm_statistics_are_averaged_like_parameters(on: Place) -> None:
    job = a_job(normed)
    run, _ = trained(job, VCASGD(alpha=0.7), on, "epochs>=3", shards=SHARDS)
    assert distance(run.model, replayed(job, run)) < 1e-5
    statistics = dict(run.model.named_buffers())
    assert statistics["1.running_mean"].abs().max() > 0.01
    assert statistics["1.num_batches_tracked"] == 3 * SHARDS * 2, "two minibatches a shard, all counted"


@BOTH
@pytest.mark.parametrize("keep", [False, True], ids=["reset", "kept"])
def test_keep_optimizer_keeps_adam_state_between_tasks(on: Place, keep: bool) -> None:
    job = replace(a_job(net), optimizer=Adam(lr=0.01), keep_optimizer=keep)
    run, _ = trained(job, VCASGD(alpha=0.7), on, "epochs>=4", shards=SHARDS)
    assert distance(run.model, replayed(job, run, keep)) < 1e-5
    assert distance(run.model, replayed(job, run, not keep)) > 1e-4, "it makes a difference"


def test_optimizer_state_of_a_lost_worker_is_lost() -> None:
    """The replacement is a new node without optimizer state, as in the repeated run."""
    job = replace(a_job(net), optimizer=Adam(lr=0.01), keep_optimizer=True)
    mortal = Simulated(
        [Machine("a", 0.01, lifetime=Lifetime(0.3), seconds_to_return=0.0), Machine("b", 0.012)]
    )
    run, _ = trained(job, VCASGD(alpha=0.7), mortal, "epochs>=6", shards=SHARDS)
    assert run.summary["workers_lost"] > 0
    assert distance(run.model, replayed(job, run, keep=True)) < 1e-5


@pytest.mark.parametrize("shards", [4, 8, 16])
def test_share_of_initial_weights_depends_on_alpha_and_shards(shards: int) -> None:
    """With S shards, an epoch keeps the share alpha ** S of the weights. It depends on (1 - alpha) S, not on alpha
    alone."""
    kept = []
    for alpha in (0.95, 1 - 2.0 / shards):
        run, _ = trained(a_job(), VCASGD(alpha=alpha), fleet(2), "epochs>=1", shards=shards)
        blends = [action for record in run.records for action in record.actions if isinstance(action, Blend)]
        kept.append(prod(1 - share for blend in blends for share in blend.shares.values()))
    assert kept[0] == pytest.approx(0.95**shards)
    assert kept[1] == pytest.approx(exp(-2), abs=0.08)


@pytest.mark.parametrize("by_samples", [True, False])
def test_by_samples_weighs_shards_by_size(by_samples: bool) -> None:
    job = replace(a_job(), train_data=Shards(["a", "b"], parts, sizes=[36, 12]))
    strategy = VCASGD(alpha=0.6, by_samples=by_samples)
    run, _ = trained(job, strategy, fleet(1), "epochs>=1")
    blends = [action for record in run.records for action in record.actions if isinstance(action, Blend)]
    shares = sorted(share for blend in blends for share in blend.shares.values())
    assert shares == pytest.approx([0.4 / 3 if by_samples else 0.4, 0.4])


def test_damping_lowers_the_share_of_stale_updates() -> None:
    """One of five machines is ten times slower, so its updates are many versions stale."""
    machines = [Machine(f"m{i}", 0.1 if i == 4 else 0.01) for i in range(5)]
    for damping in (0.0, 1.0):
        run, _ = trained(
            a_job(),
            VCASGD(alpha=0.6, damping=damping),
            Simulated(machines),
            "epochs>=4",
            shards=8,
        )
        late = 0
        for record in run.records:
            for action in record.actions:
                if isinstance(action, Blend) and isinstance(record.event, Arrived):
                    staleness = record.event.update.based_on
                    (share,) = action.shares.values()
                    behind = versions_before(run, record) - staleness
                    assert share == pytest.approx(0.4 * (1 + behind) ** -damping)
                    late = max(late, behind)
        assert late > 5


def versions_before(run: Run, record: Record) -> int:
    """Return the number of merges before a record."""
    before = run.records[: list(run.records).index(record)]
    return sum(isinstance(action, Blend) for one in before for action in one.actions)


def parts(name: str) -> list[torch.Tensor]:
    x, y = rows()
    return [x[:36], y[:36]] if name == "a" else [x[36:], y[36:]]
