"""Data for --smoke, in the file formats of the public datasets."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Size

TRAIN, TEST = 400, 50
"""Numbers of images, of the 1,437 and 360 packaged digits."""


@contextmanager
def data(size: Size, *writers: Callable[[Path], None]) -> Iterator[None]:
    """Point ODDLOT_DATA to a temporary folder with the files of `writers`. Only for --smoke."""
    if size is not Size.SMOKE:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="smoke-benchmark-") as folder:
        for write in writers:
            write(Path(folder))
        with patch.dict(os.environ, {"ODDLOT_DATA": folder}):
            yield


def pictures(folder: Path) -> None:
    """Write MNIST and Fashion-MNIST: the packaged digits, each pixel as 3 x 3 pixels, with a margin of 2."""
    from oddlot.workloads.digits import digits

    job = digits()
    for name in ("mnist", "fashion_mnist"):
        (folder / name).mkdir()
        for part, (small, labels), count in (("train", job.train_data, TRAIN), ("t10k", job.eval_data, TEST)):
            some = np.random.default_rng(0).permutation(len(labels))[:count]
            large = np.pad(15 * small[some].repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
            _write_idx(folder / name / f"{part}-images-idx3-ubyte", large)
            _write_idx(folder / name / f"{part}-labels-idx1-ubyte", labels[some])


def _write_idx(path: Path, values: NDArray[np.generic]) -> None:
    """Write bytes after a header of the dtype (8: uint8), the number of dimensions, and each dimension."""
    header = pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.astype(np.uint8).tobytes())
