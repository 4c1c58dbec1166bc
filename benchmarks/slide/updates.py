"""Bytes of an extreme classification job's updates on the way to the hub."""

import tempfile
from pathlib import Path

import oddlot
from benchmarks.report import Size, show
from benchmarks.slide.setting import shape_of
from oddlot.core.events import Arrived
from oddlot.sparse.datasets.generating import generate
from oddlot.sparse.datasets.text_files import write_xmc
from oddlot.workloads.extreme_classification import xmc

POINTS, STEPS = 4_096, 8
STRATEGIES: dict[str, oddlot.Strategy] = {
    "a gradient of 256": oddlot.Synchronous(),
    f"{STEPS} local steps": oddlot.LocalSGD(steps=STEPS),
}


def measure(size: Size, shapes: list[str]) -> dict[str, float]:
    """Print the bytes of the first updates of the workload `xmc`, with 300 draws by frequency, plain and encoded. Skips
    the largest shape. Returns no figures."""
    rows = []
    for shape in (one for one in shapes if one != "670k"):
        with tempfile.TemporaryDirectory() as folder:
            for name, points in (("train", size.pick(512, POINTS, POINTS)), ("test", 64)):
                write_xmc(Path(folder) / f"{name}.txt.gz", *generate(points, shape_of(size, shape)))
            job = xmc(folder)
        for name, strategy in STRATEGIES.items():
            whole, less = (
                _bytes_up(job, strategy, codec) for codec in (oddlot.codecs.Plain(), oddlot.codecs.NonZero())
            )
            rows.append(
                [f"{shape_of(size, shape).labels:,}", name, f"{whole / 1e6:.0f}", f"{less / 1e6:.0f}"]
            )
    show("MB of an update", ["outputs", "", "whole", "what is not zero"], rows)
    return {}


def _bytes_up(
    job: oddlot.Job, strategy: oddlot.Strategy, codec: oddlot.codecs.Plain | oddlot.codecs.NonZero
) -> int:
    on = oddlot.Simulated([oddlot.Machine("one")])
    run = oddlot.fit(job, strategy, on, until="versions>=1", evaluate_every="9 epochs", codec=codec)
    return next(record.event.update.bytes_up for record in run.records if isinstance(record.event, Arrived))
