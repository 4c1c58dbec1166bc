"""Train the model that the page of `oddlot demo digits` ships: `python -m tools.make_digits_model`.

It needs MNIST in $ODDLOT_DATA, and writes src/oddlot/demo/model: model.json, weights.bin and strip.json. Three workers
train it. Two of them are killed, so that the strip of the page shows lost parts.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import oddlot
from oddlot.core.support.text import in_bytes
from oddlot.demo.digit_model import CLASSES, CODE, PIXELS, DigitModel
from oddlot.demo.model_file import DESCRIPTION, WEIGHTS, ModelFiles, pack
from oddlot.demo.site import MODEL_LICENSE
from oddlot.demo.training_strip import training_strip
from oddlot.faults import Chaos, Fault
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import RunFolder
from oddlot.workloads.formats.idx import find_idx, read_idx
from tools.digit_augmentation import augmented
from tools.digit_model_files import unpack

FOLDER = Path(oddlot.__file__).parent / "demo" / "model"
HIDDEN = 128
EPOCHS = 50
BATCH = 64
WORKERS = 3
RATE = 2e-3
RECONSTRUCTION = 8.0
"""Weight of the reconstruction, which is a mean over pixels, in the loss."""
KILLS = {"w2": 0.3, "w3": 0.65}
"""Killed workers, and the share of the training before."""
SOURCE = "the yann.lecun.com files of MNIST, as in https://ossci-datasets.s3.amazonaws.com/mnist"
LEAST_ACCURACY = 0.975


class SharedDigitNetwork(nn.Module):
    """An autoencoder 784-128-30-128-784, and a classifier 128-10 on its first hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([nn.Linear(PIXELS, HIDDEN), nn.Linear(HIDDEN, CODE)])
        self.decoder = nn.ModuleList([nn.Linear(CODE, HIDDEN), nn.Linear(HIDDEN, PIXELS)])
        self.classifier = nn.ModuleList([nn.Linear(HIDDEN, CLASSES)])

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the classes [n, 10] and of the decoded pixels [n, 784]."""
        hidden = torch.sigmoid(self.encoder[0](pixels))
        inner = torch.sigmoid(self.decoder[0](self.encoder[1](hidden)))
        return self.classifier[0](hidden), self.decoder[1](inner)


def training_step(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of a batch of augmented pictures."""
    pictures, labels = batch
    pixels = augmented(pictures.float() / 255).flatten(1)
    logits, decoded = model(pixels)
    reconstruction = binary_cross_entropy_with_logits(decoded, pixels)
    return cross_entropy(logits, labels) + RECONSTRUCTION * reconstruction


def predict(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return the logits with the squared error of each reconstruction as an eleventh column, and the labels."""
    pictures, labels = batch
    pixels = (pictures.float() / 255).flatten(1)
    logits, decoded = model(pixels)
    error = (torch.sigmoid(decoded) - pixels).square().sum(1, keepdim=True)
    return torch.cat([logits, error], 1), labels


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of recognized digits."""
    return float((outputs[:, :CLASSES].argmax(1) == labels).float().mean())


def reconstruction_error(outputs: Tensor, _: Tensor) -> float:
    """Return the mean squared error of a picture, summed over its pixels."""
    return float(outputs[:, CLASSES].mean())


def main() -> None:
    """Train, quantize, check and write the model."""
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    arrays = [read_idx(file) for file in find_idx("mnist", names, SOURCE, "")]
    train, test = ((arrays[at], arrays[at + 1].astype(np.int64)) for at in (0, 2))
    job = oddlot.Job(
        model=SharedDigitNetwork,
        train_data=train,
        eval_data=test,
        training_step=training_step,
        predict=predict,
        metrics={"accuracy": accuracy, "reconstruction_error": reconstruction_error},
        optimizer=oddlot.Adam(lr=RATE),
        lr_schedule=oddlot.lr_schedules.Cosine(epochs=EPOCHS, warmup_epochs=1),
        batch_size=BATCH,
        name="digits of the page",
    )
    versions = EPOCHS * len(train[1]) // (BATCH * WORKERS)
    kills = [Fault("kill", name, at_versions=(int(share * versions),)) for name, share in KILLS.items()]
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = oddlot.fit(
            job,
            oddlot.Synchronous(),
            oddlot.Local(workers=WORKERS),
            until=f"epochs>={EPOCHS}",
            evaluate_every="2 epochs",
            chaos=Chaos(kills),
            out=out,
            seed=0,
        )
        strip = training_strip(read_run_log(RunFolder(out)), "Training of the shipped model")
        state = {name: tensor.numpy() for name, tensor in oddlot.load(run).items()}
    write(DigitModel.of(state, "the run"), strip, test)


def write(model: DigitModel, strip: dict[str, Any], test: tuple[Any, Any]) -> None:
    """Write the files. Exit with a message if the accuracy of the int8 model is too low."""
    measured = measure(unpack(pack(model, {}, int8=True), "the new model"), test)
    about = {
        "name": "the model that oddlot ships",
        "source": "Trained on MNIST by tools/make_digits_model.py.",
        "license": MODEL_LICENSE,
        **{name: round(value, 4) for name, value in measured.items()},
    }
    files = pack(model, about, int8=True)
    print(f"{measured}, {in_bytes(len(files.weights))}")
    if measured["accuracy"] < LEAST_ACCURACY:
        sys.exit(f"accuracy {measured['accuracy']:.4f} is below {LEAST_ACCURACY}: nothing is written")
    FOLDER.mkdir(exist_ok=True)
    for name, content in zip((DESCRIPTION, WEIGHTS), ModelFiles(*files), strict=True):
        (FOLDER / name).write_bytes(content)
    (FOLDER / "strip.json").write_text(json.dumps(strip) + "\n")


def measure(model: DigitModel, test: tuple[Any, Any]) -> dict[str, float]:
    """Return the metrics of a model on test data, with the rounded weights."""
    network = SharedDigitNetwork()
    state = {
        f"{part}.{number}.{name}": torch.from_numpy(getattr(layer, name))
        for part, layers in model.parts()
        for number, layer in enumerate(layers)
        for name in ("weight", "bias")
    }
    network.load_state_dict(state)
    with torch.no_grad():
        outputs, labels = predict(network, (torch.from_numpy(test[0]), torch.from_numpy(test[1])))
    found = {"accuracy": accuracy(outputs, labels)}
    return found | {"reconstruction_error": reconstruction_error(outputs, labels)}


if __name__ == "__main__":
    main()
