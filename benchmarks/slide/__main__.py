"""Huge output layers on a CPU, beside dense PyTorch and its sampled softmax.

ODDLOT_DATA=... python -m benchmarks.slide [--quick] [--shape 30k|200k|670k ...] [--only PART ...]
"""

import argparse

from benchmarks.report import finish
from benchmarks.slide import ablations, floor, hashing, inference, quality, reading, real, speed
from benchmarks.slide.setting import SHAPES, begin

SEARCH = "search"
"""minutes of work whose result stands in quality.py: asked for by name alone"""
PARTS = ("speed", "quality", "real", "hashing", "floor", "inference", "ablations", "reading")


def main() -> None:
    """Measure, print the tables, print the line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer examples and rounds")
    parser.add_argument("--shape", nargs="*", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--only", nargs="*", choices=(*PARTS, SEARCH), default=PARTS)
    asked = parser.parse_args()
    begin()
    figures: dict[str, float | None] = {}
    if "speed" in asked.only:
        figures |= speed.measure(asked.quick, asked.shape)
    if SEARCH in asked.only:
        quality.search()
    if "quality" in asked.only:
        figures |= quality.measure(asked.quick) if "30k" in asked.shape else {}
        figures |= quality.large() if "670k" in asked.shape and not asked.quick else {}
    if "real" in asked.only:
        figures |= real.measure(asked.quick)
    if "hashing" in asked.only:
        figures |= hashing.measure(asked.quick)
    if "floor" in asked.only:
        figures |= floor.measure(asked.shape)
    if "inference" in asked.only:
        figures |= inference.measure(asked.quick, asked.shape)
    if "ablations" in asked.only:
        ablations.measure(asked.quick)
    if "reading" in asked.only:
        figures |= reading.measure()
    finish(figures)


if __name__ == "__main__":
    main()
