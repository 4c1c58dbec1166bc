"""P@1 and time of training with one change at a time."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.report import Size, show
from benchmarks.slide.hashing import TUNED
from benchmarks.slide.published import DWTA, SIMHASH, hashed
from benchmarks.slide.quality import FOUND, WARM
from benchmarks.slide.runs import ours, trained
from benchmarks.slide.setting import BATCH, REAL, THREADS, Set, generated, real
from benchmarks.slide.systems import Tuned
from oddlot.sparse import LSH, Clusters, Uniform, Unigram
from oddlot.sparse.sampler import TWICE, Refresh, Sampler

EXAMPLES, PASSES, ONE = 128_000, 6, "1 thread"
OF_HASHES = FOUND["simhash 200 + 200"]
Change = tuple[str, Callable[[], Sampler], dict[str, Any]]
CLUSTERS: tuple[Change, ...] = (
    ("as it is", Clusters, {}),
    ("fp32 moments", Clusters, {"moments": "fp32"}),
    *((f"row-wise Adagrad, rate {rate}", Clusters, {"adagrad": rate}) for rate in (0.003, 0.01, 0.03)),
    (ONE, Clusters, {}),
    ("clusters of 8 rows, 16 of them", lambda: Clusters(8, 16), {}),
    ("clusters of 32 rows, 8 of them", lambda: Clusters(32, 8), {}),
    ("made anew every 25 steps", lambda: Clusters(refresh=Refresh(25)), {}),
    ("made anew every 50 steps", lambda: Clusters(refresh=Refresh(50)), {}),
    ("made anew every 100 steps", lambda: Clusters(refresh=Refresh(100)), {}),
    ("made anew after twice as many steps each time", lambda: Clusters(refresh=Refresh(50, TWICE)), {}),
    ("rows by chance for each example apart", lambda: Clusters(group=1), {}),
    ("rows by chance for 32 examples alike", lambda: Clusters(group=32), {}),
    ("100 rows found", lambda: Clusters(found=100), {}),
    ("rows by chance all alike", lambda: Clusters(frequency=0.0), {}),
    ("no rows by chance", lambda: Clusters(by_chance=0), {}),
    ("uniform 400", lambda: Uniform(400), {"tuned": FOUND["uniform 400"]}),
    ("unigram 400", lambda: Unigram(400), {"tuned": FOUND["unigram 400"]}),
    ("simhash 200 + 200 by frequency", lambda: LSH(found=200, by_chance=200), {"tuned": OF_HASHES}),
    ("dwta 200 + 200 by frequency", lambda: LSH("dwta", found=200, by_chance=200), {"tuned": OF_HASHES}),
    (f"SLIDE: {SIMHASH}", lambda: hashed(SIMHASH, "30k"), {"tuned": OF_HASHES}),
    (f"SLIDE: {DWTA}", lambda: hashed(DWTA, "30k"), {"tuned": OF_HASHES}),
)
"""Changes on the generated dataset with 30,000 outputs, with the settings that the search found for each system."""


def _hashed(
    digits: int | None = None, tables: int | None = None, changed_only: bool = False, **refresh: Any
) -> Callable[[], Sampler]:
    return lambda: LSH(
        "simhash", digits, tables, 130, 100, 0.0, refresh=Refresh(**refresh), changed_only=changed_only
    )


HASHES: tuple[Change, ...] = (
    ("SimHash, K and L chosen", _hashed(), {}),
    *((f"K = {digits}, L chosen", _hashed(digits), {}) for digits in (4, 6, 8, 10, 12)),
    *((f"K chosen, L = {tables}", _hashed(tables=tables), {}) for tables in (10, 25, 50, 100)),
    *((f"tables made anew every {every} steps", _hashed(every=every), {}) for every in (10, 200)),
    ("tables made anew every 10 steps, rows that changed", _hashed(every=10, changed_only=True), {}),
    ("tables made anew every 50 exp(i / 5) steps", _hashed(every=50, slower=0.2), {}),
)
"""Changes on real labels with uniform random rows, where SimHash is better than random rows alone."""


def measure(size: Size) -> dict[str, float]:
    """Print two tables of single runs. Return no figures."""
    some, passes = size.pick(4, None, None), size.pick(1, PASSES, PASSES)
    examples = EXAMPLES // size.pick(250, 1, 1)
    data = generated(size, "30k", examples // 2)
    _table(size, "30,000 outputs", data, examples, FOUND["clusters"], CLUSTERS[:some])
    for name, data in real():
        if name == REAL[0]:
            _table(size, f"{name}, {passes} passes", data, passes * len(data.x), TUNED[2], HASHES[:some])
    return {}


def _table(
    size: Size, title: str, data: Set, examples: int, tuned: Tuned, changes: tuple[Change, ...]
) -> None:
    rows = []
    trained(ours(Clusters), tuned, data, size.pick(BATCH, WARM, WARM))
    for name, make, how in changes:
        torch.set_num_threads(1 if name == ONE else THREADS)
        others = {key: value for key, value in how.items() if key != "tuned"}
        end = trained(ours(make, **others), how.get("tuned", tuned), data, examples)
        rows.append([name, f"{end.p1:.3f}", f"{1e6 * end.seconds / examples:.0f}", f"{end.active:.0f}"])
        print(*rows[-1], flush=True)
        torch.set_num_threads(THREADS)
    show(f"{title}, batch {BATCH}", ["", "P@1", "ms for 1,000 examples", "active rows"], rows)
