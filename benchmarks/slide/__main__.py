"""Layers with very many outputs on a CPU.

`oddlot.sparse` computes only a few outputs for each example. Its speed, memory and P@1 are compared with dense PyTorch
and with sampled softmax in PyTorch, on generated datasets with 30,000 to 670,091 outputs and on real labels.

ODDLOT_DATA=... python -m benchmarks.slide [--quick|--smoke] [--save] [--shape 30k|200k|670k ...] [--only PART ...]
"""

from collections.abc import Callable, Iterable, Mapping

from benchmarks import smoke
from benchmarks.report import Measured, Size, finish, parse, parser
from benchmarks.slide import (
    ablations,
    floor,
    hashing,
    inference,
    quality,
    reading,
    real,
    speed,
    threads,
    updates,
)
from benchmarks.slide.setting import SHAPES, begin, write_real

Figures = Mapping[str, Measured]
PARTS: dict[str, Callable[[Size, list[str]], Figures]] = {
    "speed": speed.measure,
    "threads": threads.measure,
    "quality": quality.measure,
    "real": lambda size, _: real.measure(size),
    "hashing": lambda size, _: hashing.measure(size),
    "floor": floor.measure,
    "inference": inference.measure,
    "ablations": lambda size, _: ablations.measure(size),
    "reading": lambda size, _: reading.measure(size),
    "updates": updates.measure,
}
WITHOUT_FIGURES = ("ablations", "updates")
FULL_ONLY = ("real", "hashing", *WITHOUT_FIGURES, "200k", "670k")
"""Parts and shapes that --quick skips, so that it never replaces figures of full runs."""
SEARCH = "search"
"""Part that takes minutes. Its result is in quality.py. It runs only on request."""


def chosen(size: Size, every: Iterable[str], asked: list[str] | None) -> list[str]:
    """Return the requested parts or shapes (default: all of this size). Raises ValueError if this size skips one."""
    left_out = [one for one in every if one in FULL_ONLY and size is Size.QUICK]
    if wrong := [one for one in asked or () if one in left_out]:
        raise ValueError(f"--quick leaves out {', '.join(wrong)}: run without --quick")
    return asked or [one for one in every if one not in left_out]


def main() -> None:
    """Measure, print the tables and the figures."""
    line = parser("slide", __doc__, "30,000 outputs, without real labels, one seed")
    line.add_argument("--shape", nargs="*", choices=list(SHAPES), help="default: all of this size")
    line.add_argument("--only", nargs="*", choices=(*PARTS, SEARCH), help="parts; default: all of this size")
    asked = parse(line)
    try:
        parts, shapes = chosen(asked.size, PARTS, asked.only), chosen(asked.size, SHAPES, asked.shape)
    except ValueError as error:
        line.error(str(error))
    begin()
    figures = dict[str, Measured]()
    with smoke.data(asked.size, write_real):
        if SEARCH in parts:
            quality.search(asked.size)
        for part in (one for one in PARTS if one in parts):
            measured = PARTS[part](asked.size, shapes)
            if not measured and part not in WITHOUT_FIGURES:
                print(f"{part}: nothing of {', '.join(shapes)}", flush=True)
            figures |= measured
    finish(asked, figures)


if __name__ == "__main__":
    main()
