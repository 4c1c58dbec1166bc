"""Extreme classification as a task: files, strategies, bytes, and what is wrong with what was asked for."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oddlot
from oddlot import (
    VCASGD,
    AdaptiveK,
    AdaptiveLoad,
    Asynchronous,
    Downpour,
    ElasticAveraging,
    FastestK,
    FederatedAveraging,
    LocalSGD,
    Machine,
    Plain,
    Quorum,
    Simulated,
    Synchronous,
    UsageError,
)
from oddlot.core.strategy import Strategy
from oddlot.sparse import LazyAdam
from oddlot.sparse.csr import Csr
from oddlot.sparse.xmc.generating import Shape, generate
from oddlot.sparse.xmc.metrics import propensities
from oddlot.sparse.xmc.writing import write_xmc
from oddlot.strategies import BY_NAME
from oddlot.tasks.xmc import xmc
from oddlot.train.local_optimizer import local_optimizer
from tests.command import Oddlot

SHAPE = Shape(1_500, 2_000, 35.0, 3.0)
TEST = generate(256, SHAPE, 2)
COMMONEST = np.bincount(TEST[1].indices).max() / 256
"""P@1 of who has learnt nothing but which label is the commonest"""
ON = [Machine("a", 0.001), Machine("b", 0.001)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set, one file packed and one not."""
    path = tmp_path_factory.mktemp("set")
    write_xmc(path / "train.txt.gz", *generate(2_048, SHAPE, 1))
    write_xmc(path / "test.txt", *TEST)
    return path


STRATEGIES: dict[str, tuple[Strategy, int]] = {
    "synchronous": (Synchronous(), 1),
    "fastest_k": (FastestK(k=1), 1),
    "adaptive_k": (AdaptiveK(), 1),
    "adaptive_load": (AdaptiveLoad(((1, 32, 1.0),)), 1),
    "asynchronous": (Asynchronous(), 1),
    "local_sgd": (LocalSGD(steps=2), 1),
    "quorum": (Quorum(LocalSGD(steps=2)), 1),
    "vc_asgd": (VCASGD(alpha=0.5), 4),
    "federated_averaging": (FederatedAveraging(), 4),
    "elastic_averaging": (ElasticAveraging(), 1),
    "downpour": (Downpour(), 1),
}


def test_every_strategy_is_tried() -> None:
    assert STRATEGIES.keys() == {*BY_NAME, "quorum"}


@pytest.mark.parametrize("name", [*STRATEGIES])
def test_every_strategy_learns_it_and_sends_what_is_not_zero(name: str, folder: Path) -> None:
    """The same result with fewer bytes."""
    strategy, shards = STRATEGIES[name]
    job = xmc(str(folder), hidden=16, active=20, batch=32, sampler="uniform")
    job = replace(job, optimizer=oddlot.Adam(lr=1e-2))
    runs = [
        oddlot.fit(job, strategy, Simulated(ON), until="epochs>=6", shards=shards, codec=codec)
        for codec in (Plain(), None)  # None: as a sparse job wants it
    ]
    assert runs[0].summary["metrics"] == runs[1].summary["metrics"]
    assert runs[0].summary["metrics"]["p1"] > 1.5 * COMMONEST
    assert runs[1].summary["bytes_up"] <= runs[0].summary["bytes_up"] * 1.01
    if name in {"synchronous", "asynchronous", "fastest_k", "adaptive_k", "adaptive_load"}:
        assert runs[1].summary["bytes_up"] < 0.7 * runs[0].summary["bytes_up"], "a batch touches few rows"


@pytest.mark.parametrize("sampler", ["uniform", "unigram", "shared", "clusters", "simhash", "dwta", "mixed"])
def test_a_task_depends_on_nothing_before_it(sampler: str, folder: Path) -> None:
    """But on its weights, its seed and its samples: what an earlier one has taught the sampler is forgotten."""
    job = xmc(str(folder), hidden=16, sampler=sampler, active=40, batch=64)
    torch.manual_seed(0)
    weights = {name: value.clone() for name, value in job.model().state_dict().items()}
    one, other = (job.data.__getitems__(range(low, low + 64)) for low in (0, 64))

    def losses(*before: int) -> list[float]:
        model = job.model()
        for number, task in enumerate((*before, 9)):
            with torch.no_grad():  # in place, as a worker does: a sampler is not told
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


def test_it_learns_on_workers_and_from_the_command_line(folder: Path, oddlot: Oddlot) -> None:
    words = (
        "--set",
        "task_options.hidden=16",
        "--set",
        "job.batch=32",
        "--set",
        "job.optimizer.lr=0.01",
        "--until",
        "epochs>=4",
        "--workers",
        "1",
    )
    plain = oddlot.json("train", "xmc", "--data", str(folder), *words, "--strategy", "local_sgd")
    assert {"p1", "p3", "p5", "ndcg3", "ndcg5", "psp1", "psp3", "psp5"} <= plain["metrics"].keys()
    assert plain["metrics"]["p1"] > COMMONEST
    assert 0 < plain["metrics"]["psp5"] <= 1


def test_the_hubs_rule_is_that_of_local_steps_too() -> None:
    """Adam that takes sparse gradients, at the rate that was set."""
    table = torch.nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    made = local_optimizer(oddlot.Adam(lr=0.5), table.parameters())
    assert isinstance(made, LazyAdam)
    assert made.param_groups[0]["lr"] == 0.5


def test_few_labels_have_fewer_metrics(tmp_path: Path) -> None:
    for number, name in enumerate(("train.txt", "test.txt")):
        write_xmc(tmp_path / name, *generate(64, Shape(50, 4, 5.0, 1.0), number))
    run = oddlot.fit(xmc(str(tmp_path), hidden=8, batch=16), Synchronous(), Simulated(ON), until="epochs>=2")
    assert set(run.summary["metrics"]) == {"loss", "p1", "p3", "ndcg3", "psp1", "psp3"}


def test_propensities_of_other_sets(folder: Path) -> None:
    jobs = [xmc(str(folder)), xmc(str(folder), propensity_a=0.6, propensity_b=2.6)]
    best, truth = torch.zeros(4, 5, dtype=torch.int64), torch.tensor([[0], [3], [-1], [0]])
    found = [job.metrics["psp1"](best, truth) for job in jobs]
    y = generate(2_048, SHAPE, 1)[1]
    for one, constants in zip(found, ((0.55, 1.5), (0.6, 2.6)), strict=True):
        worth = 1 / propensities(y, *constants)
        assert one == pytest.approx(2 * worth[0] / (2 * worth[0] + worth[3]))
    with pytest.raises(UsageError, match=r"propensity_a = 1e\+300 must be a number from 0 to 100"):
        xmc(str(folder), propensity_a=1e300)


def no_points(folder: Path) -> None:
    (folder / "train.txt").write_text("0 5 5\n")


def bad_line(folder: Path) -> None:
    (folder / "train.txt").write_text("1 5 5\n1 2:x\n")


def no_labels(folder: Path) -> None:
    (folder / "train.txt").write_text("1 8 0\n 1:1\n")


def no_label(folder: Path) -> None:
    (folder / "train.txt").write_text("1 8 5\n 1:1\n")


def other_width(folder: Path) -> None:
    write_xmc(folder / "train.txt", *generate(8, Shape(9, 5, 2.0, 1.0), 1))


def twice(folder: Path) -> None:
    for name in ("train.txt", "test.txt.gz"):
        write_xmc(folder / name, *generate(8, Shape(8, 5, 2.0, 1.0), 1))


def too_many_labels(folder: Path) -> None:
    for name in ("train.txt", "test.txt"):
        (folder / name).write_text("2 10 2000000000\n1 5:1\n1 5:1\n")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (None, "has no train.txt (or train.txt.gz): sets are at"),
        (no_points, "train.txt has no points"),
        (no_labels, "train.txt has no labels: its first line says 0"),
        (no_label, "train.txt has no label at any of its 1 points"),
        (bad_line, "train.txt:2: a value is not a finite number"),
        (too_many_labels, "2,000,000,000 labels, too many: a network with moments and an update needs"),
        (other_width, "test.txt:1 8: they are no set"),
        (twice, "has both test.txt and test.txt.gz: keep one of them"),
    ],
)
def test_bad_sets_are_told(
    oddlot: Oddlot, tmp_path: Path, spoil: Callable[[Path], None] | None, told: str
) -> None:
    write_xmc(tmp_path / "test.txt", *generate(8, Shape(8, 5, 2.0, 1.0), 1))
    if spoil:
        spoil(tmp_path)
    done = oddlot("train", "xmc", "--data", str(tmp_path))
    assert (done.code, told in done.err) == (2, True), done.err


def test_folders_that_are_none(oddlot: Oddlot, tmp_path: Path) -> None:
    (tmp_path / "a_file").write_text("")
    for name, told in (
        ("a_file", "a_file is a file: the folder is asked for"),
        ("none", "none is not there: sets are"),
    ):
        done = oddlot("train", "xmc", "--data", str(tmp_path / name))
        assert (done.code, told in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, r"xmc needs data_dir \(--data DIR\)"),
        ({"sampler": "simhsh"}, "did you mean `simhash`"),
        ({"active": 0}, "active = 0 must be at least 1"),
        ({"hidden": -1}, "hidden = -1 must be at least 1"),
    ],
)
def test_bad_options_are_told(options: dict[str, Any], told: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=told):
        xmc(**({"data_dir": str(folder)} | options if options else {}))


def test_tasks_without_files_have_no_data(oddlot: Oddlot) -> None:
    done = oddlot("train", "digits", "--data", "x")
    assert (done.code, done.err) == (
        2,
        "oddlot: --data x: data_dir is no option of the task digits: there are: batch, hidden\n",
    )


def test_a_label_that_stands_twice_is_one(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("1 3 6\n1 1:1\n")
    (tmp_path / "train.txt").write_text("2 3 6\n4,1,4,2,1 1:1\n3,3 2:1\n")
    data: Any = xmc(str(tmp_path), hidden=4).data
    assert data.__getitems__([0, 1])[3].tolist() == [[4, 1, 2], [3, -1, -1]]


def test_examples_without_labels_or_features_do_no_harm(tmp_path: Path) -> None:
    import numpy as np

    indptr = np.array([0, 0, 2, 3])
    x = Csr(indptr, np.array([1, 3, 0], np.int32), np.ones(3, np.float32), (3, 4))
    y = Csr(np.array([0, 1, 1, 2]), np.array([2, 7], np.int32), np.ones(2, np.float32), (3, 8))
    for name in ("train.txt", "test.txt"):
        write_xmc(tmp_path / name, x, y)
    job = replace(xmc(str(tmp_path), hidden=4, batch=2, sampler="dense"), optimizer=oddlot.Adam(lr=0.1))
    run = oddlot.fit(job, LocalSGD(steps=1), Simulated(ON), until="epochs>=100")
    assert run.summary["loss"] < 1  # from ln 8 = 2.08 at first


def test_what_rows_are_by_chance_is_said_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = xmc(str(folder), hidden=4, sampler="simhash", active=10)
    oddlot.fit(job, LocalSGD(steps=1), Simulated(ON), until="epochs>=2")
    told = capsys.readouterr().err
    assert len(re.findall(r"simhash for \d+ rows: \d+ digits in \d+ tables give", told)) == 1
    assert len(re.findall(r"\d+ rows for an example of the first batch, \d+ % of them by chance", told)) == 1
