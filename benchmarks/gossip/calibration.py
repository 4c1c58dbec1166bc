"""Adaptive gossip compared with gossip at every step and with controls of equal traffic, on a simulated mesh.

There are eight peers. A pull of a model over idle links takes 1.3 steps. This value is derived from Ho, Wu and Liu
(CCGRID 2018, abstract), who report that 92 % less traffic saves 52 % of the time. Time therefore follows from traffic.

- Gossip at every step is measured with each topology with pulls. With random partners, peers that pull from the same
  peer queue.
- With `overlap`, a pull travels while the next minibatches are computed.
- A fixed period, random exchanges and LocalSGD (a ring all-reduce after each round) have the traffic of adaptive
  gossip. A single peer trains the same number of steps as a peer of the mesh, without a network.
- Bytes and time include the final average of all models.
- Each method has the best learning rate of a grid. `--only rates` searches it with a separate seed. The rate of
  adaptive gossip is the best with at most 8 % of the traffic. The controls have the traffic that results.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks import plots
from benchmarks.figures import GOSSIP_RATES, MAX_TRAFFIC, Calibrated
from benchmarks.gossip.training import BATCH, PEERS, PULL_STEPS, RING, Asked, Outcome, job_of, outcome
from benchmarks.processes import in_processes
from benchmarks.report import RESULTS, Measured, Size, median_and_range, show
from oddlot import AdaptiveGossip, Gossip, LocalSGD, Strategy
from oddlot.report.svg_charts import Line

USUAL_RATE = 0.06
"""Default learning rate of methods without a search result."""
CHOOSING_SEED = 1_000
EVERY: dict[str, Gossip] = {
    Calibrated.RANDOM_PARTNERS: Gossip(),
    Calibrated.EXPONENTIAL_GRAPH: Gossip(topology="exponential"),
    Calibrated.HYPERCUBE: Gossip(topology="hypercube"),
}
"""Gossip at every step, by topology."""
ADAPTIVE = AdaptiveGossip()
OVERLAP = ", overlap"
"""Suffix of the names of methods with `overlap`."""
DATA = ("fashion_mnist", "cifar10")


def measure(size: Size) -> Mapping[str, Measured]:
    """Return the figures of Fashion-MNIST and, in a full run, of CIFAR-10."""
    figures = dict[str, Measured]()
    for data in DATA if size is Size.FULL else DATA[:1]:
        figures |= {key + suffix(data): value for key, value in _measured(data, size).items()}
    return figures


def suffix(data: str) -> str:
    """Return the suffix of a dataset's keys."""
    return "" if data == DATA[0] else f"_{data}"


def tune(size: Size) -> Mapping[str, Measured]:
    """Search the learning rate of each method, and return the best rates."""
    rates = GOSSIP_RATES if size is not Size.SMOKE else GOSSIP_RATES[:1]
    figures = dict[str, Measured]()
    for data in DATA if size is Size.FULL else DATA[:1]:
        found = {Calibrated.ADAPTIVE: dict(zip(rates, _by_rate(data, size, [ADAPTIVE], rates), strict=True))}
        best = {Calibrated.ADAPTIVE: _best_adaptive(found[Calibrated.ADAPTIVE])}
        methods = _methods(_share_of(found[Calibrated.ADAPTIVE][best[Calibrated.ADAPTIVE]]))
        others = [name for name in Calibrated if name != Calibrated.ADAPTIVE]
        every = iter(_by_rate(data, size, [methods[name] for name in others], rates))
        for name in others:
            found[name] = {lr: next(every) for lr in rates}
            best[name] = max(rates, key=lambda lr, one=found[name]: one[lr].accuracy)
        rows = [
            [name, *(f"{found[name][lr].accuracy:.4f}" for lr in rates), f"{best[name]}"]
            for name in Calibrated
        ]
        show(f"{data}: accuracy by learning rate", ["method", *map(str, rates), "best"], rows)
        figures |= {name.rate_key + suffix(data): best[name] for name in Calibrated}
    return figures


def _by_rate(
    data: str, size: Size, methods: Sequence[Strategy | None], rates: Sequence[float]
) -> list[Outcome]:
    return _outcomes([Asked(data, size, one, lr, CHOOSING_SEED) for one in methods for lr in rates])


def _best_adaptive(found: Mapping[float, Outcome]) -> float:
    """Return the best learning rate with at most `MAX_TRAFFIC`, or else the rate with the least traffic.

    A larger learning rate changes models more, and causes more exchanges at the same threshold.
    """
    frugal = [lr for lr, one in found.items() if one.exchanges_per_step <= MAX_TRAFFIC]
    if not frugal:
        return min(found, key=lambda lr: found[lr].exchanges_per_step)
    return max(frugal, key=lambda lr: found[lr].accuracy)


def saved_rates(data: str) -> dict[str, float]:
    """Return the learning rates of the saved result, by method."""
    path = RESULTS / "gossip.json"
    figures = json.loads(path.read_text())["figures"] if path.exists() else {}
    saved = {one: figures.get(one.rate_key + suffix(data), {}).get("median") for one in Calibrated}
    return {name: lr for name, lr in saved.items() if lr is not None}


def _methods(share: float) -> dict[str, Strategy | None]:
    """Return the methods. The controls have `share` exchanges per step."""
    return {
        **EVERY,
        Calibrated.ADAPTIVE: ADAPTIVE,
        Calibrated.FIXED_PERIOD: Gossip(period=max(1, round(1 / share))),
        Calibrated.RANDOM_EXCHANGES: Gossip(probability=share),
        Calibrated.LOCAL_SGD: LocalSGD(max(1, round(RING / share))),
        Calibrated.ALONE: None,
    }


def _overlapped() -> dict[str, Strategy]:
    """Return the methods with `overlap`."""
    methods = {**EVERY, Calibrated.ADAPTIVE: ADAPTIVE}
    return {name + OVERLAP: replace(one, overlap=True) for name, one in methods.items()}


def _outcomes(asked: Sequence[Asked]) -> list[Outcome]:
    return in_processes(outcome, asked)


def _rate(rates: Mapping[str, float], name: str) -> float:
    return rates.get(name.removesuffix(OVERLAP), USUAL_RATE)


def _share(data: str, size: Size, rates: Mapping[str, float]) -> float:
    """Return the exchanges per step of adaptive gossip, measured with a separate seed."""
    (found,) = _outcomes([Asked(data, size, ADAPTIVE, _rate(rates, Calibrated.ADAPTIVE), CHOOSING_SEED)])
    return _share_of(found)


def _share_of(adaptive: Outcome) -> float:
    """Return the exchanges per step of adaptive gossip, clipped to [0.001, 1] for the controls."""
    return min(1.0, max(1e-3, adaptive.exchanges_per_step))


def _measured(data: str, size: Size) -> Mapping[str, Measured]:
    seeds, rates = range(size.pick(1, 3, 3)), saved_rates(data)
    methods = {**_methods(_share(data, size, rates)), **_overlapped()}
    asked = [
        Asked(data, size, one, _rate(rates, name), seed) for name, one in methods.items() for seed in seeds
    ]
    every = iter(_outcomes(asked))
    found = {name: [next(every) for _ in seeds] for name in methods}
    _print(data, size, found, rates)
    _draw(data, size, rates)
    return _figures(found)


def _figures(found: Mapping[str, list[Outcome]]) -> Mapping[str, Measured]:
    """Return the figures of a dataset. They compare with the quickest and the most accurate topology at every step."""
    adaptive = found[Calibrated.ADAPTIVE]
    random = found[Calibrated.RANDOM_PARTNERS]
    quickest = min((found[name] for name in EVERY), key=_seconds)
    best = max((found[name] for name in EVERY), key=lambda rows: fmean(one.accuracy for one in rows))
    overlapped = min((found[name + OVERLAP] for name in EVERY), key=_seconds)
    return {
        "traffic_ratio": [one.bytes / base.bytes for one, base in zip(adaptive, random, strict=True)],
        "time_ratio": _times(adaptive, quickest),
        "time_ratio_random": _times(adaptive, random),
        "time_ratio_overlapped": _times(found[Calibrated.ADAPTIVE + OVERLAP], overlapped),
        "accuracy_gap_points": _gaps(best, adaptive),
        "adaptive_over_period_gap_points": _gaps(found[Calibrated.FIXED_PERIOD], adaptive),
        "adaptive_over_random_gap_points": _gaps(found[Calibrated.RANDOM_EXCHANGES], adaptive),
        "adaptive_over_local_sgd_gap_points": _gaps(found[Calibrated.LOCAL_SGD], adaptive),
        "adaptive_over_alone_gap_points": _gaps(found[Calibrated.ALONE], adaptive),
        "accuracy": [one.accuracy for one in adaptive],
        "accuracy_every_step": [one.accuracy for one in best],
        "accuracy_single_peer": [one.single for one in adaptive],
        "disagreement": [one.disagreements[-1] for one in adaptive],
    }


def _seconds(rows: Sequence[Outcome]) -> float:
    return fmean(one.seconds for one in rows)


def _times(rows: Sequence[Outcome], base: Sequence[Outcome]) -> list[float]:
    return [one.seconds / other.seconds for one, other in zip(rows, base, strict=True)]


def _gaps(control: Sequence[Outcome], adaptive: Sequence[Outcome]) -> list[float]:
    """Return the accuracy of the control minus the accuracy of adaptive gossip, in points, by seed."""
    return [100 * (one.accuracy - other.accuracy) for one, other in zip(control, adaptive, strict=True)]


def _print(data: str, size: Size, found: Mapping[str, list[Outcome]], rates: Mapping[str, float]) -> None:
    base = found[Calibrated.RANDOM_PARTNERS]
    samples = len(job_of(data, size).train_data[0])
    show(
        f"{data}: {samples:,} images, {PEERS} peers, batches of {BATCH}, pull = {PULL_STEPS} steps, {len(base)} seeds",
        ["method", "learning rate", "exchanges per step", "bytes", "time", "accuracy", "single peer"],
        [
            [
                name,
                f"{_rate(rates, name)}",
                median_and_range([one.exchanges_per_step for one in rows]),
                median_and_range([one.bytes / other.bytes for one, other in zip(rows, base, strict=True)]),
                median_and_range(_times(rows, base)),
                median_and_range([one.accuracy for one in rows], 4),
                median_and_range([one.single for one in rows], 4),
            ]
            for name, rows in found.items()
        ],
    )


def _draw(data: str, size: Size, rates: Mapping[str, float]) -> None:
    """Plot the disagreement by epoch (full runs only)."""
    if size is not Size.FULL:
        return
    methods: dict[str, Strategy] = {
        Calibrated.RANDOM_PARTNERS: EVERY[Calibrated.RANDOM_PARTNERS],
        Calibrated.ADAPTIVE: ADAPTIVE,
    }
    asked = [Asked(data, size, one, _rate(rates, name), 0, evaluates=True) for name, one in methods.items()]
    drawn = [
        Line(name, [(float(epoch), value) for epoch, value in enumerate(one.disagreements, 1)], color)
        for color, (name, one) in enumerate(zip(methods, _outcomes(asked), strict=True))
    ]
    plots.save(
        size,
        f"gossip_disagreement{suffix(data)}",
        f"Disagreement of peers ({data})",
        "epoch",
        "disagreement",
        drawn,
    )
