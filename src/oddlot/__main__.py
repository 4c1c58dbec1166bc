"""`oddlot`, or `python -m oddlot`."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from oddlot.cli import main as command_line  # a tenth of a second, in which one may press Ctrl-C
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
