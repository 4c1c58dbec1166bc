"""Stages of the fastest descent, compared with theorem 1 and with the best choice at every error."""

from itertools import pairwise
from math import log, nan

import numpy as np
import pytest

from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.strategies.support.round_planning import RoundKind, stages, switch_times
from tests.transcripts import raises

WORKERS, RATE, SAMPLES = 5, 5.0, 10
ETA, L, VARIANCE, C, ERROR = 0.001, 2.0, 10.0, 1.0, 100.0
A = ETA * L * VARIANCE / (2 * C)
MU = [sum(1 / i for i in range(WORKERS - k + 1, WORKERS + 1)) / RATE for k in range(1, WORKERS + 1)]
CHOICES = [RoundKind(k, SAMPLES, seconds) for k, seconds in enumerate(MU, 1)]


def test_switch_times_match_theorem_1() -> None:
    """Each switch has the time and error of the formula (Kas Hanna et al., theorem 1)."""
    found = stages(CHOICES)
    assert [stage.choice.k for stage in found] == [1, 2, 3, 4, 5]
    expected, now, error = list[float](), 0.0, ERROR
    for k, (mu, after) in enumerate(pairwise(MU), 1):
        terms = log(after - mu) - log(ETA * L * VARIANCE * mu)
        terms += log(2 * C * k * (k + 1) * SAMPLES * error - ETA * L * (k + 1) * VARIANCE)
        step = mu / -log(1 - ETA * C) * terms
        floor = A / (k * SAMPLES)
        now, error = now + step, floor + (1 - ETA * C) ** (step / mu) * (error - floor)
        expected.append(now)
        assert error == pytest.approx(A * found[k - 1].until)
    times, ks = zip(*switch_times(found, A, ERROR, ETA * C), strict=True)
    assert times == pytest.approx(expected)
    assert ks == (2, 3, 4, 5)
    assert expected == pytest.approx([497, 622, 794, 1103], abs=1)


def test_best_choice_is_used_at_every_error() -> None:
    chance = np.random.default_rng(1)
    choices = [
        RoundKind(k, b, float(0.3 * chance.random() + (0.5 + k) ** 0.7 * (1 + 0.1 * b) ** 0.5))
        for k in range(1, 12)
        for b in (1, 2, 5, 10, 20)
    ]
    found = stages(choices)
    assert len(found) > 5
    for error in np.geomspace(1.0, 1.01 * min(choice.floor for choice in choices), 60):
        speeds = [(error - choice.floor) / choice.seconds for choice in choices]
        now = next(stage.choice for stage in found if error >= stage.until)
        assert (error - now.floor) / now.seconds == pytest.approx(max(speeds))


def test_single_choice_never_switches() -> None:
    assert stages(CHOICES[:1]) == [(CHOICES[0], 0.0)]
    assert switch_times(stages(CHOICES[:1]), A, ERROR, 0.1) == ()


def test_initial_error_below_a_stage_skips_it() -> None:
    found = stages(CHOICES)
    for error in (A * found[1].until, A * found[0].choice.floor):
        times = [seconds for seconds, _ in switch_times(found, A, error, ETA)]
        assert times[:2] == [0.0, 0.0] if error < A * found[1].until else times[0] == 0.0
        assert times[-1] > 0


def test_invalid_constants_are_rejected() -> None:
    for contraction in (0.0, 1.0, nan):
        with raises(InvalidValue, "invalid_value", name="contraction"):
            switch_times(stages(CHOICES), A, ERROR, contraction)
    for a, error in ((nan, ERROR), (-1.0, ERROR), (A, -1.0), (A, nan)):
        with raises(InvalidValue, "invalid_value", must="finite and above 0"):
            switch_times(stages(CHOICES), a, error, 0.1)
    for choices in ([], [RoundKind(0, 0, 0.0)], [RoundKind(1, 1, nan)]):
        with raises(UsageError, "invalid_choices"):
            stages(choices)
