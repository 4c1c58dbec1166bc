"""Warnings: where they point, and how often they are told."""

import threading
import types
import warnings

import pytest

from oddlot.core.warned import once, warn

THEIRS = """
from contextlib import contextmanager

@contextmanager
def around():
    warn("so")
    yield

def lead():
    with around():
        pass
"""


@pytest.mark.parametrize(("name", "told"), [("oddlot.x", __file__), ("oddlot_x", "oddlot_x.py")])
def test_the_users_line_is_the_first_outside(name: str, told: str) -> None:
    """Through the package's own modules and context managers, but not through modules that merely begin alike."""
    made = types.ModuleType("made")
    made.__dict__.update(__name__=name, warn=warn)
    exec(compile(THEIRS, f"{name}.py", "exec"), made.__dict__)
    with pytest.warns(UserWarning, match="so") as found:
        made.lead()
    assert found[0].filename == told


def test_once_is_for_what_is_told_inside_and_for_this_thread() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with once():
            warn("a")
            warn("a")
            warnings.warn("a", stacklevel=1)  # somebody else's
            other = threading.Thread(target=warn, args=("a",))
            other.start()
            other.join()
            with once():
                warn("a")
            warn("a")
        warn("a")
    assert [str(one.message) for one in found] == ["a"] * 5
