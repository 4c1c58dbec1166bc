"""Commands that make files of the package: `python -m tools.NAME`."""
