"""A cache of decoded images: memory-mapped files of plain arrays in the user's cache folder.

Each state of the sources has a folder with four files. One process writes at a time, and files are written atomically.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from oddlot.checkpoint.local_storage import sync_path
from oddlot.core.support.errors import UsageError
from oddlot.core.support.user_warnings import warn
from oddlot.machines.text_files import unreadable

SPLITS = ("train", "test")
SIDE = 32
FORMAT = 1
"""Version of the decoding. A new version invalidates the cache."""
LOCK = "lock"
PARTIAL = ".partial"
PIECE_BYTES = 1 << 24

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images [n, 3, 32, 32] and classes [n]."""
Splits = Mapping[str, Split]

log = logging.getLogger(__name__)


def cached(dataset: str, sources: Sequence[Path], make: Callable[[], Splits]) -> Splits:
    """Return the result of `make()`, memory-mapped read-only. `make` is called only if the source files have changed.

    If the cache folder cannot be used or is full, warn and keep the arrays in memory. Raise UsageError if the sources
    cannot be read, or change while they are read.
    """
    mark = _fingerprint(sources)
    folder: Path | str = "a cache folder"
    with ExitStack() as closing:
        problem = ""
        try:
            folder = cache_folder() / f"{dataset}-{mark}"
            found = _opened(folder) or closing.enter_context(_held(folder))
            if found:
                return found
        except OSError as error:
            problem = error.strerror or str(error)
        log.info("%s: decoding the images%s", dataset, "" if problem else f" into the cache {folder}")
        splits = make()
        _check_unchanged(sources, mark)
        if not problem:
            try:
                return _written(Path(folder), splits)
            except OSError as error:
                problem = error.strerror or str(error)
    warn(
        f"{dataset}: the decoded images cannot be cached in {folder} ({problem}), so every run decodes them. Set "
        "ODDLOT_CACHE to another folder",
        "no_cache",
        folder=str(folder),
        reason=problem,
    )
    return splits


def cache_folder() -> Path:
    """Return the cache folder: $ODDLOT_CACHE, else $XDG_CACHE_HOME/oddlot, else ~/.cache/oddlot.

    Raise OSError if this user has no home folder.
    """
    if named := os.environ.get("ODDLOT_CACHE"):
        return Path(named).expanduser().absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "oddlot"
    except RuntimeError as error:
        raise OSError(str(error)) from None


def _check_unchanged(sources: Sequence[Path], mark: str) -> None:
    """Raise UsageError if the sources have changed since the fingerprint `mark`."""
    if _fingerprint(sources) != mark:
        folder = str(sources[0].parent)
        raise UsageError(f"{folder} was changed while it was read: try again", "file_changed", path=folder)


def _fingerprint(sources: Sequence[Path]) -> str:
    """Return a text that changes with the path, size or modification time of a file."""
    try:
        stamps = [(str(path.absolute()), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in sources]
    except OSError as error:
        raise unreadable(error.filename, error) from None
    return hashlib.sha256(json.dumps([FORMAT, stamps]).encode()).hexdigest()[:20]


@contextmanager
def _held(folder: Path) -> Iterator[Splits | None]:
    """Lock the folder for writing. Yield the splits if another process has written them already, else None."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that decodes the images into %s", folder)
            flock(file, LOCK_EX)
        yield _opened(folder)


def _paths(folder: Path, split: str) -> tuple[Path, Path]:
    return folder / f"{split}-images.npy", folder / f"{split}-labels.npy"


def _opened(folder: Path) -> Splits | None:
    """Return the memory-mapped splits, or None unless all four files are complete."""
    splits: dict[str, Split] = {}
    for split in SPLITS:
        at_images, at_labels = _paths(folder, split)
        images = _mapped(at_images, np.uint8, (3, SIDE, SIDE))
        labels = _mapped(at_labels, np.int64, ())
        if images is None or labels is None or len(images) != len(labels):
            return None
        splits[split] = images, labels
    return splits


def _mapped(path: Path, dtype: type, row: tuple[int, ...]) -> NDArray[Any] | None:
    """Return the memory-mapped array [n, *row] of a file, or None if the file is missing or has anything else."""
    try:
        array = npy.open_memmap(path, "r")
        size = path.stat().st_size
    except Exception:  # noqa: BLE001 - numpy raises various exceptions for damaged headers
        return None
    right = array.dtype == dtype and array.shape[1:] == row and array.flags.c_contiguous
    return array if right and size == array.offset + array.nbytes else None


def _written(folder: Path, splits: Splits) -> Splits:
    """Write the splits to files, and return them memory-mapped. The caller holds the folder's lock."""
    for split, arrays in splits.items():
        for path, array in zip(_paths(folder, split), arrays, strict=True):
            _write_file(path, np.ascontiguousarray(array))
    sync_path(folder)
    return _opened(folder) or splits


def _write_file(path: Path, array: NDArray[Any]) -> None:
    # This process holds the lock, so an existing partial file is left by a killed process.
    partial = path.with_suffix(PARTIAL)
    try:
        with partial.open("wb") as file:
            _write_array(file, array)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def _write_array(file: IO[bytes], array: NDArray[Any]) -> None:
    """Write an array in the format of np.save. Unlike np.save, raise errors with the system's reason."""
    npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
    content = array.reshape(-1).view(np.uint8).data
    for at in range(0, len(content), PIECE_BYTES):
        file.write(content[at : at + PIECE_BYTES])
