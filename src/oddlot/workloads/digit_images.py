"""Images of digits of 28 x 28 pixels: MNIST if its files are present, else the packaged digits, scaled up."""

import logging
import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate, pad

from oddlot.core.support.errors import UsageError
from oddlot.workloads.digits import packaged_digits
from oddlot.workloads.mnist import MNIST, MNIST_SOURCE, SIDE, Images, read_images

BOX = 20
"""Width of the centred box that a digit fills, as in MNIST."""
DARKEST = 16
"""Largest value of a packaged pixel."""
logger = logging.getLogger(__name__)


def digit_images(data_dir: str = "") -> tuple[Images, Images, bool]:
    """Return training and test images, and whether they are MNIST.

    Images are bytes [n, 784], 0 for paper and 255 for ink, row by row, with classes [n] from 0 to 9. Raise UsageError
    if `data_dir` is given and has no MNIST, or if files of MNIST are invalid.
    """
    if data_dir or os.environ.get("ODDLOT_DATA"):
        try:
            train, test = (_rows(part) for part in read_images(MNIST, MNIST_SOURCE, data_dir))
        except UsageError as error:
            if data_dir or error.code != "missing_data" or error.fields["others_in"]:
                raise
        else:
            return train, test, True
    logger.info("MNIST is not in $ODDLOT_DATA: training with the packaged digits of 8 x 8 pixels, scaled up")
    small = packaged_digits()
    train, test = (_rows((scaled_up(images), labels)) for images, labels in small)
    return train, test, False


def _rows(part: Images) -> Images:
    return part[0].reshape(len(part[0]), -1), part[1]


def scaled_up(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return packaged digits, bytes [n, 8, 8] from 0 to 16, as bytes [n, 28, 28] from 0 to 255, centred like MNIST."""
    pixels = torch.from_numpy(images.astype(np.float32)).unsqueeze(1) * (255 / DARKEST)
    large = interpolate(pixels, size=(BOX, BOX), mode="bilinear", align_corners=False)
    margin = (SIDE - BOX) // 2
    found: NDArray[np.uint8] = pad(large, (margin,) * 4).squeeze(1).round().to(torch.uint8).numpy()
    return found
