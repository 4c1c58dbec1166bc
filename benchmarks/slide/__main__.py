"""Huge output layers on a CPU, beside dense PyTorch and its sampled softmax.

ODDLOT_DATA=... python -m benchmarks.slide [--quick] [--shape 30k|200k|670k ...] [--only PART ...]
"""

import argparse
from collections.abc import Callable, Mapping

from benchmarks.report import finish
from benchmarks.slide import ablations, floor, hashing, inference, quality, reading, real, speed, updates
from benchmarks.slide.setting import SHAPES, begin

Figures = Mapping[str, float | None]
PARTS: dict[str, Callable[[bool, list[str]], Figures]] = {
    "speed": speed.measure,
    "quality": quality.measure,
    "real": lambda quick, _: real.measure(quick),
    "hashing": lambda quick, _: hashing.measure(quick),
    "floor": lambda _, shapes: floor.measure(shapes),
    "inference": inference.measure,
    "ablations": lambda quick, _: ablations.measure(quick),
    "reading": lambda *_: reading.measure(),
    "updates": lambda _, shapes: updates.measure(shapes),
}
WITHOUT_FIGURES = ("ablations", "updates")
SEARCH = "search"
"""minutes of work whose result stands in quality.py: asked for by name alone"""


def main() -> None:
    """Measure, print the tables, print the line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer examples and rounds")
    parser.add_argument("--shape", nargs="*", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--only", nargs="*", choices=(*PARTS, SEARCH), default=list(PARTS))
    asked = parser.parse_args()
    begin()
    figures = dict[str, float | None]()
    if SEARCH in asked.only:
        quality.search()
    for part in (one for one in PARTS if one in asked.only):
        measured = PARTS[part](asked.quick, asked.shape)
        if not measured and part not in WITHOUT_FIGURES:
            print(f"{part}: nothing of {', '.join(asked.shape) or 'no shape'}", flush=True)
        figures |= measured
    finish(figures)


if __name__ == "__main__":
    main()
