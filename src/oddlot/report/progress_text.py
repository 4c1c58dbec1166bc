"""Progress of a command as text: one line of a terminal, or a printed line every few seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from oddlot.report.progress_line import DRAWS_A_SECOND, SECONDS_BETWEEN_PROGRESS, say


@contextmanager
def shown_text(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows its text as the present state. It may be called often."""
    if console.quiet:
        yield lambda _: None
    elif not console.is_terminal or console.is_dumb_terminal:
        yield _PrintedText(console)
    else:
        line = _TextLine("dots" if console.encoding.lower().startswith("utf") else "line")
        with Live(
            get_renderable=line.draw, console=console, refresh_per_second=DRAWS_A_SECOND, transient=True
        ):
            yield line


class _PrintedText:
    """Prints the first text, and later ones every `SECONDS_BETWEEN_PROGRESS`."""

    def __init__(self, console: Console) -> None:
        self.console, self.next = console, 0.0

    def __call__(self, text: str) -> None:
        if (now := monotonic()) >= self.next:
            self.next = now + SECONDS_BETWEEN_PROGRESS
            say(self.console, text)


class _TextLine:
    """The text beside a spinner, cut at the width of the terminal."""

    def __init__(self, spinner: str) -> None:
        self.spinner = Spinner(spinner)

    def __call__(self, text: str) -> None:
        self.spinner.text = Text(text, no_wrap=True, overflow="ellipsis")

    def draw(self) -> RenderableType:
        return self.spinner
