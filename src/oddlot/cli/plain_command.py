"""Commands with plain help, and with readable errors about numbers."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from oddlot.cli.help_text import help_text, limits, usage
from oddlot.core.errors import UsageError

NUMBERS = {int: "a whole number", float: "a number"}


class PlainCommand(TyperCommand):
    """A command with plain help."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return help_text(self, ctx)

    def get_usage(self, ctx: Any) -> str:
        """Return the line that is printed above an error."""
        return usage(self, ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raise UsageError for an invalid number."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            raise plain(error) from error


class PlainGroup(TyperGroup):
    """A command with subcommands."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return help_text(self, ctx)

    def get_usage(self, ctx: Any) -> str:
        """Return the line that is printed above an error."""
        return usage(self, ctx)


def plain(error: typer.BadParameter) -> Exception:
    """Return a readable error about an invalid number. Return other errors unchanged."""
    param, cause = error.param, error.__cause__
    kind = NUMBERS.get(param.type_descriptor.annotation) if param and hasattr(cause, "errors") else None
    if not param or not kind:
        return error
    invalid: Any = cause  # pydantic's error
    given = invalid.errors()[0]["input"]
    name = param.opts[0] if param.param_type_name == "option" else param.metavar
    must = " ".join(filter(None, (kind, limits(param, "of "))))
    told = f"{name} {given}: it must be {must}"
    return UsageError(told, "invalid_value", flag=f"{name} {given}", name=name, given=given, must=must)
