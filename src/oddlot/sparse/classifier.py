"""An estimator in scikit-learn's manner: sparse features in, labels out, one hidden layer between."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oddlot.sparse.checks import check_flag, check_share, check_whole
from oddlot.sparse.csr import Csr
from oddlot.sparse.estimator import Settings
from oddlot.sparse.exact import exact_topk
from oddlot.sparse.input import SparseInputLinear
from oddlot.sparse.matrices import checked, checked_labels
from oddlot.sparse.memory import check_memory
from oddlot.sparse.optimizers import Adam, bytes_of_row
from oddlot.sparse.output import SampledLinear
from oddlot.sparse.progress import told
from oddlot.sparse.sampler import Sampler, check_sampler
from oddlot.sparse.topk import Index
from oddlot.sparse.xmc.metrics import precision

logger = logging.getLogger(__name__)
WEIGHTS, SETTINGS = "model.safetensors", "settings.json"
SCORED_AT_ONCE, RECALL = 256, 0.9
TOLD = 10
"""times an epoch"""


@dataclass(eq=False)
class SlideClassifier(Settings):
    """Extreme multi-label classification on a CPU: sparse input, one hidden layer, softmax over a sampled output layer.

    `X` is a CSR matrix (of scipy, or anything with its `indptr`, `indices`, `data` and `shape`) or an array, [examples,
    features]; `y` a matrix of labels, [examples, labels], of which all places count that are not zero, the same as
    an array of zeros and ones, or one label each, a 1-D array of whole numbers. Values that are not finite, and
    another number of features than in training, are a ValueError. An example without features is scored by the
    biases alone; one without labels teaches nothing.
    """

    history: list[dict[str, float]] = field(init=False, repr=False, default_factory=list)
    """of every epoch: the mean loss, rows that were computed for an example, the share of them that were taken by
    chance and, with `validation`, P@1"""
    recall_: float = field(init=False, repr=False, default=1.0)
    """of the last prediction: the share of the best labels that clusters have found, as counted; 1: all were scored"""
    _index: tuple[tuple[int, ...], Index] | None = field(init=False, repr=False, default=None)
    """of the layer as it was after so many steps and changes from outside"""

    # --- training ----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> "SlideClassifier":
        """Train from the beginning, `epochs` passes over the examples or until P@1 has stopped to rise.

        FloatingPointError: it diverges. After an error what was learnt before stays; after Ctrl-C what was learnt
        until then.
        """
        self.__post_init__()
        features = checked(X, "X")
        labels = checked_labels(y, len(features), self.labels)
        if not len(labels.indices):
            raise ValueError(
                f"y has no label for any of {len(features):,} examples: there is nothing to learn"
            )
        before = dict(vars(self))
        with told(self.verbose):
            try:
                self._fit(features, labels)
            except Exception:
                vars(self).clear()
                vars(self).update(before)
                raise
        return self

    def _fit(self, features: Csr, labels: Csr) -> None:
        order = np.random.default_rng(self.seed).permutation(_labelled(labels))
        held = order[: max(1, int(self.validation * len(order))) if self.validation else 0]
        rest = order[len(held) :]
        if not len(rest):
            raise ValueError(
                f"validation = {self.validation} leaves none of {len(order)} examples to learn from"
            )
        self._begin(features.shape[1], labels.shape[1])
        best, state = -1.0, dict[str, Tensor]()
        for epoch in range(epochs := self.epochs):
            rates = 1 - epoch / epochs, 1 - (epoch + 1) / epochs
            row = self._pass(features, labels, rest, epoch, rates)
            if len(held):
                row["p1"] = self.score(features.rows(held), labels.rows(held))
            self._note(row)
            if len(held) and row["p1"] > best:
                best, since = row["p1"], epoch
                state = {name: value.clone() for name, value in self.model.state_dict().items()}
            elif len(held) and epoch - since >= self.patience:
                break
        if state:
            self.model.load_state_dict(state)

    def partial_fit(self, X: Any, y: Any) -> "SlideClassifier":
        """One pass over more examples, at rates that do not fall. If labels may come later, `labels` says how many.

        FloatingPointError: it diverges; it knows what it did before that batch.
        """
        self.__post_init__()
        features = checked(X, "X")
        labels = checked_labels(y, len(features), self.n_labels_ if self._begun else self.labels)
        if not self._begun:
            self._begin(features.shape[1], labels.shape[1])
        self._check(features)
        with told(self.verbose):
            self._note(self._pass(features, labels, _labelled(labels), len(self.history)))
        return self

    # --- prediction --------------------------------------------------------------------------------

    def predict(self, X: Any, *, exact: bool = True, recall: float | None = None) -> NDArray[np.int64]:
        """The best label of each example; options as of `predict_topk`."""
        return self.predict_topk(X, 1, exact=exact, recall=recall)[:, 0]

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        exact: bool = True,
        recall: float | None = None,
    ) -> NDArray[np.int64]:
        """The k best labels of each example, the best first, [examples, k].

        `exact` scores all labels. Otherwise clusters find few of them, as few as have found the share `recall` (0.9)
        of the exact ones for the first 512 examples that were asked about since training; that share is `recall_` then,
        and a label -1 was not found. Where that would take longer than scoring all labels, all are scored. As
        long as fewer than 512 examples have been asked about, clusters are counted again whenever these are twice as
        many, so that later answers may be of other clusters. The first such call after training makes them, for seconds
        or a minute, and they take half as much memory as the labels' weights.
        """
        features = checked(X, "X")
        self._check(features)
        check_flag(exact=exact)
        check_whole(1, self.n_labels_, k=k)
        if exact and recall is not None:
            raise ValueError(f"recall = {recall!r} is for exact=False: all labels are scored")
        recall = RECALL if recall is None else recall
        check_share(recall=recall)
        parts = list[NDArray[np.int64]]()
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for low in range(0, len(features), SCORED_AT_ONCE):
                hidden = self._hidden(features.rows(np.arange(low, min(low + SCORED_AT_ONCE, len(features)))))
                index, probes, self.recall_ = (
                    (None, 0, 1.0) if exact else self._calibrated(hidden.numpy(), k, recall)
                )
                if index is None or not probes:
                    parts.append(exact_topk(hidden, self.output.weight, self.output.bias, k)[1].numpy())
                else:
                    parts.append(index.topk(hidden.numpy(), k, probes)[1])
        return np.concatenate(parts) if parts else np.zeros((0, k), np.int64)

    def score(self, X: Any, y: Any, *, exact: bool = True, recall: float | None = None) -> float:
        """P@1: the share of examples whose best label is one of theirs; options as of `predict_topk`."""
        features = checked(X, "X")
        labels = checked_labels(y, len(features), self.n_labels_)
        return precision(self.predict_topk(features, 1, exact=exact, recall=recall), labels, 1)

    # --- saving ------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the weights, settings and history into a folder; a sampler is not among them. FileExistsError: it has
        another model, such as a run's."""
        from safetensors.torch import save_file

        self._check_begun()
        if (Path(folder) / WEIGHTS).exists() and not (Path(folder) / SETTINGS).exists():
            raise FileExistsError(f"{folder} has a {WEIGHTS} that is no classifier's: take another folder")
        Path(folder).mkdir(parents=True, exist_ok=True)
        told = self.get_params() | {"labels": self.n_labels_, "hidden": self.input.out_features}
        told |= {"features": self.n_features_in_, "history": self.history}
        del told["sampler"]
        weights, settings = (Path(folder) / f"{name}.new" for name in (WEIGHTS, SETTINGS))
        save_file(self.model.state_dict(), weights)
        settings.write_text(json.dumps(told, indent=2, default=np.generic.item))
        for part in (weights, settings):  # whole, so that a full disk leaves what was there before
            part.replace(part.with_suffix(""))

    @classmethod
    def load(cls, folder: str | Path, sampler: Sampler | None = None) -> "SlideClassifier":
        """The classifier that was saved. Its optimizers begin anew if it is trained further.

        FileNotFoundError: it is not there. ValueError: its files are damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        check_sampler(sampler)
        try:
            told = json.loads((Path(folder) / SETTINGS).read_text())
            if missing := {"features", "labels", "history"} - set(told):
                raise ValueError(f"{SETTINGS} does not tell its {' and '.join(sorted(missing))}")
            features, history = told.pop("features"), told.pop("history")
            if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
                raise ValueError(f"its history in {SETTINGS} is none")
            found = cls(sampler, **told)
            found._begin(features, found.labels or 0)
            found.model.load_state_dict(load_file(Path(folder) / WEIGHTS))
            if not all(part.isfinite().all() for part in found.model.state_dict().values()):
                raise ValueError(f"{WEIGHTS} has numbers that are not finite")
            found.history = history
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{folder} is no folder with {SETTINGS} and {WEIGHTS}") from None
        except (ValueError, TypeError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"{folder} holds no whole classifier: {error}") from None
        return found

    # --- inside ------------------------------------------------------------------------------------

    @property
    def n_labels_(self) -> int:
        """How many labels it knows."""
        self._check_begun()
        return self.output.out_features

    @property
    def n_features_in_(self) -> int:
        """How many features an example has."""
        self._check_begun()
        return self.input.in_features

    @property
    def classes_(self) -> NDArray[np.int64]:
        """The labels, as scikit-learn's metrics ask for them: 0, 1, 2 ..."""
        return np.arange(self.n_labels_)

    def __sklearn_is_fitted__(self) -> bool:
        return self._begun

    @property
    def _begun(self) -> bool:
        return hasattr(self, "model")

    def _begin(self, features: int, labels: int) -> None:
        for name, count in (("X", features), ("y", labels)):
            if not count:
                raise ValueError(f"{name} has no columns")
        needs = bytes_of_row(Adam(moments=self.moments), self.hidden) * (features + labels)
        check_memory(needs, f"a network of {features:,} features and {labels:,} labels")
        of_input, of_output = (Adam(lr, moments=self.moments) for lr in (self.input_lr, self.lr))
        self.input = SparseInputLinear(features, self.hidden, of_input, self.seed, self.input_std)
        self.output = SampledLinear(self.hidden, labels, self.sampler, of_output, self.seed)
        self.model = nn.ModuleDict({"input": self.input, "output": self.output})
        self.bias_optimizer = torch.optim.Adam([self.input.bias], lr=self.input_lr, fused=True)
        self.history, self._index = [], None

    def _pass(
        self,
        features: Csr,
        labels: Csr,
        which: NDArray[np.int64],
        epoch: int,
        rates: tuple[float, float] = (1.0, 1.0),
    ) -> dict[str, float]:
        """Train on these examples once, in an order of this epoch; what the history tells. The first and the last of
        the learning rates, as shares of what is set."""
        seen, (first, last), parts = list[tuple[float, float, float]](), rates, 0
        for number, batch in enumerate(self._batches(which, epoch)):
            self._set_rates(first + (last - first) * number * self.batch / len(which))
            some = labels.rows(batch)
            loss = self.output(self._hidden(features.rows(batch)), (some.indptr, some.indices))
            self.bias_optimizer.zero_grad()
            loss.backward()
            value, gradient = float(loss.detach()), self.input.bias.grad
            if not isfinite(value) or gradient is None or not torch.isfinite(gradient).all():
                batch_told = f"batch {number + 1} of epoch {epoch + 1}"
                raise FloatingPointError(
                    f"the loss of {batch_told} is {value:.4g}, with a gradient that is not finite: lower lr, "
                    "input_lr or X's values"
                )
            self.bias_optimizer.step()
            seen.append((value, self.output.active_rows, self.output.chance_share))
            if (done := TOLD * (number + 1) * self.batch // len(which)) > parts:
                parts = done
                logger.info("epoch %d: %d/%d of it, loss %.4g", epoch + 1, min(done, TOLD), TOLD, value)
        means = np.mean(seen or [(0.0, 0.0, 0.0)], 0)
        return dict(zip(("loss", "active_rows", "chance_share"), means.tolist(), strict=True))

    def _note(self, row: dict[str, float]) -> None:
        """An epoch is over."""
        self.history.append(row)
        row_told = ", ".join(f"{name} {value:.4g}" for name, value in row.items())
        logger.info("epoch %d: %s", len(self.history), row_told)

    def _set_rates(self, share: float) -> None:
        for layer, rate in ((self.input, self.input_lr), (self.output, self.lr)):
            assert layer.optimizer is not None
            layer.optimizer.lr = share * rate
        self.bias_optimizer.param_groups[0]["lr"] = share * self.input_lr

    def _batches(self, which: NDArray[np.int64], epoch: int) -> Iterator[NDArray[np.int64]]:
        order = np.random.default_rng([self.seed, epoch]).permutation(which)
        for low in range(0, len(order), self.batch):
            yield order[low : low + self.batch]

    def _hidden(self, features: Csr) -> Tensor:
        return torch.relu(self.input(features.indptr, features.indices, features.data))

    def _check_begun(self) -> None:
        if not self._begun:
            raise ValueError("it has not been trained: call fit first")

    def _check(self, features: Csr) -> None:
        self._check_begun()
        if (given := features.shape[1]) != self.n_features_in_:
            raise ValueError(f"X has {given:,} features, in training there were {self.n_features_in_:,}")

    def _calibrated(self, hidden: NDArray[np.float32], k: int, recall: float) -> tuple[Index, int, float]:
        """Clusters of the labels as they are now, how many for that recall, and which they have; 0 and 1 where scoring
        all takes less time."""
        weight, bias = self.output.weight, self.output.bias
        state = self.output.step, weight._version, bias._version
        with told(self.verbose):
            if self._index is None or self._index[0] != state:
                logger.info("clusters of %d labels are made, in seconds or a minute", self.n_labels_)
                self._index = state, Index(weight.detach().numpy(), bias.detach().numpy(), self.seed)
            index = self._index[1]
            return index, *index.probes_for(hidden, k, recall)


def _labelled(labels: Csr) -> NDArray[np.int64]:
    """The examples that have a label."""
    return np.flatnonzero(np.diff(labels.indptr))
