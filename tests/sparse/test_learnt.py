"""State that a sampler learns from a layer, and when it is reset."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from oddlot.sparse import LSH, SGD, Adam, Clusters, Mixed, SampledLinear, Uniform, Unigram
from tests.sparse.layers import COLUMNS, SEVERAL, a_layer, some_hidden, trained

pytestmark = pytest.mark.usefixtures("one_thread")


def test_loss_without_a_gradient_changes_no_state() -> None:
    layer = a_layer(Uniform(8), Adam(lr=0.1, decay=True))
    layer(some_hidden(), SEVERAL).backward()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    with torch.no_grad():
        losses = [float(layer(some_hidden(), SEVERAL)) for _ in range(3)]
    assert losses == losses[:1] * 3
    assert (layer.step, layer.batches) == (1, 1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


@pytest.mark.parametrize("make", [LSH, Unigram, Clusters])
def test_evaluation_before_training_changes_no_weights(make: Any) -> None:
    ends = list[Tensor]()
    for measures in (False, True):
        layer = SampledLinear(COLUMNS, 3000, make(), seed=4)
        for loads in (False, True):
            if loads:
                layer.load_state_dict(layer.state_dict())
            if measures:
                with torch.no_grad():
                    layer(some_hidden(seed=9), SEVERAL)
            for step in range(3):
                layer(some_hidden(seed=step), SEVERAL).backward()
        ends.append(layer.weight.detach())
    assert torch.equal(*ends)


def test_samplers_learn_only_from_losses_with_gradients() -> None:
    samplers: list[Any] = [LSH(found=20, by_chance=5, changed_only=True), Unigram(20), Clusters(4, 3, 30, 10)]
    for sampler in samplers:
        layer = a_layer(sampler, Adam(), 500)
        layer(some_hidden(), SEVERAL).backward()
        known = sampler.frequencies if isinstance(sampler, Clusters) else sampler
        before = pickle.dumps(known)
        with torch.no_grad():
            layer(some_hidden(seed=9), SEVERAL + 1)
        assert pickle.dumps(known) == before
        layer(some_hidden(seed=9), SEVERAL + 1)
        assert pickle.dumps(known) != before


@pytest.mark.parametrize("sampler", [Unigram(4), LSH(found=4, by_chance=2)])
def test_samplers_learn_nothing_from_a_nan_batch(sampler: Unigram | LSH) -> None:
    """The batch must change neither the choice of digits nor the label counts."""
    layer, hidden = a_layer(sampler, optimizer=Adam()), some_hidden()
    layer(hidden, SEVERAL).backward()

    def known() -> str:
        counts = sampler.frequencies.counts
        return str((None if counts is None else counts.tolist(), str(getattr(sampler, "asked", None))))

    before = known()
    with torch.no_grad():
        hidden[1, 2] = torch.nan
    layer(hidden, SEVERAL).backward()
    assert known() == before


def test_reassigned_sampler_resets_its_state() -> None:
    """A reassigned sampler resets its state, because batches with another sampler have changed the rows."""
    known, layer = LSH(changed_only=True), a_layer(optimizer=SGD())
    for sampler in (known, Uniform(4), known):
        layer.sampler = sampler
        layer(some_hidden(), SEVERAL).backward()
        assert known.refresh.times == 1


def test_loaded_weights_reset_the_sampler() -> None:
    layer = trained(Clusters(4, 3, 30, 10), 1)
    assert isinstance(layer.sampler, Clusters)
    layer.load_state_dict(trained(Uniform(20), 1).state_dict())
    layer(some_hidden(1), [3])
    assert layer.sampler.refresh.next == layer.batches + 50


def test_sampler_passed_to_another_layer_resets_its_state() -> None:
    sampler = trained(Clusters(4, 3, 30, 10), 1).sampler
    layer = SampledLinear(COLUMNS, 500, sampler, None)
    assert isinstance(sampler, Clusters)
    known = sampler.clustering
    layer(some_hidden(1), [3])
    assert sampler.clustering is not known


def test_sampler_shared_by_two_layers_keeps_them_apart() -> None:
    """The sampler is reset whenever the layer changes, including hash functions for other sizes."""
    for sampler in (Clusters(), LSH(), LSH("dwta"), Mixed([LSH(by_chance=0), Mixed([Clusters()])])):
        wide, narrow = SampledLinear(64, 3000, sampler, None), SampledLinear(COLUMNS, 30, sampler, None)
        for _ in range(2):
            hidden = torch.randn(4, 64)
            assert torch.isfinite(wide(hidden, torch.arange(4)))
            assert torch.isfinite(narrow(hidden[:, :COLUMNS], torch.arange(4)))
