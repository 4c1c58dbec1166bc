"""Shortened tracebacks of user code keep the type, location and start of the message."""

import traceback

import pytest

from oddlot.core.support.user_code import MAX_TRACE_CHARACTERS, shortened, trace_of

LONG = "Expected 3 columns. " + "x" * 200_000


class Shy(Exception):
    """An exception that cannot be converted to a string."""

    def __str__(self) -> str:
        raise RuntimeError


def fails(error: Exception) -> None:
    raise error


def led_to(error: Exception, cause: Exception | None) -> None:
    try:
        fails(cause or KeyError())
    except Exception as first:
        raise error from first


def deep(levels: int) -> None:
    if levels:
        [deep, deeper][levels % 2](levels - 1)
    fails(ValueError(LONG))


def deeper(levels: int) -> None:
    deep(levels)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: fails(ValueError(LONG)), ["in fails", "ValueError: Expected 3 columns"]),
        (lambda: fails(ValueError("a\n" * 100_000)), ["in fails", "ValueError: a\na"]),
        (
            lambda: led_to(OSError(), ValueError(LONG)),
            ["in fails", "ValueError: Expected", "The above", "OSError"],
        ),
        (lambda: led_to(ValueError(LONG), None), ["KeyError", "The above", "ValueError: Expected"]),
        (lambda: deep(300), ["Traceback", "in fails", "ValueError: Expected 3 columns"]),
        (lambda: fails(Shy()), ["in fails", "Shy: "]),
    ],
    ids=["text", "lines", "cause", "effect", "deep", "shy"],
)
def test_shortened_traceback_keeps_type_location_and_start(act: object, message: list[str]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of all kinds
        act()  # type: ignore[operator]
    trace = trace_of(caught.value)
    assert len(trace) <= MAX_TRACE_CHARACTERS
    places = [trace.find(text) for text in message]
    assert places == sorted(places)
    assert -1 not in places


def test_short_traceback_is_unchanged() -> None:
    with pytest.raises(OSError, match="no") as caught:
        led_to(OSError("no"), ValueError("short"))
    assert trace_of(caught.value) == "".join(traceback.format_exception(caught.value))
    assert shortened("x" * MAX_TRACE_CHARACTERS) == "x" * MAX_TRACE_CHARACTERS
