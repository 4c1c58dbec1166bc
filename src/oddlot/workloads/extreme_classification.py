"""Extreme multi-label classification: datasets in the text format of the Extreme Classification Repository."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oddlot.core.support.errors import InvalidValue, UnknownName, UsageError
from oddlot.workloads.data_folders import check_folder, found_instead

if TYPE_CHECKING:
    from oddlot.sparse.csr import Csr
    from oddlot.train.job import Job

BEST = 5
"""Number of labels that are predicted, and largest k of the metrics."""
INPUT_SCALE = 16.0
"""Factor between the trained and the effective weights of the input layer. With it, one learning rate of Adam fits both
layers, although a feature occurs more rarely than a row of the output layer."""
INPUT_STD, BY_CHANCE = 0.03, 100
TENSORS = 4
"""Number of tensors of the size of a weight at the hub: the weight, two moments and an update."""
SAMPLERS = ("uniform", "unigram", "shared", "clusters", "simhash", "dwta", "mixed", "dense")
FILES = ("train.txt", "test.txt")
MAX_CONSTANT = 100
"""Largest constant of propensities. Those in use are below 3."""


def xmc(
    data_dir: str = "",
    hidden: int = 128,
    sampler: str = "unigram",
    active: int = 300,
    batch_size: int = 256,
    propensity_a: float = 0.55,
    propensity_b: float = 1.5,
) -> "Job":
    """Extreme multi-label classification: sparse features, one hidden layer, and a sampled output layer.

    Metrics are P@1, 3, 5, nDCG@3, 5 and PSP@1, 3, 5 on the test set. `oddlot xmc-generate DIR` makes a dataset.

    Args:
        data_dir: Folder with `train.txt` and `test.txt` (or `.txt.gz`) in the format of the Extreme Classification
            Repository.
        hidden: Width of the hidden layer.
        sampler: How rows of the output layer are chosen: `uniform`, `unigram` (in proportion to label frequency),
            `shared` (the same for a batch), `dense` (all rows), `clusters`, `simhash`, `dwta` or `mixed` (simhash and
            clusters). The last four rebuild their index for each task, so use them with local steps. Up to 100 of
            their rows, at most half, are drawn by label frequency.
        active: Rows that are computed for an example in addition to its labels.
        batch_size: Samples per minibatch.
        propensity_a: Constant A of the propensities: 0.6 for the repository's Amazon datasets, 0.5 for Wikipedia, 0.55
            for the others.
        propensity_b: Constant B of the propensities: 2.6 for Amazon, 0.4 for Wikipedia, 1.5 for the others.
    """
    from oddlot.core.optimizers import Adam
    from oddlot.train.job import Job

    _check_options(sampler, {"hidden": hidden, "active": active}, (propensity_a, propensity_b))
    (x, y), (x_test, y_test) = _read(data_dir)
    for what, of_train, of_test in (("features", x, x_test), ("labels", y, y_test)):
        if (one := of_train.shape[1]) != (other := of_test.shape[1]):
            first, second = (_path(data_dir, name) for name in FILES)
            message = f"{first}:1 says {one:,} {what}, but {second}:1 says {other:,}: the files do not belong together"
            raise UsageError(message, "unequal_widths", "data_dir", what=what, train=one, test=other)
    propensity = _propensities_if_it_fits(data_dir, x.shape[1], hidden, y, (propensity_a, propensity_b))
    return Job(
        partial(Network, x.shape[1], hidden, np.bincount(y.indices, minlength=y.shape[1]), sampler, active),
        Examples(x, y),
        training_step=_loss,
        eval_data=Examples(x_test, y_test),
        predict=_best,
        metrics=_metrics(y_test.shape[1], propensity),
        optimizer=Adam(lr=3e-3),
        batch_size=batch_size,
        sparse=True,
        collate=_as_it_is,
        device="cpu",
        until="epochs>=5",
        name="xmc",
    )


def _check_options(sampler: str, sizes: dict[str, int], constants: tuple[float, float]) -> None:
    """Raise UsageError for an invalid option."""
    if sampler not in SAMPLERS:
        raise UnknownName("sampler", sampler, SAMPLERS, key="sampler")
    for name, value in sizes.items():
        if value < 1:
            raise InvalidValue(name, value, "at least 1")
    for name, constant in zip(("propensity_a", "propensity_b"), constants, strict=True):
        if not 0 <= constant <= MAX_CONSTANT:
            raise InvalidValue(name, constant, f"a number from 0 to {MAX_CONSTANT}")


class Network(nn.Module):
    """Sparse features, one hidden layer with ReLU, and a sampled output layer. Both layers have sparse gradients."""

    def __init__(
        self, features: int, hidden: int, counts: NDArray[np.int64], sampler: str, active: int
    ) -> None:  # `counts`: training points of each label
        from oddlot.sparse import SampledLinear, SparseInputLinear

        super().__init__()
        std = INPUT_STD / INPUT_SCALE
        self.input = SparseInputLinear(features, hidden, optimizer=None, seed=None, std=std)
        labels = len(counts)
        rows = _sampler(sampler, min(active, labels), counts)
        self.output = SampledLinear(hidden, labels, rows, optimizer=None, seed=None)
        self.is_reported = False

    def hidden(self, starts: Tensor, features: Tensor, values: Tensor) -> Tensor:
        """Return the activations of the hidden layer, [batch, hidden]."""
        summed = self.input(starts.numpy(), features.numpy(), INPUT_SCALE * values.numpy())
        return torch.relu(summed)

    def loss(self, starts: Tensor, features: Tensor, values: Tensor, labels: Tensor) -> Tensor:
        """Return the sampled softmax loss in training, and the full softmax loss in evaluation.

        The sampler's index is rebuilt for each task, so it depends only on the task's weights and seed. The first task
        logs the sampler's choices.
        """
        if not self.training:
            from oddlot.sparse.topk import exact_loss

            return exact_loss(
                self.hidden(starts, features, values), self.output.weight, self.output.bias, labels
            )
        from oddlot.sparse.progress import shown

        if _is_fresh():
            self.output.sampler.forget()
        first, self.is_reported = not self.is_reported, True
        with shown(first, sys.stderr):
            loss: Tensor = self.output(self.hidden(starts, features, values), labels)
        return loss

    def best(self, starts: Tensor, features: Tensor, values: Tensor) -> Tensor:
        """Return the labels with the largest logits, the best first, [batch, 5]; -1 if there are fewer labels."""
        from oddlot.sparse.topk import exact_topk

        _, rows = exact_topk(
            self.hidden(starts, features, values), self.output.weight, self.output.bias, BEST
        )
        return nn.functional.pad(rows, (0, BEST - rows.shape[1]), value=-1)


def _is_fresh() -> bool:
    """Return whether this is the first loss of a task.

    PyTorch's random state is then as seeded. Each loss draws a number.
    """
    seeded = torch.Generator().manual_seed(torch.initial_seed())
    return torch.equal(seeded.get_state(), torch.get_rng_state())


def _loss(model: Any, some: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = model.loss(*some)
    return loss


def _best(model: Any, some: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    return model.best(*some[:3]), some[3]


def _sampler(name: str, active: int, counts: NDArray[np.int64]) -> Any:
    from oddlot.sparse import LSH, Clusters, Dense, Mixed, Shared, Uniform, Unigram

    by_chance = min(BY_CHANCE, active // 2)
    found = active - by_chance
    match name:
        case "uniform":
            return Uniform(active)
        case "unigram":
            return Unigram(active, counts=counts)
        case "shared":
            return Shared(active)
        case "dense":
            return Dense()
        case "clusters":
            return Clusters(found=found, by_chance=by_chance, group=1, counts=counts)
        case "mixed":
            first = LSH(found=max(1, found // 2), by_chance=0)
            return Mixed(
                [
                    first,
                    Clusters(found=max(1, found - found // 2), by_chance=by_chance, group=1, counts=counts),
                ]
            )
    return LSH("simhash" if name == "simhash" else "dwta", found=found, by_chance=by_chance, counts=counts)


@dataclass(frozen=True)
class Examples:
    """A dataset with batches of (starts, features, values, labels). Labels are padded with -1."""

    x: "Csr"
    y: "Csr"

    @cached_property
    def most_labels(self) -> int:
        """Largest number of labels of a point."""
        return int(np.diff(self.y.indptr).max(initial=1))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        x, y = (part.rows(np.asarray(indices, np.int64)) for part in (self.x, self.y))
        there = np.arange(self.most_labels) < np.diff(y.indptr)[:, None]
        labels = np.full(there.shape, -1, np.int64)
        labels[there] = y.indices
        return tuple(map(torch.from_numpy, (x.indptr, x.indices, x.data, labels)))


def _as_it_is(batch: Any) -> Any:
    return batch


def _read(data_dir: str) -> "list[tuple[Csr, Csr]]":
    """Read both files. Raise UsageError if they are missing or invalid."""
    if not data_dir:
        message = "the workload xmc needs data_dir (--data DIR), a folder with train.txt and test.txt"
        raise UsageError(message, "missing_option", "data_dir", workload="xmc")
    check_folder(data_dir)
    found = []
    for name in FILES:
        x, y = _read_file(_path(data_dir, name))
        found.append((x, y.distinct()))
    return found


def _read_file(path: Path) -> "tuple[Csr, Csr]":
    """Read features and labels. Raise UsageError if the file is not readable, invalid, or without labels."""
    from oddlot.sparse.datasets.text_files import BadSet, read_xmc

    try:
        x, y = read_xmc(path)
    except BadSet as error:
        about = vars(error)
        raise UsageError(str(error), about["code"], "data_dir", **about["fields"]) from None
    except OSError as error:
        message, reason = f"{path} cannot be read: {error.strerror}", error.strerror
        raise UsageError(message, "unreadable_file", "data_dir", path=str(path), reason=reason) from None
    counts = {"points": len(x), "features": x.shape[1], "labels": y.shape[1]}
    what = next((name for name, count in counts.items() if not count), "")
    if what:
        message = f"{path} has no {what}" + (": its first line says 0" if what != "points" else "")
        raise UsageError(message, "empty_set", "data_dir", path=str(path), what=what)
    if not len(y.indices):
        message = f"{path} has no label at any of its {len(x):,} points"
        raise UsageError(message, "no_labels", "data_dir", path=str(path), points=len(x))
    return x, y


def _path(data_dir: str, name: str) -> Path:
    """Return the path of a file. Raise UsageError if it is missing, or exists both plain and gzipped."""
    folder = Path(data_dir).expanduser()
    there = [path for end in ("", ".gz") if (path := folder / (name + end)).is_file()]
    if len(there) > 1:
        message = f"{data_dir} has both {name} and {name}.gz: keep one of them"
        raise UsageError(message, "file_and_gz_exist", "data_dir", path=data_dir, file=name)
    if not there:
        instead, fields = found_instead([folder], [name])
        raise UsageError(
            f"there is no {name} (or {name}.gz) in {data_dir}. {instead}Download a dataset from "
            "http://manikvarma.org/downloads/XC/XMLRepository.html, or make one with `oddlot xmc-generate DIR`",
            "missing_file",
            "data_dir",
            path=data_dir,
            file=name,
            **fields,
        )
    return there[0]


def _propensities_if_it_fits(
    data_dir: str, features: int, hidden: int, y: "Csr", constants: tuple[float, float]
) -> NDArray[np.float64]:
    """Return the propensities of the labels.

    Raise UsageError if there is not enough memory for them or for the network.
    """
    from oddlot.sparse.datasets.metrics import propensities
    from oddlot.sparse.errors import check_memory

    try:
        check_memory(
            4 * TENSORS * (hidden + 1) * (features + y.shape[1]), "a network with moments and an update"
        )
        return propensities(y, *constants)
    except MemoryError as error:
        labels = y.shape[1]
        message = f"{data_dir} has too many features ({features:,}) and labels ({labels:,}): {error}"
        raise UsageError(
            message, "not_enough_memory", path=data_dir, features=features, labels=labels, reason=str(error)
        ) from None


def _metrics(labels: int, propensity: NDArray[np.float64]) -> dict[str, Callable[[Tensor, Tensor], float]]:
    """Return the metrics P@k, nDCG@k and PSP@k for k = 1, 3, 5. nDCG@1 is P@1."""
    from oddlot.sparse.datasets import metrics

    def of(metric: Callable[..., float], k: int, *more: Any) -> Callable[[Tensor, Tensor], float]:
        return lambda best, truth: metric(best.numpy(), _csr(truth, labels), k, *more)

    some = [k for k in (1, 3, BEST) if k <= labels]
    return (
        {f"p{k}": of(metrics.precision, k) for k in some}
        | {f"ndcg{k}": of(metrics.ndcg, k) for k in some if k > 1}
        | {f"psp{k}": of(metrics.propensity_precision, k, propensity) for k in some}
    )


def _csr(labels: Tensor, width: int) -> "Csr":
    """Return padded labels as a CSR matrix."""
    from oddlot.sparse.csr import Csr

    there = labels.numpy() >= 0
    indices = labels.numpy()[there].astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(there.sum(1))])
    return Csr(indptr, indices, np.ones(len(indices), np.float32), (len(labels), width))
