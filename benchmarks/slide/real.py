"""P@1 by examples and by time on real labels. Each system has the best of the same settings, with one seed."""

from benchmarks.report import Size
from benchmarks.slide.hashing import TUNED
from benchmarks.slide.quality import SYSTEMS, WARM, Ends, Figures, compared
from benchmarks.slide.runs import Made, best_of, ours, trained
from benchmarks.slide.setting import BATCH, real
from oddlot.sparse import Clusters

PASSES = (1, 2, 4, 6)
"""Passes over the training points. In each run all learning rates decay to zero."""
MADE: dict[str, Made] = {
    **SYSTEMS,
    "clusters, 300 found, none by chance": ours(lambda: Clusters(probes=32, found=300, by_chance=0)),
}


def measure(size: Size) -> Figures:
    """Return the speedup of clusters to dense softmax's P@1 less 1 point, and to sampled softmax's best P@1."""
    figures, passes = Figures(), size.pick((1, 2), PASSES, PASSES)
    settings, warm = TUNED[: size.pick(1, None, None)], size.pick(BATCH, WARM, WARM)
    for name, data in real():
        ends: Ends = {}
        for kind, make in MADE.items():
            trained(make, TUNED[0], data, warm)
            best, longest = best_of(settings, make, data, passes[-1] * len(data.x))
            shorter = [trained(make, best, data, count * len(data.x)) for count in passes[:-1]]
            ends[kind] = [[*shorter, longest]]
            print(f"{kind}: {best}", *(f"{p.seconds:.1f} s {p.p1:.3f}" for p in ends[kind][0]), flush=True)
        figures |= compared(f"{name}, {data.y.shape[1]:,} labels", ends, name.removeprefix("xmc_"))
    return figures
