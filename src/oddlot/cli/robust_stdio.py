"""stdout and stderr that may be full, closed, or pipes whose reader has gone: a run outlives them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper, UnsupportedOperation
from typing import Any, TextIO


class Lasting:
    """A text stream that does not raise; what could not be written is lost, and `problem` says why.

    A reader that has gone (a pipe to `head`) is no problem.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.problem = ""
        # Where a stream was closed from the start, its descriptor must not become that of another file.
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - it lasts as long as the program
        if isinstance(self._stream, TextIOWrapper):
            self._stream.reconfigure(errors="backslashreplace")  # what its encoding has not

    def write(self, text: str) -> int:
        """Write the text, or discard it after an error."""
        with self._noted():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._noted():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # the reader has had enough, as `head` has
            self._give_up()
        except OSError as error:
            self.problem = error.strerror or str(error)
            self._give_up()

    def _give_up(self) -> None:
        """Discard all further output, including what Python writes at its end."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(UnsupportedOperation):  # it has no descriptor
            os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextmanager
def lasting_output() -> Iterator[Lasting]:
    """Make printing never raise inside the block. Yield the stream that replaces stdout."""
    out, err = Lasting(sys.stdout), Lasting(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield out
        finally:
            out.flush()
