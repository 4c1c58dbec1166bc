"""Time to an accuracy by link speed and number of peers, for gossip and its alternatives.

The accuracy is one point below the best final accuracy of all runs. Each setting has the best learning rate of a grid,
which is searched with eight peers. A single peer computes all minibatches itself.

A small network stands for a model of 100 MB with steps of 0.65 s: over links of 1,000 Mbit/s, a pull takes 1.3 steps.
Gossip is simulated with all queues of the links, and its time includes the final average of all models. The other
methods are trained without a network. A cost model gives their times:

- all-reduce on a ring: 2 (n - 1) / n models per step, in both directions at once, fully overlapped with the step
- LocalSGD: the same, once per round, without overlap
- single peer: no network, and the steps of all peers together
- asynchronous star: the hub has the same link as a peer, and transfers n models in each direction per step of all
  peers
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from html import escape
from math import inf, log10

from benchmarks.gossip.training import PICTURES
from benchmarks.plots import COLORS, PLOTS
from benchmarks.processes import in_processes
from benchmarks.report import Measured, Size, show
from benchmarks.stragglers.networks import Small
from oddlot import (
    SGD,
    AdaptiveGossip,
    Asynchronous,
    Gossip,
    Job,
    LocalSGD,
    Machine,
    Simulated,
    Strategy,
    Synchronous,
    fit,
)
from oddlot.core.support.text import duration
from oddlot.machines import Link
from oddlot.workloads.mnist import fashion_mnist

STEP_SECONDS, MODEL_BYTES, BATCH = 0.65, 100e6, 16
CLOCK = 100.0
"""Divisor of virtual times, since peers ping each other twice per virtual second."""
MEGABITS: tuple[float, ...] = (10, 100, 1_000)
PEERS: tuple[int, ...] = (8, 64, 256)
EPOCHS, POINT = 12, 0.01
RATES = (0.03, 0.1, 0.3)
"""Learning rates. Methods with momentum divide them by 3."""
METHODS = ("all-reduce", "LocalSGD", "asynchronous star", "gossip", "adaptive gossip", "one peer alone")
Curve = Sequence[tuple[float, float]]
"""Accuracy by seconds, or by steps of all peers for methods with a cost model."""


@dataclass(frozen=True)
class Setting:
    """One setting of a method. Each cell of the map shows the best setting of each method."""

    method: str
    strategy: Strategy
    momentum: float = 0.9

    @property
    def is_mesh(self) -> bool:
        """Return True if the links are simulated."""
        return "gossip" in self.method

    def seconds(self, steps: float, peers: int, megabits: float) -> float:
        """Return the seconds of `steps` steps of all peers, by the cost model."""
        transfer, ring = MODEL_BYTES * 8 / (megabits * 1e6), ring_seconds(peers, megabits)
        match self.strategy:
            case Synchronous() if self.method == "one peer alone":
                return steps * STEP_SECONDS
            case Synchronous():
                return steps * max(STEP_SECONDS, ring)
            case LocalSGD(steps=count):
                return steps * (STEP_SECONDS + ring / count)
            case _:
                return steps * max(STEP_SECONDS + 2 * transfer, peers * transfer)


def ring_seconds(peers: int, megabits: float) -> float:
    """Return the seconds of a ring all-reduce of the model."""
    return 2 * (peers - 1) / peers * MODEL_BYTES * 8 / (megabits * 1e6)


SETTINGS = (
    Setting("all-reduce", Synchronous()),
    *(Setting("LocalSGD", LocalSGD(count)) for count in (4, 16, 64)),
    Setting("asynchronous star", Asynchronous(damping=0.0), 0.0),
    Setting("asynchronous star", Asynchronous(), 0.0),
    *(Setting("gossip", Gossip(period=period)) for period in (1, 8, 64)),
    *(Setting("adaptive gossip", AdaptiveGossip(threshold=threshold)) for threshold in (0.1, 0.3, 1.0)),
    Setting("one peer alone", Synchronous()),
)
Asked = tuple[Size, int, float, int, float | None]
"""Size, index of the setting, learning rate, number of peers, and Mbit/s of simulated links or None."""


@cache
def _job(size: Size) -> Job:
    job = fashion_mnist()
    inputs, labels = job.eval_data
    every = size.pick(1, 10, 10)
    return replace(
        job,
        model=partial(Small, *PICTURES["fashion_mnist"]),
        batch_size=BATCH,
        eval_data=(inputs[::every], labels[::every]),
    )


def _measured(asked: Asked) -> Curve:
    """Return the accuracy by seconds, or by steps of all peers without links."""
    size, number, lr, peers, megabits = asked
    setting = SETTINGS[number]
    rate = lr / 3 if setting.momentum else lr
    job = replace(_job(size), optimizer=SGD(lr=rate, momentum=setting.momentum))
    model_bytes = sum(one.numel() for one in job.model().parameters()) * 4
    link = (
        Link() if megabits is None else Link(megabits_per_second=CLOCK * megabits * model_bytes / MODEL_BYTES)
    )
    count = 1 if setting.method == "one peer alone" else peers
    machines = [Machine(f"m{peer}", STEP_SECONDS / BATCH / CLOCK, link=link) for peer in range(count)]
    run = fit(
        job,
        setting.strategy,
        Simulated(machines),
        until=f"epochs>={size.pick(2, EPOCHS, EPOCHS)}",
        evaluate_every="0.05 epochs" if peers < 100 else "0.1 epochs",
        quiet=True,
    )
    scale = CLOCK if megabits is not None else CLOCK / STEP_SECONDS
    return [(row["seconds"] * scale, row["accuracy"]) for row in run.history]


Cells = dict[tuple[float, int], dict[str, tuple[float, str]]]
"""Seconds and description of the best setting, by (Mbit/s, number of peers) and method."""


def measure(size: Size) -> Mapping[str, Measured]:
    """Print the map, and save its plot in a full run. Return no figures."""
    counts = size.pick((4,), PEERS, PEERS)
    links: Sequence[float] = size.pick((100,), MEGABITS, MEGABITS)
    rates = _best_rates(size, counts[0], links[len(links) // 2])
    asked: list[Asked] = [
        (size, number, rates[number], peers, megabits)
        for peers in reversed(counts)  # longest first
        for number in reversed(range(len(SETTINGS)))
        for megabits in (links if SETTINGS[number].is_mesh else (None,))
    ]
    curves = in_processes(_measured, asked)
    goal = max(curve[-1][1] for curve in curves) - POINT
    found = {
        (number, peers, megabits): reached_at(curve, goal)
        for (_, number, _, peers, megabits), curve in zip(asked, curves, strict=True)
    }
    cells: Cells = {
        (megabits, peers): _best(
            {number: _seconds(found, number, peers, megabits) for number in range(len(SETTINGS))}, rates
        )
        for megabits in links
        for peers in counts
    }
    _print(cells, goal)
    if size is Size.FULL:
        (PLOTS / "gossip_map.svg").write_text(_drawn(cells, links, counts, goal))
    return {}


def _best_rates(size: Size, peers: int, megabits: float) -> list[float]:
    """Return the learning rate with the best final accuracy, for each setting."""
    rates = RATES if size is not Size.SMOKE else RATES[:1]
    asked: list[Asked] = [
        (size, number, lr, peers, megabits if setting.is_mesh else None)
        for number, setting in enumerate(SETTINGS)
        for lr in rates
    ]
    finals = {
        one[1:3]: curve[-1][1] for one, curve in zip(asked, in_processes(_measured, asked), strict=True)
    }
    return [max(rates, key=lambda lr, number=number: finals[number, lr]) for number in range(len(SETTINGS))]


def reached_at(curve: Curve, goal: float) -> float:
    """Return the first time with an accuracy of at least `goal`, or infinity."""
    return next((time for time, accuracy in curve if accuracy >= goal), inf)


def _seconds(
    found: Mapping[tuple[int, int, float | None], float], number: int, peers: int, megabits: float
) -> float:
    setting = SETTINGS[number]
    if setting.is_mesh:
        return found[number, peers, megabits] + ring_seconds(peers, megabits)
    return setting.seconds(found[number, peers, None], peers, megabits)


def _best(times: Mapping[int, float], rates: Sequence[float]) -> dict[str, tuple[float, str]]:
    best: dict[str, tuple[float, str]] = {}
    for number, seconds in times.items():
        setting = SETTINGS[number]
        if seconds <= best.get(setting.method, (inf, ""))[0]:
            best[setting.method] = seconds, f"{setting.strategy}, rate {rates[number]}"
    return best


def _print(cells: Cells, goal: float) -> None:
    rows = [
        [f"{megabits:,}", f"{peers}", *(_text(found[method][0]) for method in METHODS), first_of(found)]
        for (megabits, peers), found in cells.items()
    ]
    title = f"seconds to an accuracy of {goal:.3f} on Fashion-MNIST, the best setting of each"
    show(title, ["Mbit/s", "peers", *METHODS, "first"], rows)


def _text(seconds: float) -> str:
    return "not reached" if seconds == inf else f"{seconds:,.0f}"


def first_of(found: Mapping[str, tuple[float, str]]) -> str:
    """Return the quickest method of a cell."""
    return min(found, key=lambda method: found[method][0])


CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 230, 126, 90, 62
"""Sizes of the plot in pixels."""


def _drawn(cells: Cells, links: Sequence[float], counts: Sequence[int], goal: float) -> str:
    """Return the map as SVG. Each cell has a bar per method: the logarithm of its time / the shortest time."""
    parts = []
    ratios = [
        one[0] / found[first_of(found)][0]
        for found in cells.values()
        for one in found.values()
        if one[0] < inf
    ]
    most = max(ratios, default=2.0)
    for number, method in enumerate(METHODS):
        x = LEFT + 150 * number
        parts.append(f'<rect x="{x}" y="28" width="12" height="12" fill="{COLORS[number]}"/>')
        parts.append(f'<text x="{x + 17}" y="39">{escape(method)}</text>')
    for row, megabits in enumerate(links):
        y = TOP + 22 + row * CELL_HEIGHT
        parts.append(f'<text x="8" y="{y + 40}">{megabits:,} Mbit/s</text>')
        for column, peers in enumerate(counts):
            x = LEFT + column * CELL_WIDTH
            if not row:
                parts.append(f'<text x="{x}" y="{TOP + 12}">{peers} peers</text>')
            parts += _bars(cells[megabits, peers], x, y, most)
    width, height = (
        max(LEFT + CELL_WIDTH * len(counts), LEFT + 150 * len(METHODS)),
        TOP + 30 + CELL_HEIGHT * len(links),
    )
    title = f"Time to an accuracy of {goal:.3f}; length of a bar: logarithm of the time over the shortest"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><style>text{{font:12px sans-serif;'
        f'fill:#334155}}.first{{font-weight:bold}}</style><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="8" y="18" class="first">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _bars(found: Mapping[str, tuple[float, str]], x: float, y: float, most: float) -> list[str]:
    """Return the bars of a cell. The longest bar of the map stands for `most` times the shortest time of its cell."""
    first = first_of(found)
    least = found[first][0]
    parts = []
    for number, method in enumerate(METHODS):
        seconds, top = found[method][0], y + 18 * number
        length = 130.0 if seconds == inf else 8 + 122 * log10(seconds / least) / log10(max(most, 2.0))
        message = "not reached" if seconds == inf else duration(seconds)
        bold = ' class="first"' if method == first else ""
        opacity = ' opacity="0.3"' if seconds == inf else ""
        parts.append(
            f'<rect x="{x}" y="{top}" width="{length:.1f}" height="13" fill="{COLORS[number]}"{opacity}/>'
            f'<text x="{x + length + 5:.1f}" y="{top + 11}"{bold}>{message}</text>'
        )
    return parts
