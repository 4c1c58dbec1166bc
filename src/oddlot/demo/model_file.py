"""The file format of the page's model: weights in a binary file, and a JSON description.

    model.json    format, file, bytes, crc32, classifier_input, about, and for each layer of each part:
                  shape [outputs, inputs], dtype (`int8` or `float32`), offsets in bytes of `weight`, `bias` and `scale`
    weights.bin   arrays in C order, little-endian, each aligned to 4 bytes

An int8 row `q` with the scale `s` stands for the weights `q * s`. Scales and biases are float32.
"""

import json
from binascii import crc32
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import CheckpointError
from oddlot.demo.digit_model import PARTS, DigitModel, Layer

FORMAT = 1
DESCRIPTION, WEIGHTS = "model.json", "weights.bin"
ALIGNMENT = 4
MOST = 127
"""Largest absolute int8 value of a weight."""
Arrays = dict[str, NDArray[Any]]


class ModelFiles(NamedTuple):
    """The content of `model.json` and `weights.bin`."""

    description: bytes
    weights: bytes


def pack(model: DigitModel, about: Mapping[str, Any], *, int8: bool) -> ModelFiles:
    """Return the files of a model. `about` is a JSON object for the page: name, source, accuracy."""
    data = bytearray()
    parts = {name: [_packed(layer, data, int8=int8) for layer in layers] for name, layers in model.parts()}
    description = {
        "format": FORMAT,
        "file": WEIGHTS,
        "bytes": len(data),
        "crc32": crc32(data),
        "classifier_input": model.classifier_input,
        "about": dict(about),
        **parts,
    }
    return ModelFiles(json.dumps(description, indent=1).encode() + b"\n", bytes(data))


def _packed(layer: Layer, data: bytearray, *, int8: bool) -> dict[str, Any]:
    """Append the arrays of a layer, and return its description."""
    arrays: Arrays = {"weight": layer.weight, "bias": layer.bias}
    if int8:
        scale = np.abs(layer.weight).max(axis=1) / MOST
        scale[scale == 0] = 1
        arrays |= {"weight": np.rint(layer.weight / scale[:, None]).astype(np.int8), "scale": scale}
    entry: dict[str, Any] = {"shape": list(layer.weight.shape), "dtype": str(arrays["weight"].dtype)}
    for name, array in arrays.items():
        entry[name] = len(data)
        data += array.astype(array.dtype.newbyteorder("<")).tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    return entry


def read(folder: Path) -> ModelFiles:
    """Return the checked files in a folder. Raise CheckpointError if one is missing or damaged."""
    try:
        files = ModelFiles((folder / DESCRIPTION).read_bytes(), (folder / WEIGHTS).read_bytes())
    except OSError as error:
        raise _damaged(f"cannot be read ({error.strerror})", str(folder)) from error
    check(files, str(folder))
    return files


def check(files: ModelFiles, origin: str) -> dict[str, Any]:
    """Return the description. Raise CheckpointError if the files are damaged or have another format."""
    try:
        described: dict[str, Any] = json.loads(files.description)
        found, expected = (described["format"], described["bytes"], described["crc32"]), len(files.weights)
        complete = all(described[part] for part in PARTS)
    except (ValueError, TypeError, LookupError) as error:
        raise _damaged(f"has an invalid {DESCRIPTION} ({error})", origin) from error
    if found[0] != FORMAT:
        message = (
            f"the model in {origin} has the format {found[0]}, and this version of oddlot reads {FORMAT}"
        )
        raise CheckpointError(
            f"{message}: install the same version", "model_format", path=origin, given=found[0]
        )
    if found[1] != expected:
        raise _damaged(f"has {expected:,} bytes of weights instead of {found[1]:,}", origin)
    if found[2] != crc32(files.weights) or not complete:
        raise _damaged("has weights with another checksum", origin)
    return described


def _damaged(problem: str, origin: str) -> CheckpointError:
    message = f"the model in {origin} {problem}: install oddlot again, or name a RUN of digit_autoencoder"
    return CheckpointError(message, "damaged_model", path=origin, reason=problem)
