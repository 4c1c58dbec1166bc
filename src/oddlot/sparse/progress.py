"""Progress on the screen, for who has set up no logging."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

PACKAGE = "oddlot.sparse"


@contextmanager
def told(wanted: bool, stream: TextIO | None = None) -> Iterator[None]:
    """What this package logs inside is printed, if that is wanted; None: to the standard output."""
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
