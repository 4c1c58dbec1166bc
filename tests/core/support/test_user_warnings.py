"""Warnings: the line that they point at, and how often they are shown."""

import threading
import types
import warnings

import pytest

from oddlot.core.support.user_warnings import once, warn
from tests.transcripts import check

THEIRS = """
from contextlib import contextmanager

@contextmanager
def around():
    warn("so", "a_code", given=1)
    yield

def lead():
    with around():
        pass
"""


@pytest.mark.parametrize(
    ("name", "message"), [("oddlot.x", __file__), ("oddlot_x", "oddlot_x.py")], ids=["inside", "alike"]
)
def test_warning_points_at_the_first_line_outside_the_package(name: str, message: str) -> None:
    """The package's modules and context managers are skipped, unlike modules with names such as `oddlot_x`."""
    made = types.ModuleType("made")
    made.__dict__.update(__name__=name, warn=warn)
    exec(compile(THEIRS, f"{name}.py", "exec"), made.__dict__)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        made.lead()
    (warning,) = found
    assert warning.filename == message
    check(warning.message, "a_code", given=1)


def test_once_applies_inside_the_block_and_to_its_thread() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with once():
            warn("a", "a_code")
            warn("a", "a_code")
            warnings.warn("a", stacklevel=1)  # a warning of another library
            other = threading.Thread(target=warn, args=("a", "a_code"))
            other.start()
            other.join()
            with once():
                warn("a", "a_code")
            warn("a", "a_code")
            for text in ("w1: 1.5 of 1,000", "w1: 27 of 3", "w2: 27 of 3"):  # same text with other numbers
                warn(text, "a_code")
        warn("a", "a_code")
    assert [str(one.message) for one in found] == [*["a"] * 4, "w1: 1.5 of 1,000", "w2: 27 of 3", "a"]
