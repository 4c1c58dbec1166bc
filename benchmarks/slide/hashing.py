"""Rows found by hashes or clusters compared with random rows, on real labels."""

from collections.abc import Callable
from statistics import mean, median

from benchmarks.report import Size, median_and_range, show
from benchmarks.slide.runs import best_of, ours, trained
from benchmarks.slide.setting import REAL, real
from benchmarks.slide.systems import Tuned
from oddlot.sparse import LSH, Clusters, Uniform, Unigram
from oddlot.sparse.sampler import Sampler

ACTIVE, AS_MANY = 230, 290
"""Draws per example, and draws by frequency for the number of distinct rows of hashes with frequency."""
TUNED = (
    Tuned(1e-3, 1e-2),
    *(Tuned(3e-3, input_lr) for input_lr in (3e-3, 1e-2, 3e-2)),
    Tuned(3e-3, 1e-2, input_std=0.1),
)
"""Settings that are tried for every sampler with one seed. The best one is repeated with other seeds."""
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "uniform": lambda: Uniform(ACTIVE),
    "unigram": lambda: Unigram(ACTIVE),
    "unigram, 290 draws": lambda: Unigram(AS_MANY),
    "simhash": lambda: LSH(found=ACTIVE - 100, by_chance=100, frequency=0.0),
    "dwta": lambda: LSH("dwta", found=ACTIVE - 100, by_chance=100, frequency=0.0),
    "simhash, others by frequency": lambda: LSH(found=ACTIVE - 100, by_chance=100),
    "dwta, others by frequency": lambda: LSH("dwta", found=ACTIVE - 100, by_chance=100),
    "clusters, others alike": lambda: Clusters(found=ACTIVE - 100, by_chance=100, group=1, frequency=0.0),
    "clusters": lambda: Clusters(found=ACTIVE - 100, by_chance=100, group=1),
    "clusters, 230 found, none by chance": lambda: Clusters(probes=32, found=ACTIVE, by_chance=0),
}


def measure(size: Size) -> dict[str, float]:
    """Return how much P@1 of hashes and clusters exceeds P@1 of random rows, in points, from medians.

    Random rows are uniform or drawn by label frequency. Hashes are SimHash, as in the paper. With frequencies, they are
    compared with the same number of draws and with the same number of rows.
    """
    figures, (epochs, seeds) = dict[str, float](), size.pick((1, 1), (6, 3), (6, 3))
    settings = TUNED[: size.pick(1, None, None)]
    for name, data in real():
        rows, p1s, examples = list[list[str]](), dict[str, float](), epochs * len(data.x)
        for kind, make in SAMPLERS.items():
            tuned, first = best_of(settings, ours(make), data, examples)
            others = (trained(ours(make), tuned, data, examples, seed) for seed in range(1, seeds))
            points = [first, *others]
            p1s[kind] = median(point.p1 for point in points)
            active, seconds = (
                mean(getattr(point, what) for point in points) for what in ("active", "seconds")
            )
            rates = f"{tuned.lr:g}, {tuned.input_lr:g}"
            rows.append(
                [kind, f"{active:.0f}", rates, median_and_range([p.p1 for p in points]), f"{seconds:.1f}"]
            )
            print(*rows[-1], flush=True)
        columns = ["rows beside the labels", "active", "learning rates", f"P@1 after {epochs} passes", "s"]
        title = f"{name}: {data.y.shape[1]:,} labels, {seeds} seeds, the best of {len(settings)} settings"
        show(title, columns, rows)
        if name == REAL[0]:
            figures["lsh_minus_uniform_p1"] = 100 * (p1s["simhash"] - p1s["uniform"])
            figures["clusters_minus_uniform_p1"] = 100 * (p1s["clusters"] - p1s["uniform"])
            figures["lsh_minus_unigram_p1"] = 100 * (p1s["simhash, others by frequency"] - p1s["unigram"])
            many = p1s["unigram, 290 draws"]
            figures["lsh_minus_as_many_unigram_p1"] = 100 * (p1s["simhash, others by frequency"] - many)
            figures["clusters_minus_unigram_p1"] = 100 * (p1s["clusters"] - p1s["unigram"])
    return figures
