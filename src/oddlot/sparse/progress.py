"""Progress messages on the screen, without a logging setup."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

PACKAGE = "oddlot.sparse"


@contextmanager
def shown(wanted: bool, stream: TextIO | None = None) -> Iterator[None]:
    """Print the log messages of this package, if `wanted`, to `stream` or, by default, to the standard output."""
    if not wanted:
        yield
        return
    logger, handler = logging.getLogger(PACKAGE), logging.StreamHandler(stream or sys.stdout)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
