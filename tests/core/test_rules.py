"""Rules check their numbers."""

from collections.abc import Callable
from math import inf, nan

import pytest

from oddlot.core.errors import UsageError
from oddlot.core.rules import SGD, Adam, AdamW
from oddlot.strategies import LocalSGD


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: SGD(lr=-0.1), "lr = -0.1 must be finite and not negative"),
        (lambda: SGD(lr="0.1"), "lr = '0.1' must be a number"),  # type: ignore[arg-type]
        (lambda: SGD(lr=nan), "lr = nan must be finite"),
        (lambda: SGD(momentum=inf), "momentum = inf must be at least 0 and below 1"),
        (lambda: SGD(momentum=1.9), "momentum = 1.9 must be at least 0 and below 1"),
        (lambda: SGD(nesterov=True), "nesterov = True needs a momentum above 0"),
        (lambda: Adam(betas=(0.9, 1.0)), r"betas = \(0.9, 1.0\) must be two numbers, each at least 0"),
        (lambda: Adam(betas=(0.9,)), r"betas = \(0.9,\) must be two numbers"),  # type: ignore[arg-type]
        (lambda: LocalSGD(server="adam"), r"server = 'adam' must be SGD\(...\) or"),  # type: ignore[arg-type]
        (lambda: Adam(eps=0.0), "eps = 0.0 must be finite and above 0"),
        (lambda: AdamW(weight_decay=-1), "weight_decay = -1 must be finite and not negative"),
    ],
)
def test_impossible_numbers_are_told(make: Callable[[], object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make()
