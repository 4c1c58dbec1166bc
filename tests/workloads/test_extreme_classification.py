"""Tests of the workload `xmc`: files, strategies, bytes of updates, and invalid options."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oddlot
from oddlot import AdaptiveLoad, LocalSGD, Machine, Quorum, Simulated, Synchronous, UsageError, fit
from oddlot.codecs import Plain
from oddlot.core.strategy import Strategy
from oddlot.sparse import LazyAdam
from oddlot.sparse.csr import Csr
from oddlot.sparse.datasets.generating import Shape, generate
from oddlot.sparse.datasets.metrics import propensities
from oddlot.sparse.datasets.text_files import write_xmc
from oddlot.strategies.registry import BY_NAME
from oddlot.train.local_optimizer import local_optimizer
from oddlot.workloads.extreme_classification import xmc
from tests.command import Oddlot
from tests.transcripts import raises, transcribe

SHAPE, POINTS = Shape(600, 600, 10.0, 1.0), 768
TEST = generate(256, SHAPE, 2)
COMMONEST = np.bincount(TEST[1].indices).max() / 256
"""P@1 of a model that always predicts the most frequent label."""
ON = Simulated([Machine("a", 0.001), Machine("b", 0.001)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small data set with one compressed and one plain file. Return its folder."""
    path = tmp_path_factory.mktemp("set")
    write_xmc(path / "train.txt.gz", *generate(POINTS, SHAPE, 1))
    write_xmc(path / "test.txt", *TEST)
    return path


def strategy(name: str) -> Strategy:
    """Return a strategy with settings that allow enough steps on this data set."""
    settings: dict[str, dict[str, Any]] = {
        "fastest_k": {"k": 1},
        "local_sgd": {"steps": 2},
        "vc_asgd": {"alpha": 0.5},
    }
    if name == "adaptive_load":
        return AdaptiveLoad(((1, 32, 1.0),))
    return Quorum(strategy("local_sgd")) if name == "quorum" else BY_NAME[name](**settings.get(name, {}))


@pytest.mark.parametrize(
    "name", [*(name for name, kind in BY_NAME.items() if not kind().traits(1).mesh), "quorum"]
)
def test_every_strategy_learns_with_sparse_updates(name: str, folder: Path) -> None:
    """Sparse updates give the same metrics as plain updates, with fewer bytes."""
    shards = 4 if name in {"vc_asgd", "federated_averaging"} else 1
    job = xmc(str(folder), hidden=16, active=20, batch_size=32, sampler="uniform")
    job = replace(job, optimizer=oddlot.Adam(lr=2e-2))
    plain, sparse = (
        fit(job, strategy(name), ON, until="epochs>=4", shards=shards, codec=codec).summary
        for codec in (Plain(), None)  # default of a sparse job
    )
    assert plain["metrics"] == sparse["metrics"]
    assert plain["metrics"]["p1"] > 1.5 * COMMONEST
    few = name in {"synchronous", "asynchronous", "fastest_k", "adaptive_k", "adaptive_load"}
    assert sparse["bytes_up"] < (0.7 if few else 1.01) * plain["bytes_up"], "a batch touches few rows"


@pytest.mark.parametrize("sampler", ["uniform", "unigram", "shared", "clusters", "simhash", "dwta", "mixed"])
def test_task_does_not_depend_on_earlier_tasks(sampler: str, folder: Path) -> None:
    """A task depends only on its weights, seed and samples. The sampler keeps no state of earlier tasks."""
    job = xmc(str(folder), hidden=16, sampler=sampler, active=40, batch_size=64)
    torch.manual_seed(0)
    weights = {name: value.clone() for name, value in job.model().state_dict().items()}
    one, other = (job.train_data.__getitems__(range(low, low + 64)) for low in (0, 64))

    def losses(*before: int) -> list[float]:
        model = job.model()
        for number, task in enumerate((*before, 9)):
            with torch.no_grad():  # in place, as in a worker: the sampler is not notified
                for name, value in model.named_parameters():
                    value.copy_(weights[name])
                    value.mul_(1.0 if number == len(before) else -0.7)
            torch.manual_seed(task)
            found = [
                job.batch_loss(model, batch).item()
                for batch in ((one, other) if task == 9 else (other, other))
            ]
        return found

    assert losses() == losses(0, 1)
    assert losses() == losses(9), "the same span from other weights, as when it was taken back"


def test_xmc_trains_on_workers_from_the_cli(folder: Path, oddlot: Oddlot) -> None:
    settings = ("workload.hidden=16", "job.batch_size=32", "job.optimizer.lr=0.02")
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--strategy", "local_sgd", "--until", "epochs>=2", "--workers", "1"]
    metrics = oddlot.json("train", "xmc", "--data", str(folder), *words)["metrics"]
    assert {"p1", "p3", "p5", "ndcg3", "ndcg5", "psp1", "psp3", "psp5"} <= metrics.keys()
    assert metrics["p1"] > COMMONEST
    assert 0 < metrics["psp5"] <= 1


def test_local_steps_use_the_sparse_optimizer_of_the_hub() -> None:
    """Local steps use Adam for sparse gradients, at the learning rate that was set."""
    table = torch.nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    made = local_optimizer([(oddlot.Adam(lr=0.5), list(table.parameters()))])
    assert isinstance(made, LazyAdam)
    assert made.param_groups[0]["lr"] == 0.5


def test_few_labels_have_fewer_metrics(tmp_path: Path) -> None:
    for number, name in enumerate(("train.txt", "test.txt")):
        write_xmc(tmp_path / name, *generate(64, Shape(50, 4, 5.0, 1.0), number))
    run = fit(xmc(str(tmp_path), hidden=8, batch_size=16), Synchronous(), ON, until="epochs>=2")
    assert set(run.summary["metrics"]) == {"loss", "p1", "p3", "ndcg3", "psp1", "psp3"}


def test_propensity_constants_change_psp(folder: Path) -> None:
    jobs = [xmc(str(folder)), xmc(str(folder), propensity_a=0.6, propensity_b=2.6)]
    best, truth = torch.zeros(4, 5, dtype=torch.int64), torch.tensor([[0], [3], [-1], [0]])
    metrics: list[Any] = [job.metrics["psp1"] for job in jobs]
    found = [metric(best, truth) for metric in metrics]
    y = generate(POINTS, SHAPE, 1)[1]
    for one, constants in zip(found, ((0.55, 1.5), (0.6, 2.6)), strict=True):
        worth = 1 / propensities(y, *constants)
        assert one == pytest.approx(2 * worth[0] / (2 * worth[0] + worth[3]))


TEST_FILE, TRAIN_FILE = "1 8 5\n1 1:1\n", "1 8 5\n2 3:1\n"
MANY = "2 10 2000000000\n1 5:1\n1 5:1\n"


@pytest.mark.parametrize(
    ("files", "code", "fields"),
    [
        ({"train.txt": ""}, "invalid_header", {"line": 1}),
        ({"train.txt": "0 5 5\n"}, "empty_set", {"what": "points"}),
        ({"train.txt": "1 0 5\n1\n"}, "empty_set", {"what": "features"}),
        ({"train.txt": "1 8 0\n 1:1\n"}, "empty_set", {"what": "labels"}),
        ({"train.txt": "1 8 5\n 1:1\n"}, "no_labels", {"points": 1}),
        ({"train.txt": "1 5 5\n1 2:x\n"}, "invalid_number", {"line": 2}),
        ({"train.txt": MANY, "test.txt": MANY}, "not_enough_memory", {"features": 10, "labels": 2 * 10**9}),
        ({"train.txt": "1 9 5\n1 1:1\n"}, "unequal_widths", {"what": "features", "train": 9, "test": 8}),
        ({"train.txt": "1 8 6\n1 1:1\n"}, "unequal_widths", {"what": "labels", "train": 6, "test": 5}),
        ({"train.txt": TRAIN_FILE, "test.txt.gz": ""}, "file_and_gz_exist", {"file": "test.txt"}),
        ({}, "missing_file", {"file": "train.txt"}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_invalid_data_set_is_rejected(
    oddlot: Oddlot, tmp_path: Path, files: dict[str, str], code: str, fields: dict[str, Any]
) -> None:
    for name, text in {"test.txt": TEST_FILE, **files}.items():
        (tmp_path / name).write_text(text)
    oddlot.rejects(code, "train", "xmc", "--data", str(tmp_path), **fields)


def test_invalid_folder_is_rejected(oddlot: Oddlot) -> None:
    Path("a_file").touch()
    oddlot.rejects("not_a_folder", "train", "xmc", "--data", "a_file", path="a_file")
    oddlot.rejects("missing_folder", "train", "xmc", "--data", "none", path="none")
    oddlot.rejects("unknown_name", "train", "digits", "--data", "x", given="data_dir", flag="--data x")


@pytest.mark.parametrize(
    ("options", "code", "key"),
    [
        ({"data_dir": ""}, "missing_option", "data_dir"),
        ({"sampler": "simhsh"}, "unknown_name", "sampler"),
        ({"active": 0}, "invalid_value", "active"),
        ({"hidden": -1}, "invalid_value", "hidden"),
        ({"propensity_a": 1e300}, "invalid_value", "propensity_a"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], code: str, key: str, folder: Path) -> None:
    with raises(UsageError, code) as rejection:
        xmc(**{"data_dir": str(folder), **options})
    assert rejection.value.key == key


def test_repeated_label_counts_once(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("1 3 6\n1 1:1\n")
    (tmp_path / "train.txt").write_text("2 3 6\n4,1,4,2,1 1:1\n3,3 2:1\n")
    data: Any = xmc(str(tmp_path), hidden=4).train_data
    assert data.__getitems__([0, 1])[3].tolist() == [[4, 1, 2], [3, -1, -1]]


def test_examples_without_labels_or_features_are_harmless(tmp_path: Path) -> None:
    indptr = np.array([0, 0, 2, 3])
    x = Csr(indptr, np.array([1, 3, 0], np.int32), np.ones(3, np.float32), (3, 4))
    y = Csr(np.array([0, 1, 1, 2]), np.array([2, 7], np.int32), np.ones(2, np.float32), (3, 8))
    for name in ("train.txt", "test.txt"):
        write_xmc(tmp_path / name, x, y)
    job = replace(xmc(str(tmp_path), hidden=4, batch_size=2, sampler="dense"), optimizer=oddlot.Adam(lr=0.1))
    run = fit(job, LocalSGD(steps=1), ON, until="epochs>=100")
    assert run.summary["loss"] < 1  # initially ln 8 = 2.08


def test_sampler_statistics_are_printed_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = xmc(str(folder), hidden=4, sampler="simhash", active=10)
    fit(job, LocalSGD(steps=1), ON, until="epochs>=2", quiet=True)
    message = capsys.readouterr().err
    assert message.count("simhash") == 1
    assert len(message.splitlines()) == 2
    transcribe(message, number=r"\d+")
