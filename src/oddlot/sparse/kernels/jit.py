"""Compilation of kernels, once for each machine. Compiled kernels are cached on disk."""

import logging
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event

# Sums may be reordered, to vectorize them. NaN and infinity are respected.
MATHS = {"reassoc", "contract", "nsz", "arcp"}
logger = logging.getLogger(__name__)


def digest_of(folder: Path) -> str:
    """Return a digest of the source files of all kernels."""
    texts = (path.read_bytes() for path in sorted(folder.glob("*.py")))
    return sha256(b"".join(texts)).hexdigest()[:12]


DIGEST = digest_of(Path(__file__).parent)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that releases Python's global interpreter lock and is inlined into its callers.

    The name in the disk cache contains a digest of all kernels: the compiled code includes the kernels that it calls,
    but Numba checks only a function's own file. If no cache folder is writable, each process compiles the kernels.
    """
    function.__qualname__ = f"{function.__qualname__}_{DIGEST}"
    compiled = partial(njit, nogil=True, error_model="numpy", fastmath=MATHS, forceinline=True)
    try:
        return compiled(cache=True)(function)
    except RuntimeError:  # Numba finds no writable cache folder
        return compiled()(function)


class _Teller(event.Listener):
    """Listener that logs one warning when kernels are compiled."""

    message = False

    def on_start(self, event: Any) -> None:
        if not _Teller.message and "oddlot.sparse" in str(event.data["dispatcher"].py_func.__module__):
            _Teller.message = True
            logger.warning(
                "compiling kernels for this machine, which takes some seconds; they are cached on disk"
            )

    def on_end(self, event: Any) -> None:
        """Do nothing."""


event.register("numba:compile", _Teller())
