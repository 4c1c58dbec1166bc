"""Calls of Ray that wait for the cluster's head, which may have ended."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


def aside(call: Callable[[], Value], seconds: float = 0.0) -> Value | None:
    """Call a function in a thread of its own. Return its value, or None if it takes longer than these seconds."""
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - a caller that waits gets it
            future.set_exception(error)

    threading.Thread(target=run, name="oddlot call of Ray", daemon=True).start()
    if not seconds:
        return None
    try:
        return future.result(seconds)
    except TimeoutError:
        return None
