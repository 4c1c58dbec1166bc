"""Commands with plain help."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

from oddlot.cli.help_text import help_text, usage


class PlainCommand(TyperCommand):
    """A command."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return help_text(self, ctx)

    def get_usage(self, ctx: Any) -> str:
        """Return the line that stands above an error."""
        return usage(self, ctx)


class PlainGroup(TyperGroup):
    """A command with subcommands."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return help_text(self, ctx)

    def get_usage(self, ctx: Any) -> str:
        """Return the line that stands above an error."""
        return usage(self, ctx)
