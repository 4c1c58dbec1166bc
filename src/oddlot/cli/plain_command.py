"""Typer commands with plain help text and readable errors about numbers."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from oddlot.core.support.errors import UsageError

MAX_COLUMNS = 80
BESIDE_COLUMNS = 60
"""Minimum width of a terminal for descriptions next to the names. Otherwise they are below the names."""
NAME_COLUMNS = 30
"""Largest width of a name with a description next to it."""


def help_text(command: Any, ctx: Any) -> str:
    """Return the help of a command, wrapped to the width of the terminal."""
    columns = min(shutil.get_terminal_size().columns, MAX_COLUMNS)
    shown = [param for param in command.get_params(ctx) if not param.hidden]
    rows = {
        kind: [param for param in shown if param.param_type_name == kind] for kind in ("argument", "option")
    }
    parts = [
        *_wrapped(usage(command, ctx), columns, "", " " * 4),
        *(["", *_paragraphs(command.help, columns)] if command.help else []),
        *_table("Arguments", [_row(param) for param in rows["argument"]], columns),
        *_table("Options", [_row(param) for param in rows["option"]], columns),
        *_table("Commands", list(_commands(command)), columns),
        *(["", *_paragraphs(command.epilog, columns)] if command.epilog else []),
    ]
    return "\n".join(parts)


def _wrapped(text: str, columns: int, first: str, others: str) -> list[str]:
    """Wrap a text to this width. Only words that are longer than a line are broken."""
    return textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )


def usage(command: Any, ctx: Any) -> str:
    """Return the usage line of a command, with its arguments."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    pieces = [param.metavar if param.required else f"[{param.metavar}]" for param in arguments]
    subcommand = getattr(command, "subcommand_metavar", "")
    return " ".join(filter(None, ["Usage:", ctx.command_path, command.options_metavar, *pieces, subcommand]))


def _paragraphs(text: str, columns: int) -> list[str]:
    parts = [_wrapped(part, columns, "  ", "  ") for part in re.split(r"\n\s*\n", text.strip())]
    return "\n\n".join("\n".join(part) for part in parts).split("\n")


def _row(param: Any) -> tuple[str, str]:
    """Return the name of an argument or an option, and its description with the default and the limits."""
    default = param.show_default if isinstance(param.show_default, str) else _default(param)
    notes = "; ".join(filter(None, [f"default: {default}" if default else "", limits(param)]))
    return _name(param), f"{param.help}  [{notes}]" if notes else param.help


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.metavar)
    flags = " / ".join([*param.opts, *param.secondary_opts])
    return flags if param.is_flag else f"{flags} {param.metavar or 'N'}"


def _default(param: Any) -> str:
    """Return the default as text, or an empty string without a default and for flags that are off by default."""
    value = param.default
    if isinstance(value, bool):
        return param.opts[0] if value else ""
    return "" if value is None or not param.show_default else str(value)


def _commands(command: Any) -> Iterable[tuple[str, str]]:
    """Return the names of the subcommands, each with the first sentence of its help."""
    for name, each in getattr(command, "commands", {}).items():
        yield name, re.split(r"(?<=\.)\s", each.help or "", maxsplit=1)[0]


def _table(heading: str, rows: Sequence[tuple[str, str]], columns: int) -> list[str]:
    if not rows:
        return []
    longest = max((len(name) for name, _ in rows if len(name) <= NAME_COLUMNS), default=0)
    return ["", f"{heading}:", *(line for row in rows for line in _lines(*row, longest + 4, columns))]


def _lines(name: str, text: str, indent: int, columns: int) -> list[str]:
    """Return the help lines of a name and its description."""
    if columns < BESIDE_COLUMNS:
        return [*_wrapped(name, columns, "  ", "    "), *_wrapped(text, columns, " " * 6, " " * 6)]
    lines = _wrapped(text, columns, " " * indent, " " * indent)
    if len(name) + 4 > indent:
        return [f"  {name}", *lines]
    return [f"  {name}".ljust(indent) + lines[0].lstrip(), *lines[1:]]


def limits(param: Any, of: str = "") -> str:
    """Return the smallest and largest value of an argument as text. `of` precedes "at least" and "at most"."""
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if least is None:
        return "" if most is None else f"{of}at most {most}"
    return f"{of}at least {least}" if most is None else f"from {least} to {most}"


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
    message = f"{name} {given}: it must be {must}"
    return UsageError(message, "invalid_value", flag=f"{name} {given}", name=name, given=given, must=must)
