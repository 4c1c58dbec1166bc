"""Speed by number of threads: SLIDE's tables and clusters compared with dense PyTorch, in new processes, in turn."""

import os
from functools import partial
from statistics import median

from benchmarks.plots import save
from benchmarks.processes import in_new_process
from benchmarks.report import Measured, Size, median_and_range, show
from benchmarks.slide.published import SETTING
from benchmarks.slide.setting import shape_of
from benchmarks.slide.speed import ROUNDS, alone
from oddlot.report.svg_charts import Line

DRAWN = "30k"
"""Number of outputs of the figure and the plot."""
NAMES = {"clusters": "clusters (oddlot)", "dense": "dense PyTorch"}


def counts(cores: int) -> list[int]:
    """Return the powers of two up to `cores`, and `cores`."""
    return sorted({*(1 << power for power in range(cores.bit_length())), cores})


def measure(size: Size, shapes: list[str]) -> dict[str, Measured]:
    """Return the speedup of SLIDE's tables on all cores / the speedup of dense PyTorch."""
    figures = dict[str, Measured]()
    threads = counts(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if threads == [1]:
        print("threads: this machine has one core, so there is no curve", flush=True)
        return figures
    for shape in shapes if size is not Size.SMOKE else [DRAWN]:
        gains = _gains(size, shape, threads)
        own, dense = gains[SETTING[shape]], gains["dense"]
        if shape == DRAWN:
            figures["threads_curve"] = [one[-1] / other[-1] for one, other in zip(own, dense, strict=True)]
            _draw(size, shape_of(size, shape).labels, threads, gains)
    return figures


def _draw(size: Size, labels: int, threads: list[int], gains: dict[str, list[list[float]]]) -> None:
    """Plot the medians of the rounds, next to ideal speedup."""
    drawn = [Line("ideal", [(one, float(one)) for one in threads], 7, dashed=True)]
    for number, (system, runs) in enumerate(gains.items()):
        medians = [median(one) for one in zip(*runs, strict=True)]
        drawn.append(
            Line(NAMES.get(system, f"SLIDE: {system}"), list(zip(threads, medians, strict=True)), number)
        )
    title = f"{labels:,} outputs: training speed relative to one thread"
    save(size, "slide_threads", title, "threads", "speed", drawn)


def _gains(size: Size, shape: str, threads: list[int]) -> dict[str, list[list[float]]]:
    """Print the seconds. Return the speed relative to one thread, by system, round and number of threads."""
    systems, rounds = (SETTING[shape], "clusters", "dense"), size.pick(1, ROUNDS, ROUNDS)
    seconds = {system: [list[float]() for _ in range(rounds)] for system in systems}
    for number in range(rounds):
        for count in threads:
            for system in systems:
                one = in_new_process(partial(alone, size, system, shape, count))
                seconds[system][number].append(one["wall"])
    gains = {system: [[run[0] / one for one in run] for run in runs] for system, runs in seconds.items()}
    rows = [
        [
            system,
            f"{count}",
            median_and_range([run[at] for run in seconds[system]]),
            median_and_range([run[at] for run in gains[system]], 2),
        ]
        for system in systems
        for at, count in enumerate(threads)
    ]
    columns = ["", "threads", "s / 1,000", "one thread / it"]
    show(
        f"{shape_of(size, shape).labels:,} outputs: speed against threads, {rounds} rounds in turn",
        columns,
        rows,
    )
    return gains
