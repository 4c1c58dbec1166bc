"""Baselines of the benchmark: sampled softmax in PyTorch, and times of runs."""

import math

import numpy as np
import pytest
import torch

from benchmarks.report import Size
from benchmarks.slide.__main__ import PARTS, chosen
from benchmarks.slide.quality import COMPARED, lengths_of, paced, seconds_to
from benchmarks.slide.runs import Point
from benchmarks.slide.setting import SHAPES
from benchmarks.slide.systems import Dense, Sampled, Tuned
from benchmarks.slide.threads import counts
from oddlot.sparse.csr import Csr

pytestmark = pytest.mark.usefixtures("one_thread")
X = Csr(np.array([0, 2, 3, 4]), np.array([0, 1, 2, 3], np.int32), np.ones(4, np.float32), (3, 5))


def labels(count: int) -> Csr:
    """Return labels of three examples: two labels, one label, none."""
    return Csr(np.array([0, 2, 3, 3]), np.array([1, 2, 2], np.int32), np.ones(3, np.float32), (3, count))


@pytest.mark.parametrize("frequency", [0.0, 0.8])
def test_sampled_softmax_of_all_outputs_equals_dense(frequency: float) -> None:
    """Labels that are also drawn count once, so sampled softmax of all outputs equals dense softmax."""
    dense, sampled = Dense(5, 6, Tuned()), Sampled(5, 6, Tuned(), frequency=frequency)
    sampled.drawn = lambda y: (torch.arange(6), torch.zeros(6))  # type: ignore[method-assign]  # draws all outputs
    with torch.no_grad():
        sampled.weight.weight.copy_(dense.output.weight)
        sampled.input.bag.weight.copy_(dense.input.bag.weight)
    assert sampled.step(X, labels(6)) == pytest.approx(dense.step(X, labels(6)), abs=1e-5)


@pytest.mark.parametrize("frequency", [0.0, 0.8])
def test_sampled_softmax_is_unbiased(frequency: float) -> None:
    """If all logits are equal, the mean of exp(loss) is the number of outputs."""
    outputs, losses = 20_000, list[float]()
    system = Sampled(5, outputs, Tuned(lr=0.0, input_lr=0.0), frequency=frequency)
    torch.nn.init.zeros_(system.weight.weight)
    for _ in range(60):
        losses.append(system.step(X, labels(outputs)))
    assert np.mean(np.exp(losses)) == pytest.approx(outputs, rel=0.01)
    assert losses[-1] == pytest.approx(math.log(outputs), abs=0.1)


def test_seconds_to_a_precision_are_interpolated() -> None:
    runs = [Point(1, 10.0, 0.5), Point(2, 20.0, 0.7), Point(3, 40.0, 0.6)]
    found = [seconds_to(runs, p1) for p1 in (0.4, 0.6, 0.7, 0.8)]
    assert found[:3] == pytest.approx([10.0, 15.0, 20.0])
    assert found[3] is None


def test_slow_outlier_run_is_smoothed() -> None:
    run = [Point(100, 1.0, 0.5), Point(200, 9.0, 0.6), Point(300, 3.0, 0.7)]
    assert [point.seconds for point in paced(run)] == pytest.approx([1.0, 2.0, 3.0])
    assert [point.p1 for point in paced(run)] == [0.5, 0.6, 0.7]


def test_quick_size_excludes_parts_of_full_runs() -> None:
    assert chosen(Size.QUICK, SHAPES, None) == ["30k"]
    assert not {"real", "hashing"} & {*chosen(Size.QUICK, PARTS, None)}
    for every, asked in ((SHAPES, ["30k", "670k"]), (PARTS, ["speed", "real"])):
        assert chosen(Size.FULL, every, None) == list(every)
        assert chosen(Size.FULL, every, asked) == asked
        with pytest.raises(ValueError, match=asked[1]):
            chosen(Size.QUICK, every, asked)


def test_threads_double_up_to_the_number_of_cores() -> None:
    assert [counts(cores) for cores in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]


def test_quick_size_uses_the_longest_sampled_softmax_runs() -> None:
    """Sampled softmax is compared at its best P@1, at the end of its longest run."""
    for name in COMPARED:
        quick, full = lengths_of(Size.QUICK, name), lengths_of(Size.FULL, name)
        assert quick == (full[-2:] if "sampled" in name else full)
