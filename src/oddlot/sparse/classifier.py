"""A scikit-learn estimator for extreme multi-label classification, with one hidden layer."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oddlot.sparse import progress, saving
from oddlot.sparse.csr import Csr
from oddlot.sparse.datasets.metrics import precision
from oddlot.sparse.errors import check_memory, coded
from oddlot.sparse.lazy_adam import LazyAdam
from oddlot.sparse.matrices import checked, checked_labels
from oddlot.sparse.optimizers import Adam, bytes_of_row
from oddlot.sparse.sampled_linear import SampledLinear
from oddlot.sparse.sampler import Sampler, check_sampler
from oddlot.sparse.sklearn_params import NotFittedError, SklearnParams
from oddlot.sparse.sparse_input import SparseInputLinear
from oddlot.sparse.topk import Search, exact_topk
from oddlot.sparse.validation import check_flag, check_share, check_whole

logger = logging.getLogger(__name__)
SCORED_AT_ONCE, RECALL = 256, 0.9
PROGRESS_REPORTS = 10
"""Progress messages per epoch."""


@dataclass(eq=False)
class SlideClassifier(SklearnParams):
    """Extreme multi-label classification on a CPU: sparse input, one hidden layer, and a sampled output layer.

    It has the interface of a scikit-learn classifier.

    - `X` is a CSR matrix (scipy's, or any object with `indptr`, `indices`, `data` and `shape`) or an array, [examples,
      features].
    - `y` is a CSR matrix with a nonzero entry for each label, [examples, labels], an array of zeros and ones of this
      shape, or a 1-D array of integers with one label each.

    Features of each example are scaled to an L2 norm of 1, unless `normalize` is false. Values that are not finite, or
    another number of features than in training, raise ValueError. An example without features is scored by the biases.
    An example without labels has no effect in training.
    """

    history: list[dict[str, float]] = field(init=False, repr=False, default_factory=list)
    """Metrics of each epoch: mean loss, rows computed per example, share of them that were drawn randomly and, with
    `validation`, P@1."""
    recall_: float = field(init=False, repr=False, default=1.0)
    """Measured recall of the last prediction, relative to scoring all labels. 1: all labels were scored."""
    _normalized: bool = field(init=False, repr=False, default=False)
    """Whether the network was trained on normalized features."""
    _search: tuple[tuple[int, ...], Search] | None = field(init=False, repr=False, default=None)
    """The search index, with the state of the layer that it was built for."""

    # --- training ----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> "SlideClassifier":
        """Train from scratch for `epochs` epochs, or until P@1 on the validation examples stops rising.

        Raise FloatingPointError if training diverges. After an error, the classifier is as before; after Ctrl-C, it
        keeps what it has learned.
        """
        self.__post_init__()
        features = checked(X, "X")
        labels = checked_labels(y, len(features), self.labels)
        if not len(labels.indices):
            message = f"y has no label for any of the {len(features):,} examples"
            raise coded(ValueError(message), "no_labels", examples=len(features))
        before = dict(vars(self))
        with progress.shown(self.verbose):
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
            message = f"validation = {self.validation} leaves none of the {len(order)} examples for training: lower it"
            given = {"validation": self.validation, "examples": len(order)}
            raise coded(ValueError(message), "nothing_to_learn_from", **given)
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
        """Train for one pass over more examples, with constant learning rates and without validation.

        Set `labels` if later calls may have more labels. If no example has a label, the loss in `history` is NaN.
        Raise FloatingPointError if training diverges. The classifier then keeps what it learned before that batch.
        """
        self.__post_init__()
        features = checked(X, "X")
        labels = checked_labels(y, len(features), self.n_labels_ if self._begun else self.labels)
        if not self._begun:
            self._begin(features.shape[1], labels.shape[1])
        self._check(features)
        self._search = None
        with progress.shown(self.verbose):
            self._note(self._pass(features, labels, _labelled(labels), len(self.history)))
        return self

    # --- prediction --------------------------------------------------------------------------------

    def predict(self, X: Any, *, exact: bool = True, recall: float | None = None) -> NDArray[np.int64]:
        """Return the best label of each example. It has the options of `predict_topk`."""
        return self.predict_topk(X, 1, exact=exact, recall=recall)[:, 0]

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        exact: bool = True,
        recall: float | None = None,
    ) -> NDArray[np.int64]:
        """Return the k best labels of each example, the best first, [examples, k].

        With `exact=False`, an index of clusters is used. It scores only the labels that the recall needs. Use it for
        many examples (about 100,000) or for low latency. Building the index takes seconds to a minute, and 0.5-0.8x the
        memory of the output weights. The index is not saved.

        The recall is measured on 512 different examples of this or earlier calls; the result is in `recall_`. All
        labels are scored, and `recall_` is 1, until there are 512 examples, for k above 100, or if more than 1/20 of
        the clusters would be needed.

        Args:
            X: Features.
            k: Number of labels.
            exact: Whether to score all labels.
            recall: Share of the exact labels to find, with `exact=False`. Default: 0.9. A label that was not found is
            -1.
        """
        features = checked(X, "X")
        self._check(features)
        check_flag(exact=exact)
        check_whole(1, self.n_labels_, k=k)
        if exact and recall is not None:
            error = ValueError(f"recall = {recall!r} has no effect with exact=True: set exact=False")
            raise coded(error, "recall_of_exact", recall=recall)
        recall = RECALL if recall is None else recall
        check_share(recall=recall)
        parts = list[NDArray[np.int64]]()
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            search = None if exact else self._search_now()
            probes, self.recall_ = self._probes_for(search, features, k, recall) if search else (0, 1.0)
            for low in range(0, len(features), SCORED_AT_ONCE):
                hidden = self._hidden(features.between(low, low + SCORED_AT_ONCE))
                if search and probes:
                    parts.append(search.index.topk(hidden.numpy(), k, probes)[1])
                else:
                    parts.append(exact_topk(hidden, self.output.weight, self.output.bias, k)[1].numpy())
        return np.concatenate(parts) if parts else np.zeros((0, k), np.int64)

    def score(self, X: Any, y: Any, *, exact: bool = True, recall: float | None = None) -> float:
        """Return P@1: the share of examples with a correct best label. It has the options of `predict_topk`.

        Raise ValueError if there is no example.
        """
        features = checked(X, "X")
        if not len(features):
            raise coded(ValueError("X has no examples: P@1 is undefined"), "no_examples")
        labels = checked_labels(y, len(features), self.n_labels_)
        return precision(self.predict_topk(features, 1, exact=exact, recall=recall), labels, 1)

    # --- saving ------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Save the weights, settings and history as one file in a folder. The sampler is not saved.

        Raise OSError if the file cannot be written. A file that was there before is then kept.
        """
        self._check_begun()
        settings = self.get_params() | {"hidden": self.input.out_features, "normalize": self._normalized}
        del settings["sampler"]
        sizes = {"features": self.n_features_in_, "labels": self.n_labels_}
        message = {"settings": settings, "sizes": sizes, "history": self.history}
        saving.write(folder, message, self.model.state_dict())

    @classmethod
    def load(cls, folder: str | Path, sampler: Sampler | None = None) -> "SlideClassifier":
        """Load a saved classifier. Its optimizers start with a new state.

        Raise FileNotFoundError if the file is missing, and ValueError if it is damaged.
        """
        check_sampler(sampler)
        message, weights = saving.read(folder)
        try:
            # Older files have no `normalize`.
            found = cls(sampler, **{"normalize": False, **message["settings"]})
            found._begin(**message["sizes"])
            found.model.load_state_dict(weights)
            found.history = message["history"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            other = ValueError(f"{folder} has a classifier of an incompatible version: {error}")
            raise coded(other, "other_version", path=str(folder), reason=str(error)) from None
        return found

    # --- inside ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the search index."""
        return vars(self) | {"_search": None}

    @property
    def n_labels_(self) -> int:
        """Number of labels."""
        self._check_begun()
        return self.output.out_features

    @property
    def n_features_in_(self) -> int:
        """Number of features."""
        self._check_begun()
        return self.input.in_features

    @property
    def classes_(self) -> NDArray[np.int64]:
        """Labels 0, 1, 2, ..., for scikit-learn's metrics."""
        return np.arange(self.n_labels_)

    def __sklearn_is_fitted__(self) -> bool:
        return self._begun

    @property
    def _begun(self) -> bool:
        return hasattr(self, "model")

    def _begin(self, features: int, labels: int) -> None:
        for name, count in (("X", features), ("y", labels)):
            if not count:
                raise coded(ValueError(f"{name} has no columns"), "no_columns", name=name)
        needs = bytes_of_row(Adam(moments=self.moments), self.hidden) * (features + labels)
        check_memory(needs, f"a network of {features:,} features and {labels:,} labels")
        of_input, of_output = (Adam(lr, moments=self.moments) for lr in (self.input_lr, self.lr))
        self.input = SparseInputLinear(features, self.hidden, of_input, self.seed, self.input_std)
        self.output = SampledLinear(self.hidden, labels, self.sampler, of_output, self.seed)
        self.model = nn.ModuleDict({"input": self.input, "output": self.output})
        self.bias_optimizer = LazyAdam([self.input.bias], lr=self.input_lr)
        self.history, self._search, self._normalized = [], None, self.normalize

    def _pass(
        self,
        features: Csr,
        labels: Csr,
        which: NDArray[np.int64],
        epoch: int,
        rates: tuple[float, float] = (1.0, 1.0),
    ) -> dict[str, float]:
        """Train on these examples once, in the random order of this epoch, and return the metrics for the history.

        `rates` are the first and the last learning rate, relative to the settings.
        """
        seen, (first, last), parts = list[tuple[float, float, float]](), rates, 0
        for number, batch in enumerate(self._batches(which, epoch)):
            self._set_rates(first + (last - first) * number * self.batch / len(which))
            some = labels.rows(batch)
            loss = self.output(self._hidden(features.rows(batch)), (some.indptr, some.indices))
            self.bias_optimizer.zero_grad()
            loss.backward()
            value, gradient = float(loss.detach()), self.input.bias.grad
            if not isfinite(value) or gradient is None or not torch.isfinite(gradient).all():
                raise _diverged(number + 1, epoch + 1, value)
            self.bias_optimizer.step()
            seen.append((value, self.output.active_rows, self.output.chance_share))
            if (done := PROGRESS_REPORTS * (number + 1) * self.batch // len(which)) > parts:
                parts = done
                logger.info(
                    "epoch %d: %d/%d done, loss %.4g",
                    epoch + 1,
                    min(done, PROGRESS_REPORTS),
                    PROGRESS_REPORTS,
                    value,
                )
        means = np.mean(seen or [(nan, 0.0, 0.0)], 0)
        return dict(zip(("loss", "active_rows", "chance_share"), means.tolist(), strict=True))

    def _note(self, row: dict[str, float]) -> None:
        """Add the metrics of an epoch to the history, and log them."""
        self.history.append(row)
        row_text = ", ".join(f"{name} {value:.4g}" for name, value in row.items())
        logger.info("epoch %d: %s", len(self.history), row_text)

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
        features = features.unit_rows() if self._normalized else features
        return torch.relu(self.input(features.indptr, features.indices, features.data))

    def _check_begun(self) -> None:
        if not self._begun:
            raise coded(NotFittedError("the classifier is not trained: call fit first"), "not_fitted")

    def _check(self, features: Csr) -> None:
        self._check_begun()
        given, expected = features.shape[1], self.n_features_in_
        if given != expected:
            error = ValueError(f"X has {given:,} features, but training had {expected:,}")
            raise coded(error, "wrong_column_count", name="X", given=given, expected=expected)

    def _search_now(self) -> Search:
        """Return the search index of the current output layer."""
        weight, bias = self.output.weight, self.output.bias
        state = self.output.step, weight._version, bias._version
        if self._search is None or self._search[0] != state:
            self._search = state, Search(weight.detach().numpy(), bias.detach().numpy(), self.seed)
        return self._search[1]

    def _probes_for(self, search: Search, features: Csr, k: int, recall: float) -> tuple[int, float]:
        """Return the number of clusters for this recall, and their recall; 0 and 1 if all labels are to be scored."""
        if search.missing:
            # In random order, because a file may be sorted by labels.
            order = np.random.default_rng(self.seed).permutation(len(features))
            for low in range(0, len(order), SCORED_AT_ONCE):
                if search.missing:
                    search.show(self._hidden(features.rows(order[low : low + SCORED_AT_ONCE])).numpy())
        with progress.shown(self.verbose):
            return search.probes_for(k, recall)


def _labelled(labels: Csr) -> NDArray[np.int64]:
    """Return the examples that have a label."""
    return np.flatnonzero(np.diff(labels.indptr))


def _diverged(batch: int, epoch: int, loss: float) -> FloatingPointError:
    what = f"training diverged: the loss of batch {batch} of epoch {epoch} is {loss:.4g}"
    error = FloatingPointError(
        f"{what}, with a gradient that is not finite. Lower lr or input_lr, or scale down X"
    )
    return coded(error, "diverged", batch=batch, epoch=epoch, loss=loss)
