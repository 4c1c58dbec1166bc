"""Errors of the job's own code in a minibatch name the rows and the part, and have a hint."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from oddlot import Shards
from oddlot.core.support.errors import JobError
from oddlot.core.tasks import Kind
from oddlot.data.batches import order
from tests.train.test_learner import INPUTS, TARGETS, Bench, a_job
from tests.transcripts import raises

ROWS = sorted(order(0, 0, 40)[8:16].tolist())
ONE = ROWS[3]
FLOATS, CLASSES = INPUTS.numpy(), TARGETS.numpy()


class Broken(Dataset[Any]):
    """A dataset with an unreadable sample `one`."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == ONE:
            raise OSError("the file is cut off")
        return INPUTS[index], TARGETS[index]


def part(bounds: tuple[int, int]) -> list[Any]:
    """Return the arrays of a part. The arrays of the second part have fewer columns."""
    rows, width = slice(*bounds), 2 if bounds[0] else 3
    return [FLOATS[rows, :width], CLASSES[rows]]


def net() -> nn.Module:
    return nn.Linear(3, 2)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 3), nn.Flatten())


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten(), nn.Linear(3, 2))


def decayed(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, weight_decay=0.1)


OTHERS = torch.arange(40) % 2
TOO_HIGH = torch.where(torch.arange(40) == ONE, 7, TARGETS)
WIDE = [(np.zeros(3 + (row == ONE)), 0) for row in range(40)]
FAILURES: dict[str, tuple[dict[str, Any], Kind, dict[str, Any]]] = {
    "a label out of range": ({"train_data": (INPUTS, TOO_HIGH)}, "gradient", {"rows": ROWS}),
    "the same in local steps": ({"train_data": (INPUTS, TOO_HIGH)}, "delta", {"rows": ROWS}),
    "a sample that cannot be read": ({"train_data": Broken()}, "gradient", {"rows": [ONE]}),
    "samples that do not fit together": ({"train_data": WIDE}, "gradient", {"rows": ROWS}),
    "float64 inputs": (
        {"train_data": (FLOATS.astype("float64"), CLASSES)},
        "gradient",
        {"rows": ROWS, "hint": "dtypes"},
    ),
    "float64 inputs of a convolution": (
        {"train_data": (FLOATS.astype("float64"), CLASSES), "model": convolution},
        "gradient",
        {"hint": "dtypes"},
    ),
    "float targets": ({"train_data": (INPUTS, TARGETS.float())}, "gradient", {"rows": ROWS}),
    "sparse gradients": (
        {"model": embedding, "train_data": (OTHERS[:, None], TARGETS), "local_optimizer": decayed},
        "delta",
        {"hint": "sparse_gradients"},
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_exception_in_a_minibatch_names_its_rows_and_a_hint(failure: str) -> None:
    changes, kind, fields = FAILURES[failure]
    with raises(JobError, "user_code_failed", where="w1", **fields) as caught:
        Bench(a_job(**{"model": net, "loss": cross_entropy, **changes})).compute((8, 16), kind=kind)
    assert ("hint" in caught.fields) is ("hint" in fields)
    assert caught.value.__cause__ is not None


def test_exception_in_collate_names_all_rows() -> None:
    data = [(row, 0) for row in INPUTS]
    with raises(JobError, "user_code_failed", rows=ROWS):
        Bench(a_job(net, train_data=data, collate=lambda _: 1 / 0)).compute((8, 16))


def test_exception_names_the_part_of_sharded_data() -> None:
    shards = Shards([(0, 20), (20, 40)], part, [20, 20])
    bench = Bench(a_job(net, train_data=shards), shards=shards.cuts)
    with raises(JobError, "user_code_failed", parts=["(20, 40)"]):
        bench.compute((24, 32))


def test_long_lists_of_rows_are_shortened_only_in_the_message() -> None:
    inputs, targets = torch.zeros(200, 3), torch.full((200,), 7)
    with raises(JobError, "user_code_failed") as caught:
        Bench(a_job(net, train_data=(inputs, targets), batch_size=100)).compute((0, 100))
    assert len(caught.fields["rows"]) == 100
