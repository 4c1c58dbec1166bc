"""The fleet of `oddlot simulate` without `--machines`."""

import sys
from pathlib import Path

SAMPLE_FLEET = Path(__file__).parents[1] / "machines" / "sample_fleet.toml"
"""Fleet file that comes with oddlot."""


def sample_fleet(*, quiet: bool) -> str:
    """Return the path of the sample fleet. Print a hint unless `quiet`."""
    if not quiet:
        told = (
            "no --machines: a sample fleet of 4 spot machines is simulated. Describe your own in a fleet file"
        )
        sys.stderr.write(f"{told}; start from {SAMPLE_FLEET}\n")
    return str(SAMPLE_FLEET)
