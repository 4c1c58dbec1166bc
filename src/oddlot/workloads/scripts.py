"""Advice for a Python file that was given as a workload. The file is not run."""

import ast
from pathlib import Path

from oddlot.core.errors import UsageError

MAX_NAMED = 5
"""Largest number of functions that an error lists."""


def script_given(name: str) -> UsageError | None:
    """Return an error with the right name for a Python file such as `mymodule.py:job`; None for other names."""
    file, _, function = name.partition(":")
    path = Path(file if file.endswith(".py") else f"{file}.py").expanduser()
    if not (file.endswith(".py") or (not function and path.is_file())):
        return None
    if not path.is_file():
        return UsageError(f"there is no file {path}", "missing_file", path=str(path))
    names = [function] if function else functions_of(path)
    here, folder = Path.cwd(), path.resolve().parent
    module = ".".join(
        [*folder.relative_to(here).parts, path.stem] if folder.is_relative_to(here) else [path.stem]
    )
    write = f"{module}:{names[0] if names else 'FUNCTION'}"
    where = "" if folder.is_relative_to(here) else f" in the folder {folder}"
    others = f". It also has {', '.join(f'`{each}`' for each in names[1:MAX_NAMED])}" if names[1:] else ""
    told = f"{name!r} is a Python file: name its function that returns a Job, as in `oddlot train {write}`{where}"
    return UsageError(told + others, "python_file_given", given=name, write=write, functions=names)


def functions_of(path: Path) -> list[str]:
    """Return the public functions of a Python file, first those that make a Job.

    Return an empty list if it cannot be read.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
    return [each.name for each in sorted(found, key=lambda each: not _makes_job(each))]


def _makes_job(function: ast.FunctionDef) -> bool:
    """Return whether a function calls `Job` or `oddlot.Job`."""
    calls = (each.func for each in ast.walk(function) if isinstance(each, ast.Call))
    return any("Job" in (getattr(call, "id", ""), getattr(call, "attr", "")) for call in calls)
