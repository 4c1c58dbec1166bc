"""Reading the files of the model of the page, which `oddlot.demo.model_file` writes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from oddlot.demo.digit_model import PARTS, DigitModel, Layer
from oddlot.demo.model_file import ModelFiles, check


def unpack(files: ModelFiles, origin: str) -> DigitModel:
    """Return the model of these files. Raise CheckpointError as `check` does."""
    entries = check(files, origin)
    return DigitModel(
        **{part: tuple(_unpacked(one, files.weights) for one in entries[part]) for part in PARTS}
    )


def _unpacked(entry: Mapping[str, Any], data: bytes) -> Layer:
    rows, columns = entry["shape"]
    dtype = np.dtype(entry["dtype"]).newbyteorder("<")
    weight = np.frombuffer(data, dtype, rows * columns, entry["weight"]).reshape(rows, columns)
    if "scale" in entry:
        weight = weight.astype(np.float32) * np.frombuffer(data, "<f4", rows, entry["scale"])[:, None]
    return Layer(
        weight.astype(np.float32), np.frombuffer(data, "<f4", rows, entry["bias"]).astype(np.float32)
    )
