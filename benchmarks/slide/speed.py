"""Seconds, CPU seconds and memory per 1,000 examples. Each system runs in a new process, in turn."""

import resource
import time
from functools import partial
from math import inf
from statistics import median

from benchmarks.processes import in_new_process
from benchmarks.report import Measured, Size, median_and_range, show
from benchmarks.slide.published import DWTA, SETTING, SIMHASH, hashed
from benchmarks.slide.quality import FOUND
from benchmarks.slide.setting import BATCH, THREADS, batches_for_each, begin, generated, shape_of
from benchmarks.slide.systems import Dense, Ours, Sampled, System
from oddlot.sparse import LSH, Clusters, Uniform
from oddlot.sparse.threads import Crew

OURS, RIVALS = (
    ("clusters", "uniform 300", "uniform 1000", "uniform 1000, row-wise Adagrad"),
    ("dense", "sampled"),
)
HASHES = (SIMHASH, DWTA)
WARM = {"30k": 200, "200k": 100, "670k": 60}
"""Warm-up batches, so that frequencies and clusters are typical of a network in training."""
BATCHES = {"30k": 60, "200k": 30, "670k": 20}
SLOW, SLOW_WARM = {"30k": 1, "200k": 5, "670k": 5}, {"30k": 5, "200k": 50, "670k": 50}
"""Divisors of batches and warm-up batches for dense softmax."""
ROUNDS = 3


def made(size: Size, system: str, shape: str) -> System:
    """Return a new system with the setting that the search of quality.py found."""
    features, labels = shape_of(size, shape).features, shape_of(size, shape).labels
    if system in HASHES:
        return Ours(features, labels, FOUND["simhash 200 + 200"], hashed(system, shape))
    match system:
        case "dense":
            return Dense(features, labels, FOUND[system])
        case "sampled":
            return Sampled(features, labels, FOUND[system])
        case "clusters":
            return Ours(features, labels, FOUND[system], Clusters())
    count, adagrad = (300 if "300" in system else 1000), (0.01 if "Adagrad" in system else 0.0)
    return Ours(features, labels, FOUND["uniform 1000"], Uniform(count), adagrad)


def alone(size: Size, system: str, shape: str, threads: int = THREADS) -> dict[str, float]:
    """Measure a system in this process."""
    begin(threads)
    most = BATCHES[shape] // (SLOW[shape] if system == "dense" else 1)
    batches = size.pick(2, most, most)
    warm = size.pick(2, *[max(2, WARM[shape] // (SLOW_WARM[shape] if system == "dense" else 1))] * 2)
    data = generated(size, shape, (warm + batches) * BATCH)
    given = list(data.batches((warm + batches) * BATCH))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    network = made(size, system, shape)
    for x, y in given[:warm]:
        network.step(x, y)
    refreshed = refresh(network)
    wall, processor = time.perf_counter(), time.process_time()
    for x, y in given[warm:]:
        network.step(x, y)
    thousands = batches * BATCH / 1000
    return {
        "wall": (time.perf_counter() - wall) / thousands + refreshed[0],
        "processor": (time.process_time() - processor) / thousands + refreshed[1],
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "megabytes_before": before / 1024,
        "active": network.output.active_rows if isinstance(network, Ours) else 0.0,
    }


def refresh(network: System) -> tuple[float, float]:
    """Return the wall and CPU seconds of rebuilding clusters or tables, per 1,000 examples of 1,000 batches.

    They are rebuilt several times in 1,000 batches. The batches that are timed afterwards do not include it.
    """
    if not isinstance(network, Ours) or not isinstance(network.output.sampler, Clusters | LSH):
        return 0.0, 0.0
    layer, sampler = network.output, network.output.sampler
    sampler.refresh.next = 0
    wall, processor = time.perf_counter(), time.process_time()
    sampler.prepare(
        Crew(), layer.weight.detach().numpy(), layer.bias.detach().numpy(), layer.batches, layer.step
    )
    sampler.refresh.next = inf
    thousands = batches_for_each(layer.out_features, sampler.refresh) * BATCH / 1000
    return (time.perf_counter() - wall) / thousands, (time.process_time() - processor) / thousands


def measure(size: Size, shapes: list[str]) -> dict[str, Measured]:
    """Return the speedup of the default sampler and of SLIDE's samplers over dense PyTorch, and the memory of the
    default sampler / dense PyTorch."""
    figures, rounds = dict[str, Measured](), size.pick(1, ROUNDS, ROUNDS)
    systems = size.pick(("clusters", "dense"), (*HASHES, "clusters", *RIVALS), (*HASHES, *OURS, *RIVALS))
    for shape in shapes:
        found = dict[str, list[dict[str, float]]]()
        for _ in range(rounds):
            for system in dict.fromkeys((SETTING[shape], *systems)):
                one = in_new_process(partial(alone, size, system, shape))
                found.setdefault(system, []).append(one)
        dense = found["dense"]
        rows, ratios = list[list[str]](), dict[str, list[float]]()
        for system, runs in found.items():
            ratios[system] = [d["wall"] / one["wall"] for d, one in zip(dense, runs, strict=True)]
            each = {name: [one[name] for one in runs] for name in runs[0]}
            active = f"{median(each['active']):,.0f}" if any(each["active"]) else ""
            rows.append([
                system, median_and_range(each["wall"]), median_and_range(each["processor"]),
                f"{median(each['megabytes']):,.0f}",
                f"{median(each['megabytes_before']):,.0f}", active, median_and_range(ratios[system], 2),
            ])  # fmt: skip
        columns = ["", "s / 1,000", "processor s / 1,000", "peak MB", "of these before", "rows", "dense / it"]
        show(
            f"{shape_of(size, shape).labels:,} outputs, batch {BATCH}, {rounds} rounds in turn", columns, rows
        )
        figures[f"speedup_over_dense_{shape}_lsh"] = ratios[SETTING[shape]]
        figures[f"speedup_over_dense_{shape}_clusters"] = ratios["clusters"]
        if shape == "670k":
            memory = [
                one["megabytes"] / d["megabytes"] for one, d in zip(found["clusters"], dense, strict=True)
            ]
            figures["memory_over_dense_670k"] = memory
    return figures
