"""`oddlot demo`: pages that show what a model has learned."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from oddlot.cli.plain_command import PlainCommand, PlainGroup
from oddlot.core.support.errors import UsageError

demo = typer.Typer(
    cls=PlainGroup,
    help="Try a trained model in the browser.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
command = partial(demo.command, cls=PlainCommand)
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables of which a browser with a window needs one, on Linux."""


@demo.callback()
def common() -> None:
    """Hold the options of all demos."""


@command()
def digits(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Run folder of digit_autoencoder. Default: a shipped model."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="N", help="Port.", show_default="8640")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
    export: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write a copy for a web server, and end.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Round the weights of RUN to 8 bits.")] = False,
) -> None:
    """Draw digits on a page: a network recognizes, encodes and decodes them.

    The page is served on 127.0.0.1 until Ctrl-C, and loads nothing from other hosts.
    """
    from oddlot.demo.site import shipped_site, write_copy

    if int8 and run is None:
        message = "--int8 needs RUN: the shipped model has 8 bits already"
        raise UsageError(message, "setting_without_run", flag="--int8")
    if run is None:
        pages = shipped_site()
    else:
        from oddlot.demo.run_site import run_site

        pages = run_site(run, int8=int8)
    if export is not None:
        folder = Path(export).expanduser()
        write_copy(pages, folder)
        print(f"{folder / 'index.html'}: open it, or put the folder on a web server")
    else:
        _serve(pages, port, browser=browser)


def _serve(pages: dict[str, bytes], port: int | None, *, browser: bool) -> None:
    """Serve the page until Ctrl-C."""
    from oddlot.demo.server import PORT, serve

    port = PORT if port is None else port
    with serve(pages, port) as server:
        if port and server.server_port != port:
            print(f"port {port} is in use: using {server.server_port}")
        opened = browser and _open(server.address)
        print(f"{server.address}{'' if opened else ' (open it in a browser)'}, until Ctrl-C", flush=True)
        server.run()
        print(file=sys.stderr)  # the terminal shows ^C on this line


def _open(address: str) -> bool:
    """Open a browser with a window. Return whether there is one: a browser in the terminal would block it."""
    import webbrowser

    if sys.platform.startswith("linux") and not any(map(os.environ.get, DISPLAYS)):
        return False
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False
