"""Output that does not raise: a run continues if stdout or stderr is closed, full or a broken pipe."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper, UnsupportedOperation
from typing import Any, TextIO


class Lasting:
    """A text stream that does not raise. After an error, all output is discarded, and `problem` has the reason.

    A closed pipe, as to `head`, is not a problem.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.problem = ""
        # If a stream was closed from the start, its descriptor must not be reused for another file.
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - it stays open until the program ends
        if isinstance(self._stream, TextIOWrapper):
            self._stream.reconfigure(errors="backslashreplace")  # characters that the encoding lacks

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
        except BrokenPipeError:  # the reader closed the pipe, as `head` does
            self._give_up()
        except OSError as error:
            self.problem = error.strerror or str(error)
            self._give_up()

    def _give_up(self) -> None:
        """Discard all further output, including the output of Python at exit."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(UnsupportedOperation):  # it has no descriptor
            os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextmanager
def lasting_output() -> Iterator[Lasting]:
    """Replace stdout and stderr by streams that do not raise. Yield the replacement of stdout."""
    out, err = Lasting(sys.stdout), Lasting(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield out
        finally:
            out.flush()
