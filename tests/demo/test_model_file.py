"""The page's model: its shapes, its file format, and damaged files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.demo.digit_model import DigitModel
from oddlot.demo.model_file import DESCRIPTION, WEIGHTS, ModelFiles, check, pack, read
from oddlot.demo.site import SHIPPED, STRIP
from oddlot.workloads.digit_autoencoder import DigitNetwork
from tests.demo.networks import SHARED, arrays, model, network
from tests.transcripts import raises
from tools.digit_model_files import unpack


@pytest.mark.parametrize("widths", [{}, SHARED], ids=["pixels", "hidden"])
def test_float32_files_keep_every_weight(widths: dict[str, Any]) -> None:
    made = model(**widths)
    files = pack(made, {"name": "test"}, int8=False)
    for (_, before), (_, after) in zip(made.parts(), unpack(files, "test").parts(), strict=True):
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one.weight, other.weight)
            np.testing.assert_array_equal(one.bias, other.bias)
    described = json.loads(files.description)
    assert described["classifier_input"] == ("hidden" if widths else "pixels")
    assert described["about"] == {"name": "test"}


def test_int8_files_round_each_row() -> None:
    """A weight changes by at most half of its row's scale, also in a row of zeros. Biases are exact."""
    made = model()
    made.encoder[0].weight[3] = 0
    made.encoder[0].weight[4] *= 1000
    files = pack(made, {}, int8=True)
    assert len(files.weights) < len(pack(made, {}, int8=False).weights) / 3.5
    for (_, before), (_, after) in zip(made.parts(), unpack(files, "test").parts(), strict=True):
        for one, other in zip(before, after, strict=True):
            scale = np.abs(one.weight).max(axis=1, keepdims=True) / 127
            assert (np.abs(one.weight - other.weight) <= scale * 0.501).all()
            np.testing.assert_array_equal(one.bias, other.bias)


def test_layers_without_bias_have_zeros() -> None:
    state = {name: values for name, values in arrays(network()).items() if not name.endswith("bias")}
    assert not any(layer.bias.any() for _, layers in DigitModel.of(state, "test").parts() for layer in layers)


def test_parameters_of_another_network_are_rejected() -> None:
    state = arrays(network())
    without = {name: values for name, values in state.items() if not name.startswith("decoder")}
    with raises(UsageError, "not_a_digit_model", missing=["decoder"]):
        DigitModel.of(without, "test")
    for name, shape in {
        "encoder.0.weight": (40, 64),
        "encoder.1.weight": (29, 40),
        "decoder.1.weight": (784, 39),
        "classifier.1.weight": (12, 24),
    }.items():
        with raises(UsageError, "not_a_digit_model", name=name, shape=list(shape)):
            DigitModel.of({**state, name: np.zeros(shape, np.float32)}, "test")


def test_codes_that_the_page_cannot_decode_are_rejected() -> None:
    """A classifier from pixels that is deeper than the encoder reads a sigmoid code."""
    sigmoid = DigitNetwork((784, 40, 30), is_linear=False)
    with raises(UsageError, "sigmoid_code", origin="test"):
        DigitModel.of(arrays(sigmoid), "test")
    with raises(UsageError, "other_code_width", width=20):
        DigitModel.of(arrays(DigitNetwork((784, 40, 20))), "test")
    DigitModel.of(arrays(DigitNetwork((784, 40, 30))), "test")


def test_weights_that_are_not_finite_are_rejected() -> None:
    state = arrays(network())
    state["decoder.0.bias"][2] = np.nan
    with raises(CheckpointError, "weights_not_finite", names=["decoder.0.bias"]):
        DigitModel.of(state, "test")


def test_damaged_files_are_rejected(tmp_path: Path) -> None:
    files = pack(model(), {}, int8=True)
    flipped = bytearray(files.weights)
    flipped[1000] ^= 1
    described = json.loads(files.description)
    for damaged in (
        files._replace(weights=bytes(flipped)),
        files._replace(weights=files.weights[:-4]),
        files._replace(description=files.description[:-9]),
        files._replace(description=b"[]"),
        files._replace(description=json.dumps({**described, "decoder": []}).encode()),
    ):
        with raises(CheckpointError, "damaged_model", path="test"):
            check(damaged, "test")
    newer = files._replace(description=json.dumps({**described, "format": 2}).encode())
    with raises(CheckpointError, "model_format", given=2):
        check(newer, "test")
    (tmp_path / DESCRIPTION).write_bytes(files.description)
    with raises(CheckpointError, "damaged_model", path=str(tmp_path)):
        read(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(files.weights)
    assert read(tmp_path) == ModelFiles(*files)


def test_shipped_model_is_small_and_good() -> None:
    files = read(SHIPPED)
    made = unpack(files, "oddlot")
    widths = [[layer.weight.shape for layer in layers] for _, layers in made.parts()]
    assert widths == [[(128, 784), (30, 128)], [(128, 30), (784, 128)], [(10, 128)]]
    assert made.classifier_input == "hidden"
    assert len(files.weights) < 230_000
    about = json.loads(files.description)["about"]
    assert about["accuracy"] >= 0.975
    strip = json.loads((SHIPPED / STRIP).read_bytes())
    assert strip["lost_tasks"] >= 1
    assert {end["as"] for lane in strip["lanes"] for end in lane["ends"]} >= {"lost"}
    assert "CC BY-SA 3.0" in (SHIPPED / "LICENSE.txt").read_text()
