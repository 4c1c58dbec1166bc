"""Lines that a plain script needs to run with oddlot: the example pairs."""

import difflib
from pathlib import Path

from benchmarks.report import show

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAIN = "_plain.py"


def lines_changed(plain: str, ours: str) -> int:
    """Return the number of lines of a script that the plain one does not have: added or changed, imports included."""
    lines = [[line.rstrip() for line in text.splitlines() if line.strip()] for text in (plain, ours)]
    return sum(line.startswith("+ ") for line in difflib.ndiff(lines[0], lines[1]))


def most_lines_changed() -> int:
    """Print the changed lines of each example pair, and return the largest number."""
    found = {}
    for path in sorted(EXAMPLES.glob(f"*{PLAIN}")):
        ours = path.with_name(path.name.replace(PLAIN, ".py"))
        texts = path.read_text(encoding="utf-8"), ours.read_text(encoding="utf-8")
        found[ours.name] = (lines_changed(*texts), len(texts[0].splitlines()), len(texts[1].splitlines()))
    show(
        "lines of example scripts",
        ["script", "added or changed", "plain", "with oddlot"],
        [[name, *map(str, counts)] for name, counts in found.items()],
    )
    return max((changed for changed, *_ in found.values()), default=0)
