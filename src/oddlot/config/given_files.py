"""The TOML files of the command line: a file of another kind is named as such, before its keys are checked."""

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
"""How each kind is used."""


def check_kinds(workload: str, machines: str | None = None, chaos: str | None = None) -> None:
    """UsageError: one of these files is a file of another kind. The file's reader reports other faults."""
    paths = {"job": workload if workload.endswith(".toml") else None, "fleet": machines, "chaos": chaos}
    flags = {"job": "", "fleet": "--machines ", "chaos": "--chaos "}
    for wanted, path in paths.items():
        if path and (kind := _kind_of(Path(path), wanted)) != wanted:
            use = USE[kind].format(path=path)
            flag = f"{flags[wanted]}{path}"
            told = f"{flag}: this is a {kind} file, and a {wanted} file is needed. Use it as in `{use}`"
            raise UsageError(told, "other_kind_of_file", path=path, flag=flag, kind=kind, wanted=wanted)


def _kind_of(path: Path, wanted: str) -> str:
    """Return the kind of a file: the one that is wanted unless its keys are those of another kind alone."""
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
