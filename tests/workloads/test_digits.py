"""Tests of the workload `digits`: the split, options and training."""

import numpy as np
import pytest

from oddlot import Machine, Simulated, Synchronous, fit
from oddlot.core.support.errors import UsageError
from oddlot.workloads.digits import FILE, digits, split
from tests.transcripts import raises


def test_split_is_stratified_complete_and_fixed() -> None:
    with np.load(FILE) as file:
        labels = file["labels"]
    train, test = split(labels)
    assert (len(train), len(test)) == (1437, 360)
    assert sorted([*train, *test]) == list(range(1797))
    shares = np.bincount(labels[test]) / np.bincount(labels)
    assert shares == pytest.approx([0.2] * 10, abs=0.01)
    assert train[:4].tolist() == [812, 416, 150, 357]
    assert test[:4].tolist() == [1258, 1445, 1002, 1722]


def test_options_change_the_job() -> None:
    job = digits(hidden=7, batch_size=5)
    assert job.batch_size == 5
    assert job.model()[-1].in_features == 7  # type: ignore[index]
    with raises(UsageError, "invalid_value", name="hidden", given=0):
        digits(hidden=0)


def test_digits_reach_the_target_accuracy() -> None:
    """The metrics are the same as on two local workers."""
    on = Simulated([Machine("a"), Machine("b")])
    run = fit(digits(), Synchronous(), on, until="accuracy>=0.97 or epochs>=30")
    assert max(row["accuracy"] for row in run.history) >= 0.97
