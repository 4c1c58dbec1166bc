"""Saving a classifier as one file with its weights, its settings, and a checksum of both."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from oddlot.sparse.errors import coded, invalid_value

FILE = "classifier.safetensors"
SETTINGS, CHECKSUM = "settings", "sha256"
"""Keys in the file's header."""


def write(folder: str | Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Write settings and weights into a folder. Create the folder if needed.

    The new file replaces an earlier one only when it is complete. Raise OSError if the file cannot be written, and
    ValueError if the folder has no name.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if not str(folder):
        raise invalid_value("folder", "", "the name of a folder")
    folder = Path(folder).expanduser()
    if folder.is_file():
        message = f"{folder} is a file: pass a folder"
        raise coded(NotADirectoryError(message), "not_a_folder", path=str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(settings, default=np.generic.item)
    path, new = folder / FILE, folder / f"{FILE}.new"
    try:
        new.unlink(missing_ok=True)  # left by a process that was killed
        new.touch()  # to get the default file mode
        mode = new.stat().st_mode
        save_file(dict(weights), new, {SETTINGS: text, CHECKSUM: _checksum(text, weights)})
        new.chmod(mode)
        new.replace(path)
    except (OSError, SafetensorError) as error:  # its message has the name of the temporary file
        raise _unwritable(path, error) from None
    finally:
        new.unlink(missing_ok=True)


def _unwritable(path: Path, error: Exception) -> OSError:
    if isinstance(error, OSError):
        known, reason = OSError(error.errno, error.strerror, str(path)), error.strerror
    else:
        known, reason = OSError(f"{path} cannot be written: {error}"), str(error)
    return coded(known, "unwritable_file", path=str(path), reason=reason)


def read(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings and weights of a folder.

    Raise FileNotFoundError if they are missing, and ValueError if they are damaged.
    """
    from safetensors import SafetensorError, safe_open

    path = _file_in(folder)
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        is_whole = header.get(CHECKSUM) == _checksum(header.get(SETTINGS, ""), weights)
        settings = json.loads(header[SETTINGS]) if is_whole else {}
    except (ValueError, SafetensorError) as error:
        message = f"{path} is damaged: {error}"
        raise coded(ValueError(message), "damaged_file", path=str(path), reason=str(error)) from None
    if CHECKSUM not in header:
        message = f"{path} is not the file of a saved classifier"
        raise coded(FileNotFoundError(message), "other_format", path=str(path))
    if not is_whole:
        message = f"{path} is damaged: its checksum does not match"
        raise coded(ValueError(message), "wrong_checksum", path=str(path))
    return settings, weights


def _file_in(folder: str | Path) -> Path:
    """Return the path of the file. Raise FileNotFoundError if it is missing."""
    folder = Path(folder).expanduser()
    path = folder / FILE
    if folder.is_file():
        message = f"{folder} is a file: pass the folder that it is in"
        raise coded(FileNotFoundError(message), "not_a_folder", path=str(folder))
    if not path.is_file():
        message = f"{folder} has no {FILE}: it is not the folder of a saved classifier"
        raise coded(FileNotFoundError(message), "missing_file", path=str(path))
    return path


def _checksum(settings: str, weights: Mapping[str, Tensor]) -> str:
    made = hashlib.sha256(settings.encode())
    for name in sorted(weights):
        made.update(f"{name} {weights[name].dtype} {tuple(weights[name].shape)}".encode())
        made.update(weights[name].contiguous().numpy().data)
    return made.hexdigest()
