"""Detection of TOML files of the wrong kind on the command line, before their keys are validated."""

import tomllib
from pathlib import Path

from oddlot.core.errors import UsageError

KEYS = {
    "job": ("workload",),
    "fleet": ("machines", "zones", "offers"),
    "chaos": ("faults", "capacity"),
}
"""Keys that identify each kind of file."""
USE = {
    "job": "oddlot train {path}",
    "fleet": "oddlot simulate WORKLOAD --machines {path}",
    "chaos": "oddlot train WORKLOAD --chaos {path}",
}
"""Example command for each kind."""


def check_kinds(workload: str, machines: str | None = None, chaos: str | None = None) -> None:
    """Raise UsageError if one of these files is of the wrong kind. Readers report all other errors."""
    paths = {"job": workload if workload.endswith(".toml") else None, "fleet": machines, "chaos": chaos}
    flags = {"job": "", "fleet": "--machines ", "chaos": "--chaos "}
    for wanted, path in paths.items():
        if path and (kind := _kind_of(Path(path).expanduser(), wanted)) != wanted:
            use = USE[kind].format(path=path)
            flag = f"{flags[wanted]}{path}"
            told = f"{flag}: this is a {kind} file, but a {wanted} file is needed. Use it like this: `{use}`"
            raise UsageError(told, "other_kind_of_file", path=path, flag=flag, kind=kind, wanted=wanted)


def _kind_of(path: Path, wanted: str) -> str:
    """Return the kind of a file: the expected one, unless all its keys belong to another kind."""
    from oddlot.config.toml_errors import read_text
    from oddlot.config.toml_text import check_text

    try:
        text = read_text(path)
        check_text(text)
        keys = tomllib.loads(text).keys()
    except (UsageError, ValueError, RecursionError):
        return wanted
    if keys & {*KEYS[wanted]}:
        return wanted
    return next((kind for kind, known in KEYS.items() if keys & {*known}), wanted)
