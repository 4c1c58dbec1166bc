"""`oddlot`, or `python -m oddlot`."""

import os
import sys
from contextlib import suppress


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from oddlot.cli.app import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


def leave_current_folder() -> None:
    """Remove the current folder from `sys.path`, where `python -m` puts it first.

    Otherwise a file with the name of a library, such as `rich.py`, would be imported instead of the library. The folder
    is kept if oddlot itself is imported from it.
    """
    with suppress(OSError):  # the current folder was deleted
        here, home = os.getcwd(), os.path.dirname(os.path.dirname(__file__))  # noqa: PTH109, PTH120 - pathlib is not loaded yet
        if not sys.flags.safe_path and sys.path[:1] == [here] and home != here:
            del sys.path[0]


if __name__ == "__main__":
    leave_current_folder()
    main()
