"""Threads for calls of Ray that block while the head of the cluster is lost."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


def in_thread(call: Callable[[], Value]) -> Future[Value]:
    """Call a function in a new daemon thread. Return the future of its result."""
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            future.set_exception(error)

    threading.Thread(target=run, name="oddlot call of Ray", daemon=True).start()
    return future
