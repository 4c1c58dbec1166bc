"""Speed of reading a dataset in text form on one core."""

import tempfile
import time
from pathlib import Path

from benchmarks.report import Size, median_and_range, show
from benchmarks.slide.setting import generated
from oddlot.sparse.datasets.text_files import read_xmc, write_xmc

EXAMPLES, ROUNDS = 64_000, 5


def measure(size: Size) -> dict[str, list[float]]:
    """Return the megabytes per second of CPU time, for a file in the page cache."""
    examples, rounds = size.pick((512, 1), (EXAMPLES, ROUNDS), (EXAMPLES, ROUNDS))
    data, speeds = generated(size, "30k", examples), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        write_xmc(path, data.x, data.y)
        megabytes = path.stat().st_size / 1e6
        for _ in range(rounds + 1):
            began = time.process_time()
            read_xmc(path)
            speeds.append(megabytes / (time.process_time() - began))
    rows = [[f"{examples:,} points, {megabytes:.0f} MB", median_and_range(speeds[1:], 0)]]
    show("Reading text", ["", "MB/s of one core"], rows)
    return {"read_megabytes_per_second": speeds[1:]}
