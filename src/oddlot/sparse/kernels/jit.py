"""How kernels are compiled: once for each machine, with the result on disk."""

import logging
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event

# Sums may be reordered, so that they vectorise; NaN and infinity mean what they mean.
MATHS = {"reassoc", "contract", "nsz", "arcp"}
logger = logging.getLogger(__name__)


def digest_of(folder: Path) -> str:
    """Of the text of all kernels."""
    texts = (path.read_bytes() for path in sorted(folder.glob("*.py")))
    return sha256(b"".join(texts)).hexdigest()[:12]


DIGEST = digest_of(Path(__file__).parent)


def kernel(function: Callable[..., Any]) -> Any:
    """A loop that runs without Python's lock, and becomes part of those that call it.

    It is kept on disk under a name that tells of all kernels: those that it calls are part of what is compiled, and
    Numba itself looks at a function's own file alone. Where no folder can be written to, each process compiles it.
    """
    function.__qualname__ = f"{function.__qualname__}_{DIGEST}"
    compiled = partial(njit, nogil=True, error_model="numpy", fastmath=MATHS, forceinline=True)
    try:
        return compiled(cache=True)(function)
    except RuntimeError:  # Numba's way to say so
        return compiled()(function)


class _Teller(event.Listener):
    """Logs once, as a warning, that kernels are compiled. Compiled kernels are cached on disk."""

    told = False

    def on_start(self, event: Any) -> None:
        if not _Teller.told and "oddlot.sparse" in str(event.data["dispatcher"].py_func.__module__):
            _Teller.told = True
            logger.warning(
                "compiling kernels for this machine, which takes some seconds; they are cached on disk"
            )

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


event.register("numba:compile", _Teller())
