"""Validation of the settings of optimizers."""

from collections.abc import Callable
from math import inf, nan

import pytest

from oddlot.core.optimizers import SGD, Adam, AdamW
from oddlot.core.support.errors import UsageError
from oddlot.strategies import LocalSGD
from tests.transcripts import raises


@pytest.mark.parametrize(
    ("make", "code", "key"),
    [
        (lambda: SGD(lr=-0.1), "invalid_value", "lr"),
        (lambda: SGD(lr="0.1"), "invalid_value", "lr"),  # type: ignore[arg-type]
        (lambda: SGD(lr=nan), "invalid_value", "lr"),
        (lambda: SGD(momentum=inf), "invalid_value", "momentum"),
        (lambda: SGD(momentum=1.9), "invalid_value", "momentum"),
        (lambda: SGD(momentum=-1.0), "invalid_value", "momentum"),
        (lambda: SGD(momentum=-0.5, nesterov=True), "nesterov_without_momentum", "nesterov"),
        (lambda: SGD(nesterov=True), "nesterov_without_momentum", "nesterov"),
        (lambda: Adam(betas=(0.9, 1.0)), "invalid_value", "betas"),
        (lambda: Adam(betas=(0.9,)), "invalid_value", "betas"),  # type: ignore[arg-type]
        (lambda: LocalSGD(server="adam"), "invalid_value", "server"),  # type: ignore[arg-type]
        (lambda: Adam(eps=0.0), "invalid_value", "eps"),
        (lambda: AdamW(weight_decay=-1), "invalid_value", "weight_decay"),
    ],
)
def test_invalid_optimizer_settings_are_rejected(make: Callable[[], object], code: str, key: str) -> None:
    with raises(UsageError, code) as caught:
        make()
    assert caught.value.key == key


def test_negative_momentum_is_accepted() -> None:
    assert SGD(momentum=-0.99).momentum == -0.99
