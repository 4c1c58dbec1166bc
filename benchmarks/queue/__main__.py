"""A queue of training jobs, and machines that are switched off (Helios, Hu et al., SC 2021).

- Philly's jobs: mean completion times of FIFO over predicted GPU time first, with and without backfilling, and the time
  of a replay.
- Predictions that were learnt from recurrent jobs, over true durations and over rolling means.
- Parking of Philly's machines: their utilization, wake-ups per day and the unserved share.
- A real queue of short trainings on two slots, whose server is killed ten times.

ODDLOT_DATA=... python -m benchmarks.queue [--quick|--smoke] [--save] [--only PART ...]
"""

from collections.abc import Callable

from benchmarks.queue import learnt, parking, philly, real
from benchmarks.report import Measured, Size, run_parts

PARTS: dict[str, Callable[[Size], dict[str, Measured]]] = {
    "philly": philly.measure,
    "million": philly.million,
    "learnt": learnt.measure,
    "parking": parking.measure,
    "real": real.measure,
}


def main() -> None:
    """Measure the parts, and print their tables and the figures."""
    run_parts("queue", __doc__, "within 6 minutes", PARTS)


if __name__ == "__main__":
    main()
