"""Accuracy and reconstruction of `digit_autoencoder`: with and without pre-training, and the paper's recipe."""

import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Size, show
from oddlot import Local, Synchronous, fit_stages
from oddlot.workloads.digit_autoencoder import digit_autoencoder
from oddlot.workloads.digit_images import digit_images

COMPONENTS = 30
"""Components of the PCA: as many as the code has numbers."""
SMOKE: dict[str, Any] = {
    "limit": 200,
    "widths": (784, 32, 30),
    "pretrain_epochs": 1,
    "autoencoder_epochs": 1,
    "classifier_epochs": 1,
}
OPTIONS: dict[Size, dict[str, Any]] = {Size.FULL: {}, Size.SMOKE: SMOKE}
"""Options of the workload. The full form has its defaults."""
PAPER: dict[Size, dict[str, Any]] = {
    Size.FULL: {},
    Size.SMOKE: {"limit": 200, "widths": (784, 32, 16), "pretrain_epochs": 1, "classifier_epochs": 1},
}
"""Options of the paper's recipe."""


def measure(size: Size) -> dict[str, float]:
    """Print and return the figures of accuracy and reconstruction. The full form takes about 20 minutes on one core.

    Both trainings have the same epochs of fine-tuning. PCA is that of the same training images.
    """
    options = OPTIONS[size]
    trained = trained_figures(**options)
    alone = trained_figures(**{**options, "pretrain_epochs": 0})
    paper = trained_figures(**PAPER[size], recipe="paper")
    (train, _), (test, _), _ = digit_images()
    pca = pca_error(train[: options.get("limit", len(train))], test)
    rows = {"pre-trained and fine-tuned": trained, "fine-tuned only": alone, "the paper's recipe": paper}
    show(
        f"digits after training (a PCA with {COMPONENTS} components has a squared error of {pca:.2f} per image)",
        ["training", "accuracy", "squared error per image", "seconds"],
        [
            [name, f"{one['accuracy']:.4f}", f"{one['reconstruction_error']:.2f}", f"{one['seconds']:.0f}"]
            for name, one in rows.items()
        ],
    )
    return {
        "test_accuracy": trained["accuracy"],
        "test_accuracy_without_pretraining": alone["accuracy"],
        "paper_recipe_accuracy": paper["accuracy"],
        "reconstruction_error_over_pca": trained["reconstruction_error"] / pca,
        "reconstruction_error_over_pca_without_pretraining": alone["reconstruction_error"] / pca,
    }


def trained_figures(**options: Any) -> Mapping[str, float]:
    """Train the workload on one worker with one thread.

    Return the accuracy and the squared error per image on the test set, and the seconds of the run.
    """
    with TemporaryDirectory(prefix="digits-benchmark-") as folder:
        began = time.perf_counter()
        run = fit_stages(
            digit_autoencoder(**options),
            Synchronous(),
            Local(workers=1, threads=1),
            out=Path(folder) / "run",
            quiet=True,
        )
        seconds = time.perf_counter() - began
    measured = run.history[-1]
    return {name: measured[name] for name in ("accuracy", "reconstruction_error")} | {"seconds": seconds}


def pca_error(train: NDArray[np.uint8], test: NDArray[np.uint8], components: int = COMPONENTS) -> float:
    """Return the mean squared error per test image, bytes [n, 784], of a PCA of the training images.

    Pixels count from 0 to 1. On MNIST, the error of 30 components is 13.87.
    """
    fitted, given = (images.astype(np.float64) / 255 for images in (train, test))
    mean = fitted.mean(0)
    _, vectors = np.linalg.eigh((fitted - mean).T @ (fitted - mean))
    basis = vectors[:, -components:]
    rest = (given - mean) - (given - mean) @ basis @ basis.T
    return float(np.square(rest).sum(1).mean())
