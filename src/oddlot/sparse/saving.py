"""A classifier as one file: its weights, its settings, and a checksum of both."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

FILE = "classifier.safetensors"
SETTINGS, CHECKSUM = "settings", "sha256"
"""beside the weights, in the file's header"""


def write(folder: str | Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Write both into a folder, which is made if it is not there. What was there before stays until all is written.

    OSError: it cannot be written, as on a full disk. ValueError: the folder has no name.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if not str(folder):
        raise ValueError("folder = '': the name of a folder is expected")
    if Path(folder).is_file():
        raise NotADirectoryError(f"{folder} is a file: a folder is expected")
    Path(folder).mkdir(parents=True, exist_ok=True)
    told = json.dumps(settings, default=np.generic.item)
    path, new = Path(folder) / FILE, Path(folder) / f"{FILE}.new"
    try:
        new.unlink(missing_ok=True)  # of a process that was killed
        new.touch()  # with the mode that files have here, which it keeps
        mode = new.stat().st_mode
        save_file(dict(weights), new, {SETTINGS: told, CHECKSUM: _checksum(told, weights)})
        new.chmod(mode)
        new.replace(path)
    except OSError as error:  # of a file that its user has not heard of
        raise OSError(error.errno, error.strerror, str(path)) from None
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from None
    finally:
        new.unlink(missing_ok=True)


def read(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and weights of a folder. FileNotFoundError: it has none. ValueError: they are not as written."""
    from safetensors import SafetensorError, safe_open

    path = Path(folder) / FILE
    if Path(folder).is_file():
        raise FileNotFoundError(f"{folder} is a file: the folder that it is in is expected")
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {FILE}: it is no folder of a saved classifier")
    try:
        with safe_open(path, "pt") as file:
            told = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        if CHECKSUM not in told:
            raise FileNotFoundError(f"{path} is another one's: it is no file of a saved classifier")
        if told[CHECKSUM] != _checksum(told.get(SETTINGS, ""), weights):
            raise ValueError("it has not the checksum that it was written with")
        return json.loads(told[SETTINGS]), weights
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _checksum(settings: str, weights: Mapping[str, Tensor]) -> str:
    made = hashlib.sha256(settings.encode())
    for name in sorted(weights):
        made.update(f"{name} {weights[name].dtype} {tuple(weights[name].shape)}".encode())
        made.update(weights[name].contiguous().numpy().data)
    return made.hexdigest()
