"""The provenance of a run for run.json: when, where and how it was started."""

import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oddlot import __version__
from oddlot.core.masked_urls import masked

GIVEN = "given"
"""Key in `about`: all arguments of the `oddlot` command."""
NOTEBOOK = "ipykernel_launcher"


def provenance(about: Mapping[str, Any]) -> dict[str, str]:
    """Return the date, the host, the command and the versions of the process that starts a run.

    For a script, only its name is included, because arguments and paths may be private.
    """
    import platform

    import torch

    given = about.get(GIVEN)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node().partition(".")[0],
        "command": masked(shlex.join(["oddlot", *map(str, given)])) if isinstance(given, list) else _script(),
        "oddlot": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _script() -> str:
    """Return the command of a Python program, without its arguments."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    if script.stem == NOTEBOOK:
        return "notebook"
    return shlex.join(["python", script.name]) if script.suffix == ".py" else "python"
