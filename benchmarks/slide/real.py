"""P@1 over examples and over time on real labels, each system at the best of the same settings, one seed."""

from benchmarks.report import Size
from benchmarks.slide.hashing import TUNED
from benchmarks.slide.quality import SYSTEMS, WARM, Ends, Figures, compared
from benchmarks.slide.runs import Made, best_of, ours, trained
from benchmarks.slide.setting import BATCH, real
from oddlot.sparse import Clusters

PASSES = (1, 2, 4, 6)
"""over the training points, in runs at whose end all learning rates are zero"""
MADE: dict[str, Made] = {
    **SYSTEMS,
    "clusters, 300 found, none by chance": ours(lambda: Clusters(probes=32, found=300, by_chance=0)),
}


def measure(size: Size) -> Figures:
    """How much sooner clusters are as good as dense softmax less 1 point, and as sampled softmax at its best."""
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
