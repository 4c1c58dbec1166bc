"""Digits: a deep autoencoder and a classifier, with layers that are pre-trained as RBMs.

Papers: Hinton and Salakhutdinov, "Reducing the dimensionality of data with neural networks" (Science 2006), and Sun et
al., "MapReduce-based deep learning with handwritten digit recognition case study" (arXiv:1510.02709) for
`recipe="paper"`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    dropout,
)

from oddlot.core.optimizers import SGD, Adam
from oddlot.core.support.errors import InvalidValue, UnknownName
from oddlot.train.job import Job, accuracy
from oddlot.train.lr_schedules import Cosine
from oddlot.train.stages import Stage
from oddlot.workloads.contrastive_divergence import Rbm, activated, cd1, reconstructed
from oddlot.workloads.digit_images import digit_images

PIXELS, CLASSES = 784, 10
WIDTHS, PAPER_WIDTHS = (PIXELS, 1000, 500, 250, 30), (PIXELS, 1000, 300)
STD = 0.1
"""Standard deviation of initial weights."""
RATE, CODE_RATE, WEIGHT_DECAY = 0.1, 0.003, 2e-4
"""Learning rates of CD-1 for sigmoid and for linear hidden units, and its L2 penalty."""
FINE_RATE, CLASSIFIER_RATE, SOFTMAX_RATE = 1e-3, 2e-3, 0.03
"""Learning rates of Adam for the autoencoder, for the classifier, and for a softmax layer alone."""
DROPOUT = 0.1
"""Share of pixels and hidden units that fine-tuning of the classifier leaves out of each pass."""
EPOCHS, SMALL_EPOCHS = (4, 6, 12), (10, 40, 20)
"""Default epochs of pre-training, autoencoder and classifier, with MNIST and with the packaged digits."""
PAPER_ITERATIONS, PAPER_EPOCHS, PAPER_ROWS = 20, 10, 1_000
"""Iterations for each layer, epochs of the softmax layer, and samples per pass of a full batch."""
RECIPES = ("", "paper")


class DigitNetwork(nn.Module):
    """An encoder, a decoder and a classifier of images with 784 pixels from 0 (paper) to 1 (ink).

    Hidden layers are sigmoid. The code is linear, and the classifier is an encoder of its own without the code. With
    `is_linear=False`, the code is sigmoid too, and part of the classifier. All biases start at 0. The decoder starts as
    the transpose of the encoder, and the classifier as its copy: CD-1 trains all three with the same directions.
    """

    def __init__(self, widths: Sequence[int] = WIDTHS, *, is_linear: bool = True) -> None:
        super().__init__()
        self.is_linear = is_linear
        below = [*(widths[:-1] if is_linear else widths), CLASSES]
        self.encoder = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.decoder = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths[::-1]))
        self.classifier = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(below))
        encoder, decoder, classifier = (
            [layer for layer in part if isinstance(layer, nn.Linear)]
            for part in (self.encoder, self.decoder, self.classifier)
        )
        for layer in (*encoder, *decoder, *classifier):
            nn.init.normal_(layer.weight, std=STD)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            for layer, mirror in zip(encoder, reversed(decoder), strict=True):
                mirror.weight.copy_(layer.weight.T)
            for layer, copy in zip(encoder, classifier[:-1], strict=False):
                copy.weight.copy_(layer.weight)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return the codes [n, code] of images [n, 784]."""
        code = _through(self.encoder, pixels)
        return code if self.is_linear else torch.sigmoid(code)

    def decode(self, code: Tensor) -> Tensor:
        """Return the images [n, 784], from 0 to 1, of codes [n, code]."""
        return torch.sigmoid(_through(self.decoder, code))

    def classify(self, pixels: Tensor) -> Tensor:
        """Return the logits [n, 10] of images [n, 784]."""
        return _through(self.classifier, pixels)

    def visible(self, layer: int, pixels: Tensor) -> Tensor:
        """Return the input of a layer of the encoder."""
        for each in self.encoder[:layer]:
            pixels = torch.sigmoid(each(pixels))
        return pixels

    def rbm(self, layer: int) -> Rbm:
        """Return a layer of the encoder as an RBM. The mirrored layer of the decoder has its visible biases."""
        encoder: Any = self.encoder[layer]
        decoder: Any = self.decoder[len(self.encoder) - 1 - layer]
        return Rbm(encoder.weight, encoder.bias, decoder.bias)


def _through(layers: nn.ModuleList, given: Tensor) -> Tensor:
    """Return the output of linear layers with sigmoids between them."""
    *below, top = layers
    for each in below:
        given = torch.sigmoid(each(given))
    output: Tensor = top(given)
    return output


@dataclass(frozen=True)
class PreTraining:
    """The direction of CD-1 for one layer of a `DigitNetwork`, and the layer's reconstruction for metrics."""

    layer: int
    is_linear: bool
    weight_decay: float = 0.0
    has_biases: bool = True

    def __call__(self, model: Any, batch: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return the directions of the layer, of its mirror in the decoder and of its copy in the classifier."""
        visible = model.visible(self.layer, _pixels(batch))
        found, error = cd1(
            model.rbm(self.layer), visible, is_linear=self.is_linear, weight_decay=self.weight_decay
        )
        mirror = len(model.encoder) - 1 - self.layer
        is_shared = self.layer < len(model.classifier) - 1
        copies = [f"{name}.{self.layer}" for name in ("encoder", *(["classifier"] if is_shared else []))]
        named = {f"{name}.weight": found.weight for name in copies} | {
            f"decoder.{mirror}.weight": found.weight.T
        }
        if self.has_biases:
            named |= {f"{name}.bias": found.hidden_bias for name in copies}
            named |= {f"decoder.{mirror}.bias": found.visible_bias}
        return named, {"loss": error}

    def predict(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the reconstruction of the layer's input without sampling, and the input."""
        visible = model.visible(self.layer, _pixels(batch))
        hidden = activated(model.rbm(self.layer), visible, is_linear=self.is_linear)
        return reconstructed(model.rbm(self.layer), hidden), visible


def _pixels(batch: Any) -> Tensor:
    """Return the images of a batch as numbers from 0 to 1."""
    pixels: Tensor = batch[0].float() / 255
    return pixels


def squared_error(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over samples of the squared error, summed over the numbers of a sample."""
    return (outputs - targets).square().sum(1).mean().item()


def _image_error(outputs: Tensor, targets: Tensor) -> float:
    return squared_error(outputs[:, :PIXELS], targets[:, :PIXELS])


def _reconstruction_loss(model: Any, batch: Any) -> Tensor:
    pixels = _pixels(batch)
    logits = _through(model.decoder, model.encode(pixels))
    return binary_cross_entropy_with_logits(logits, pixels, reduction="sum") / len(pixels)


def _reconstruction(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    pixels = _pixels(batch)
    return model.decode(model.encode(pixels)), pixels


def _cross_entropy_per_image(outputs: Tensor, targets: Tensor) -> Tensor:
    return binary_cross_entropy(outputs, targets, reduction="sum") / len(targets)


def _class_loss(model: Any, batch: Any) -> Tensor:
    """Return the loss of the classifier with dropout. Evaluations use another function, without dropout."""
    *below, top = model.classifier
    features = dropout(_pixels(batch), DROPOUT)
    for each in below:
        features = dropout(torch.sigmoid(each(features)), DROPOUT)
    return cross_entropy(top(features), batch[1])


def _softmax_loss(model: Any, batch: Any) -> Tensor:
    """Return the loss of the classifier if only its last layer is trained."""
    *below, top = model.classifier
    with torch.no_grad():
        features = _pixels(batch)
        for each in below:
            features = torch.sigmoid(each(features))
    return cross_entropy(top(features), batch[1])


def _image_and_class(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return reconstructions and logits, [n, 794], and pixels and classes, [n, 785]."""
    image, pixels = _reconstruction(model, batch)
    return torch.cat([image, model.classify(pixels)], 1), torch.cat([pixels, batch[1].float()[:, None]], 1)


def _class_accuracy(outputs: Tensor, targets: Tensor) -> float:
    return accuracy(outputs[:, PIXELS:], targets[:, PIXELS].long())


def _evaluated_class_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs[:, PIXELS:], targets[:, PIXELS].long())


FINAL_METRICS = {"accuracy": _class_accuracy, "reconstruction_error": _image_error}


def digit_autoencoder(
    data_dir: str = "",
    recipe: str = "",
    widths: Sequence[int] = (),
    pretrain_epochs: int | None = None,
    autoencoder_epochs: int | None = None,
    classifier_epochs: int | None = None,
    batch_size: int = 128,
    limit: int = 0,
) -> list[Stage]:
    """Digits of 28 x 28 pixels: an autoencoder with 30 numbers as code, and a classifier, with pre-trained layers.

    A run has a stage for each layer, one for the autoencoder, and one for the classifier. `reconstruction_error` is the
    squared error per image.

    Args:
        data_dir: Folder of MNIST's files. Empty: $ODDLOT_DATA or, if it has no MNIST, the packaged digits, scaled up.
        recipe: Empty, or `paper` for Sun et al. 2015: full batches, no biases, no momentum, no fine-tuning, and a
            softmax layer on the top features.
        widths: Numbers of units from the pixels to the code. Empty: 784, 1000, 500, 250, 30, or 784, 1000, 300.
        pretrain_epochs: Epochs for each layer. 0: no pre-training. Default: 4, or 10 with the packaged digits.
        autoencoder_epochs: Epochs of fine-tuning the autoencoder. 0: none. Default: 6, or 40 with the packaged digits.
        classifier_epochs: Epochs of fine-tuning the classifier. 0: none. Default: 12, or 20 with the packaged digits.
        batch_size: Samples per minibatch.
        limit: Number of training images. 0: all.
    """
    if recipe not in RECIPES:
        raise UnknownName("recipe", recipe, RECIPES[1:], key="recipe")
    is_paper = recipe == "paper"
    widths = tuple(widths) or (PAPER_WIDTHS if is_paper else WIDTHS)
    train, test, is_mnist = digit_images(data_dir)
    defaults = (PAPER_ITERATIONS, 0, PAPER_EPOCHS) if is_paper else EPOCHS if is_mnist else SMALL_EPOCHS
    given = (pretrain_epochs, autoencoder_epochs, classifier_epochs)
    epochs = tuple(default if one is None else one for one, default in zip(given, defaults, strict=True))
    _check(widths, epochs, limit, len(train[0]))
    job = Job(
        partial(DigitNetwork, widths, is_linear=not is_paper),
        _part(train, limit or len(train[0])),
        training_step=_class_loss,
        eval_data=_part(test, len(test[0])),
        optimizer=Adam(lr=FINE_RATE),
        batch_size=batch_size,
        name="digit_autoencoder",
    )
    return _paper_stages(job, widths, epochs) if is_paper else _stages(job, widths, epochs)


def _part(images: tuple[Any, Any], count: int) -> tuple[Any, Any]:
    """Return the first images as bytes, and their classes as int64."""
    return images[0][:count], images[1][:count].astype(np.int64)


def _check(widths: Sequence[Any], epochs: Sequence[Any], limit: int, images: int) -> None:
    """Raise InvalidValue for an invalid option."""
    sizes = [type(one) is int and one > 0 for one in widths]
    if len(widths) < 2 or not all(sizes) or widths[0] != PIXELS:
        raise InvalidValue("widths", list(widths), f"a list of numbers of units that starts with {PIXELS}")
    names = ("pretrain_epochs", "autoencoder_epochs", "classifier_epochs")
    for name, count in zip(names, epochs, strict=True):
        if type(count) is not int or count < 0:
            raise InvalidValue(name, count, "an integer, 0 or larger")
    if not any(epochs):
        raise InvalidValue("classifier_epochs", 0, "above 0, because no other stage has epochs")
    if not 0 <= limit <= images:
        raise InvalidValue("limit", limit, f"from 0 to {images}, the number of training images")


def _stages(job: Job, widths: Sequence[int], epochs: Sequence[int]) -> list[Stage]:
    """Return the stages: each layer with momentum 0.5 in the first epoch and then 0.9, autoencoder, classifier."""
    pretrain, autoencoder, classifier = epochs
    stages = list[Stage]()
    for layer in range(len(widths) - 1):
        is_linear = layer == len(widths) - 2
        made = partial(_layer_stage, job, PreTraining(layer, is_linear, WEIGHT_DECAY))
        rate = CODE_RATE if is_linear else RATE
        if pretrain:
            stages.append(made(f"layer_{layer + 1}_start", SGD(rate, momentum=0.5), 1))
        if pretrain > 1:
            stages.append(made(f"layer_{layer + 1}", SGD(rate, momentum=0.9), pretrain - 1))
    if autoencoder:
        tuned = replace(
            job,
            training_step=_reconstruction_loss,
            loss=_cross_entropy_per_image,
            predict=_reconstruction,
            metrics={"reconstruction_error": squared_error},
            lr_schedule=Cosine(autoencoder),
        )
        stages.append(Stage("autoencoder", tuned, autoencoder))
    if classifier:
        adam = Adam(lr=CLASSIFIER_RATE)
        tuned = replace(_classifying(job), optimizer=adam, lr_schedule=Cosine(classifier))
        stages.append(Stage("classifier", tuned, classifier))
    return stages


def _classifying(job: Job) -> Job:
    return replace(job, loss=_evaluated_class_loss, predict=_image_and_class, metrics=FINAL_METRICS)


def _layer_stage(job: Job, step: PreTraining, name: str, optimizer: SGD, epochs: int) -> Stage:
    own = replace(
        job,
        training_step=None,
        direction=step,
        predict=step.predict,
        metrics={"layer_error": squared_error},
        optimizer=optimizer,
    )
    return Stage(name, own, epochs)


def _paper_stages(job: Job, widths: Sequence[int], epochs: Sequence[int]) -> list[Stage]:
    """Return the stages of Sun et al.: one update of a layer in each epoch, and a softmax layer on the top features."""
    full = replace(job, batch_size=len(job.train_data[0]), micro_batch_size=PAPER_ROWS)
    steps = [PreTraining(layer, is_linear=False, has_biases=False) for layer in range(len(widths) - 1)]
    stages = [
        replace(
            _layer_stage(full, step, f"layer_{step.layer + 1}", SGD(RATE, momentum=0.0), epochs[0]),
            epoch_barrier=True,
        )
        for step in steps
        if epochs[0]
    ]
    if epochs[2]:
        softmax = replace(
            _classifying(job),
            training_step=_softmax_loss,
            optimizer=Adam(lr=SOFTMAX_RATE),
            lr_schedule=Cosine(epochs[2]),
        )
        stages.append(Stage("softmax", softmax, epochs[2]))
    return stages
