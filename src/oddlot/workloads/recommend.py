"""A recommender that learns from logs of shown and clicked items: SAROS, BPR or softmax."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oddlot.core.support.errors import InvalidValue, UnknownName, UsageError
from oddlot.core.support.user_warnings import warn
from oddlot.workloads.recommender.blocks import Split, Thresholds, split, thresholds_of
from oddlot.workloads.recommender.click_log import ClickLog, Columns, other_log, parse_time, read_log
from oddlot.workloads.recommender.generator import Generator, generate
from oddlot.workloads.recommender.losses import LOSSES, NEGATIVES
from oddlot.workloads.recommender.metrics import METRICS, floors, hits
from oddlot.workloads.recommender.models import Attention, MatrixFactorization
from oddlot.workloads.recommender.samples import Batch, HeldOutUsers, TrainUsers

if TYPE_CHECKING:
    from oddlot.train.job import Job

MODELS = ("factorization", "attention")
LOG_DIGEST = "log_digest"
"""Buffer of the model with `ClickLog.digest` of the training part."""
DENSE_ITEMS = 20_000
"""Largest number of items with a dense softmax. Above it, `oddlot.sparse` samples the items of each click."""


@dataclass(frozen=True)
class Recipe:
    """The settings of a recommender, apart from its log."""

    loss: str = "saros"
    model: str = "factorization"
    width: int = 16
    context: int = 50
    negatives: str = "all"
    layers: int = 1
    heads: int = 2
    decay: float = 0.001
    thresholds: Thresholds = field(default_factory=Thresholds)
    lr: float = 1.0
    momentum: float = 0.0
    optimizer: str = "sgd"
    batch_size: int = 64
    dense_items: int = DENSE_ITEMS
    active: int = 300
    """Number of items that a sampled softmax computes for each click."""


def recommend(
    log: str = "",
    user_column: str = "user",
    item_column: str = "item",
    time_column: str = "time",
    click_column: str = "",
    rating_column: str = "",
    click_rating: float = 4.0,
    separator: str = ",",
    header: bool = True,
    model: str = "factorization",
    loss: str = "saros",
    negatives: str = "all",
    width: int = 16,
    context: int = 50,
    decay: float = 0.001,
    lr: float = 0.0,
    momentum: float = 0.0,
    min_blocks: int = 0,
    max_blocks: int = 0,
    low_percentile: float = 0.0,
    high_percentile: float = 100.0,
    thresholds_from: str = "",
    batch_size: int = 64,
    users: int = 2_000,
    items: int = 1_000,
    bots: float = 0.0,
    seed: int = 0,
) -> "Job":
    """Recommender from a log of shown and clicked items, user by user: blocks (SAROS), BPR or softmax.

    The last block of each user in time is the test. Metrics are NDCG, MAP and recall of the 10 best items, each also of
    random scores and of popularity. `oddlot recommend RUN --user ID` prints the best items of a user.

    Args:
        log: CSV (plain or .gz) or Parquet file. Empty: a generated log.
        user_column: Column of user ids. Without a header, columns are numbers from 0.
        item_column: Column of item ids.
        time_column: Column of times: numbers, or dates in ISO 8601.
        click_column: Column with 1 for clicked and 0 for shown. Empty: all rows are clicks, unless there are ratings.
        rating_column: Column of ratings, instead of `click_column`.
        click_rating: Smallest rating that counts as a click.
        separator: Text between columns of a CSV file, such as `::`.
        header: Whether the first line of a CSV file has the names of the columns.
        model: `factorization` (a vector for each user and item) or `attention` (a transformer over the last clicks).
        loss: `saros` (pairs of each block), `bpr` (a drawn negative for each click) or `softmax` (over all items).
        negatives: Items from which `bpr` draws: `all` that the user has not clicked, or `own`, which were shown to the
            user and not clicked.
        width: Size of the vectors.
        context: Largest number of clicks that `attention` looks back.
        decay: Weight of the squared norms in the loss.
        lr: Learning rate. 0: 30 (1 - momentum) for SGD with `factorization` (a step is a mean over many blocks), 0.003
            for Adam with `attention`.
        momentum: Momentum of SGD. SAROS_m has 0.9, and SAROS_b 0.
        min_blocks: Users with fewer training blocks do not count, b of SAROS. 0: from `low_percentile`.
        max_blocks: Users with more training blocks do not count, B of SAROS. 0: from `high_percentile`.
        low_percentile: Percentile of the training blocks of users, for `min_blocks`.
        high_percentile: Percentile of the training blocks of users, for `max_blocks`. 100: no limit.
        thresholds_from: Take the percentiles from the first part of the log: a share of its time such as 0.5, or a
            date. Empty: from the complete training part.
        batch_size: Users per minibatch.
        users: Users of the generated log.
        items: Items of the generated log.
        bots: Share of bots among the users of the generated log.
        seed: Seed of the generated log.
    """
    names = (user_column, item_column, time_column, click_column, rating_column)
    columns = Columns(*names, click_rating, separator, header)
    generator = Generator(users, items, bots)
    with _errors_of(log):
        parts = split(_read(log, columns) if log else generate(generator, seed).log)
    limits = _thresholds(
        parts.train, (min_blocks, max_blocks), (low_percentile, high_percentile), thresholds_from
    )
    is_adam = model == "attention"
    recipe = Recipe(
        loss,
        model,
        width,
        context,
        negatives,
        decay=decay,
        thresholds=limits,
        lr=lr or (0.003 if is_adam else 30.0 * (1 - momentum)),
        momentum=momentum,
        optimizer="adam" if is_adam else "sgd",
        batch_size=batch_size,
    )
    with _errors_of(log):
        return job_of(parts, recipe)


@contextmanager
def _errors_of(log: str) -> Iterator[None]:
    """Set the option `log` as the cause of errors about the rows of a file."""
    try:
        yield
    except UsageError as error:
        error.key = error.key or ("log" if log else "")
        raise


def _read(path: str, columns: Columns) -> ClickLog:
    """Return the log of a file. Warn of rows that are left out or in another order."""
    log = read_log(path, columns)
    if log.changes:
        counts = {"skipped": log.skipped, "duplicates": log.duplicates, "is_ordered": log.is_ordered}
        warn(f"{path}: {'; '.join(log.changes)}", "log_changed_on_reading", path=path, **counts)
    return log


def _thresholds(
    train: ClickLog, given: tuple[int, int], percentiles: tuple[float, float], until: str
) -> Thresholds:
    """Return the thresholds of the options. Raise InvalidValue for one out of range."""
    low, high = percentiles
    for name, value in (("low_percentile", low), ("high_percentile", high)):
        if not 0 <= value <= 100:
            raise InvalidValue(name, value, "from 0 to 100")
    if low > high:
        raise InvalidValue("low_percentile", low, f"at most high_percentile, which is {high:g}")
    for name, value in zip(("min_blocks", "max_blocks"), given, strict=True):
        if value < 0:
            raise InvalidValue(name, value, "at least 0")
    found = Thresholds()
    if low > 0 or high < 100:
        by_data = thresholds_of(train, low, high, _until(train, until))
        found = Thresholds(by_data.low if low > 0 else 0, by_data.high if high < 100 else inf)
    found = Thresholds(given[0] or found.low, given[1] or found.high)
    if found.low > found.high:
        raise InvalidValue("max_blocks", found.high, f"at least min_blocks, which is {found.low:g}")
    return found


def _until(train: ClickLog, given: str) -> float | None:
    """Return the end of the first part of a log: after a share of its time, or at a date. None if it is not given."""
    if not given:
        return None
    time = parse_time("thresholds_from", given)
    first, last = float(train.times.min()), float(train.times.max())
    return first + time * (last - first) if 0 < time <= 1 else time


def job_of(parts: Split, recipe: Recipe, test_users: NDArray[np.bool_] | None = None) -> "Job":
    """Return the job of a recommender on a split log.

    `test_users` [users] are the users whose test blocks count. Default: all.

    Raises:
        UsageError: The log and the recipe do not fit, no test block has an item to recommend, or all users are outside
            the thresholds.
    """
    from oddlot.core.optimizers import SGD, Adam
    from oddlot.train.job import Job

    _check(parts, recipe)
    if test_users is not None:
        test = parts.test.rows(test_users[parts.test.users])
        parts = Split(parts.train, test, parts.unseen_users, parts.unseen_items)
    tested = HeldOutUsers.of(parts, recipe.context)
    if not len(tested):
        message = "no test block has a clicked item that is new for its user and occurs in the training part"
        raise UsageError(message, "no_test_items", rows=len(parts.test))
    trained = TrainUsers(tested.train, recipe.context)
    train = parts.train
    clicks = np.bincount(train.items[train.clicked], minlength=len(train.item_ids))
    is_candidate = torch.from_numpy(np.bincount(train.items, minlength=len(train.item_ids)) > 0)
    kept = recipe.thresholds.keeps(trained.rows.counts[trained.users])
    if not kept.any():
        raise _all_dropped(recipe.thresholds, trained.rows.counts[trained.users])
    constants = floors(tested, is_candidate, torch.from_numpy(clicks).float()) | {
        "unseen_users": float(parts.unseen_users),
        "unseen_items": float(parts.unseen_items),
        "dropped_users": float((~kept).sum()),
    }
    is_adam = recipe.optimizer == "adam"
    return Job(
        _model(train, recipe, clicks),
        trained,
        training_step=Loss(
            recipe.loss, recipe.decay, recipe.thresholds, recipe.negatives, parts.train.digest
        ),
        eval_data=tested,
        predict=Prediction(is_candidate),
        metrics=METRICS | {name: Constant(value) for name, value in constants.items()},
        optimizer=Adam(lr=recipe.lr) if is_adam else SGD(lr=recipe.lr, momentum=recipe.momentum),
        batch_size=min(recipe.batch_size, len(trained)),
        sparse=not is_adam,
        collate=_as_it_is,
        device="cpu",
        until="epochs>=10",
        name="recommend",
    )


def _all_dropped(limits: Thresholds, counts: NDArray[np.int64]) -> InvalidValue:
    """Return the error for thresholds without a user between them."""
    least, most = int(counts.min()), int(counts.max())
    name, given = ("min_blocks", limits.low) if limits.low > least else ("max_blocks", limits.high)
    return InvalidValue(name, given, f"a number that keeps users, who have {least} to {most} training blocks")


def _check(parts: Split, recipe: Recipe) -> None:
    """Raise UsageError unless the log and the recipe fit."""
    if recipe.loss not in LOSSES:
        raise UnknownName("loss", recipe.loss, LOSSES, key="loss")
    if recipe.model not in MODELS:
        raise UnknownName("model", recipe.model, MODELS, key="model")
    if recipe.negatives not in NEGATIVES:
        raise UnknownName("negatives", recipe.negatives, NEGATIVES, key="negatives")
    for name in ("width", "context", "batch_size"):
        if getattr(recipe, name) < 1:
            raise InvalidValue(name, getattr(recipe, name), "at least 1")
    for name in ("decay", "lr"):
        if not getattr(recipe, name) >= 0:
            raise InvalidValue(name, getattr(recipe, name), "at least 0")
    if recipe.model == "attention" and recipe.width % recipe.heads:
        raise InvalidValue("width", recipe.width, f"a multiple of {recipe.heads}")
    if recipe.loss == "saros" and not parts.train.has_negatives:
        message = "the log has no items that were shown and not clicked, which loss = 'saros' needs. "
        message += (
            "Use loss = 'bpr' (with drawn negatives) or 'softmax', or set click_column or rating_column"
        )
        raise UsageError(message, "no_negatives", rows=len(parts.train))


def _model(train: ClickLog, recipe: Recipe, counts: NDArray[np.int64]) -> Callable[[], nn.Module]:
    """Return the function that makes the model, with the hash of the log as a buffer."""
    items = len(train.item_ids)
    model: Callable[[], nn.Module]
    sampled = counts if recipe.loss == "softmax" and items > recipe.dense_items else None
    if recipe.model == "attention":
        sizes = (items, recipe.width, recipe.context, recipe.layers, recipe.heads)
        model = partial(Attention, *sizes, counts=sampled, active=recipe.active)
    else:
        users, width = len(train.user_ids), recipe.width
        model = partial(MatrixFactorization, users, items, width, sampled, active=recipe.active)
    return partial(_with_digest, model, train.digest)


def _with_digest(made: Callable[[], nn.Module], digest: int) -> nn.Module:
    model = made()
    model.register_buffer(LOG_DIGEST, torch.tensor(digest))
    return model


@dataclass(frozen=True)
class Loss:
    """The loss of a batch of users. Users outside the thresholds do not count."""

    name: str
    decay: float
    thresholds: Thresholds
    negatives: str
    log_digest: int
    """`ClickLog.digest` of the training part. The log may have changed before a resume, or be another one elsewhere."""

    def __call__(self, model: Any, batch: Batch) -> tuple[Tensor | dict[str, Any], int]:
        """Return the mean loss of the kept users' blocks or clicks, and their number. Without any, the weight is 0.

        In training, the number is also a further loss, `blocks` (SAROS) or `clicks`, for gates such as `range:blocks`.
        """
        if model.training and int(model.log_digest) != self.log_digest:
            raise other_log()
        counts = batch["counts"]
        kept = (self.thresholds.low <= counts) & (counts <= self.thresholds.high)
        options = {"negatives": self.negatives} if self.name == "bpr" else {}
        loss, number = LOSSES[self.name](model, batch, kept, self.decay, **options)
        if not model.training:
            return loss, number
        return {"loss": loss, "blocks" if self.name == "saros" else "clicks": number}, number


@dataclass(frozen=True)
class Prediction:
    """The labels of the best items, and the numbers of relevant items."""

    is_candidate: Tensor

    def __call__(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return labels [n, 20] and numbers [n, 1], as `hits` does."""
        return hits(model.scores(model.history(batch)), batch, self.is_candidate)


@dataclass(frozen=True)
class Constant:
    """A metric that does not depend on the model."""

    value: float

    def __call__(self, _outputs: Tensor, _targets: Tensor) -> float:
        """Return the value."""
        return self.value


def _as_it_is(batch: Any) -> Any:
    return batch
