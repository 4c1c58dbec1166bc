"""The model of a mesh: `run.model` has the trained weights after every kind of end."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oddlot import Gossip, Run, fit
from oddlot.core.support.errors import CheckpointError
from tests.fits import a_job, fleet
from tests.transcripts import raises, warns


class Unusual(nn.Module):
    """A network with tied weights, extra state, and a buffer that is not saved."""

    passing: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.above.weight = self.below.weight
        self.register_buffer("passing", torch.zeros(1), persistent=False)

    def get_extra_state(self) -> Any:
        return {"calls": 1}

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError("it was not saved")

    def forward(self, points: Tensor) -> Tensor:
        if self.training:
            self.passing += 1
        return self.above(self.below(points))  # type: ignore[no-any-return]


def trained(out: Path, **settings: Any) -> Run:
    job = a_job(Unusual, as_buffers=["passing"])
    with warns("extra_state", modules=["Unusual"]):
        return fit(job, Gossip(), fleet(), until="epochs>=2", out=out, **settings)


def test_saved_mesh_model_equals_the_returned_model(tmp_path: Path) -> None:
    run = trained(tmp_path)
    again = trained(tmp_path, resume="latest")
    assert isinstance(run.model, Unusual)
    assert isinstance(again.model, Unusual)
    assert torch.equal(again.model.below.weight, run.model.below.weight)
    assert again.model.above.weight is again.model.below.weight
    assert again.model.passing == run.model.passing > 0


def test_damaged_model_file_raises_damaged_file(tmp_path: Path) -> None:
    trained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with raises(CheckpointError, "damaged_file", path=str(path)):
        trained(tmp_path, resume="latest")
