"""`oddlot.accuracy`."""

import pytest
import torch

from oddlot import accuracy
from oddlot.core.support.errors import JobError
from tests.transcripts import raises


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        ((4, 1), (4, 1)),
        ((4, 1), (4,)),
        ((4, 3), (4, 1)),
        ((4,), (4,)),
        ((4, 2, 8, 8), (4, 8, 8)),
        ((4, 3), (3,)),
        ((4, 3), (4, 3)),
    ],
)
def test_shapes_that_would_broadcast_are_rejected(outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    with raises(JobError, "wrong_shape", outputs=outputs, targets=targets):
        accuracy(torch.zeros(outputs), torch.zeros(targets))


def test_accuracy_is_the_share_of_correct_rows() -> None:
    assert accuracy(torch.eye(4)[:, :3], torch.tensor([0, 1, 1, 0])) == 0.75
