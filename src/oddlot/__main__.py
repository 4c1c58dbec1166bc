"""`python -m oddlot` is the same as `oddlot`."""

from oddlot.cli import main

main()
