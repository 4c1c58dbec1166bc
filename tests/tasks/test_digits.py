"""The packaged digits: the split, and that they are learnt."""

from statistics import median

import numpy as np
import pytest

from oddlot import Machine, Simulated, Synchronous, fit
from oddlot.core.errors import UsageError
from oddlot.tasks.digits import FILE, digits, split


def test_the_split_is_stratified_and_whole() -> None:
    with np.load(FILE) as file:
        labels = file["labels"]
    train, test = split(labels)
    assert (len(train), len(test)) == (1437, 360)
    assert sorted([*train, *test]) == list(range(1797))
    shares = np.bincount(labels[test]) / np.bincount(labels)
    assert shares.min() > 0.19
    assert shares.max() < 0.21


def test_the_split_is_always_the_same() -> None:
    with np.load(FILE) as file:
        train, test = split(file["labels"])
    assert train[:4].tolist() == [812, 416, 150, 357]
    assert test[:4].tolist() == [1258, 1445, 1002, 1722]


def test_options_change_the_job() -> None:
    job = digits(hidden=7, batch=5)
    assert job.batch == 5
    assert job.model()[-1].in_features == 7  # type: ignore[index]
    with pytest.raises(UsageError, match="hidden = 0: the network needs at least 1"):
        digits(hidden=0)


def test_digits_are_learnt() -> None:
    """The same numbers as on two local workers, whose clock is another one."""
    pair = [Machine("a"), Machine("b")]
    accuracies = [fit(digits(), Synchronous(), on=Simulated(pair), seed=seed).accuracy for seed in range(3)]
    assert median(accuracy or 0.0 for accuracy in accuracies) >= 0.97
