"""How kernels are compiled: once for each machine, with the result on disk."""

import logging
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core import event

# Sums may be reordered, so that they vectorise; NaN and infinity mean what they mean.
MATHS = {"reassoc", "contract", "nsz", "arcp"}
logger = logging.getLogger(__name__)


def kernel(function: Callable[..., Any]) -> Any:
    """A loop that runs without Python's lock."""
    return njit(cache=True, nogil=True, error_model="numpy", fastmath=MATHS)(function)


class _Teller(event.Listener):
    """Says once, where nobody has set up logging too, that compiling takes its time: afterwards, what is compiled comes
    from disk."""

    told = False

    def on_start(self, event: Any) -> None:
        if not _Teller.told and "oddlot.sparse" in str(event.data["dispatcher"].py_func.__module__):
            _Teller.told = True
            logger.warning("compiling kernels for this machine: some seconds, kept on disk for the next time")

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


event.register("numba:compile", _Teller())
