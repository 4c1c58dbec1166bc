"""The layers of a network for handwritten digits: an encoder, a decoder and a classifier."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import CheckpointError, UsageError

Floats = NDArray[np.float32]
PIXELS, CODE, CLASSES = 28 * 28, 30, 10
PARTS = ("encoder", "decoder", "classifier")
HINT = "train one with `oddlot train digit_autoencoder`, or leave RUN out for the model that oddlot ships"


@dataclass(frozen=True)
class Layer:
    """A linear layer: `weight` float32 [outputs, inputs] and `bias` float32 [outputs]."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True)
class DigitModel:
    """A network of sigmoid layers on 784 pixels, row by row, from 0 (paper) to 1 (ink).

    The encoder returns a linear code of 30 numbers. The decoder ends with a sigmoid. The classifier returns logits.
    """

    encoder: tuple[Layer, ...]
    decoder: tuple[Layer, ...]
    classifier: tuple[Layer, ...]

    @property
    def classifier_input(self) -> Literal["pixels", "hidden"]:
        """Return whether the classifier reads the pixels, or the output of the first hidden layer of the encoder."""
        return "pixels" if self.classifier[0].weight.shape[1] == PIXELS else "hidden"

    def parts(self) -> Iterator[tuple[str, tuple[Layer, ...]]]:
        """Yield the name and the layers of each part."""
        yield from ((name, getattr(self, name)) for name in PARTS)

    @classmethod
    def of(cls, state: Mapping[str, NDArray[np.floating]], origin: str) -> Self:
        """Return the model in a state dict with names such as `encoder.0.weight`. `origin` names its run in errors.

        Raises:
            UsageError: Parameters are missing, shapes differ from a network for digits, or the code is sigmoid.
            CheckpointError: A weight is NaN or infinite.
        """
        parts = {part: tuple(_layers(state, part)) for part in PARTS}
        missing = [part for part, layers in parts.items() if not layers]
        if missing:
            message = (
                f"{origin} has no parameters {', '.join(f'{part}.0.weight' for part in missing)}: {HINT}"
            )
            raise UsageError(message, "not_a_digit_model", origin=origin, missing=missing)
        model = cls(**parts)
        _check_code(model, origin)
        _check_shapes(model, origin)
        _check_finite(state, origin)
        return model


def _layers(state: Mapping[str, NDArray[np.floating]], part: str) -> Iterator[Layer]:
    """Yield the layers of a part, until a number is missing."""
    number = 0
    while (weight := state.get(f"{part}.{number}.weight")) is not None:
        bias = state.get(f"{part}.{number}.bias")
        zeros = np.zeros(len(weight), np.float32)
        yield Layer(weight.astype(np.float32), zeros if bias is None else bias.astype(np.float32))
        number += 1


def _check_code(model: DigitModel, origin: str) -> None:
    """Raise UsageError if the page cannot decode the code: it is sigmoid, or has another width.

    A classifier that is deeper than the encoder has the code as its last hidden layer, so the code is sigmoid.
    """
    if model.classifier_input == "pixels" and len(model.classifier) > len(model.encoder):
        message = (
            f"{origin} has a classifier on a sigmoid code, as with recipe=paper, and the page decodes linear codes: "
            "train without workload.recipe, or leave RUN out for the model that oddlot ships"
        )
        raise UsageError(message, "sigmoid_code", origin=origin)
    if (width := len(model.encoder[-1].bias)) != CODE:
        message = (
            f"{origin} has a code of {width} numbers, and the page shows {CODE}: train with {CODE} as the last number "
            "of workload.widths, or leave RUN out for the model that oddlot ships"
        )
        raise UsageError(message, "other_code_width", origin=origin, width=width)


def _check_shapes(model: DigitModel, origin: str) -> None:
    first = PIXELS if model.classifier_input == "pixels" else len(model.encoder[0].bias)
    ends = {"encoder": (PIXELS, CODE), "decoder": (CODE, PIXELS), "classifier": (first, CLASSES)}
    for part, layers in model.parts():
        width, last = ends[part]
        for number, layer in enumerate(layers):
            outputs = last if layer is layers[-1] else len(layer.bias)
            if layer.weight.shape != (outputs, width) or layer.bias.shape != (outputs,):
                name, shape = f"{part}.{number}.weight", list(layer.weight.shape)
                message = f"{origin} has {name} of shape {shape} instead of {[outputs, width]}: {HINT}"
                raise UsageError(message, "not_a_digit_model", origin=origin, name=name, shape=shape)
            width = outputs


def _check_finite(state: Mapping[str, NDArray[np.floating]], origin: str) -> None:
    invalid = [name for name, values in state.items() if not np.isfinite(values).all()]
    if invalid:
        message = (
            f"{origin} has weights that are NaN or infinite, in {invalid[0]}: train again with a lower rate"
        )
        raise CheckpointError(message, "weights_not_finite", origin=origin, names=invalid)
