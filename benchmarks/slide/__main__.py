"""Layers with very many outputs on a CPU.

`oddlot.sparse` computes few of the outputs for each example. Its speed, memory and P@1 are compared with those of dense
PyTorch and of sampled softmax in PyTorch, on generated data sets with 30,000 to 670,091 outputs and on real labels.

ODDLOT_DATA=... python -m benchmarks.slide [--quick|--smoke] [--save] [--shape 30k|200k|670k ...] [--only PART ...]
"""

from collections.abc import Callable, Mapping

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
SEARCH = "search"
"""minutes of work whose result stands in quality.py: asked for by name alone"""


QUICK = "30k"
"""the one shape of the quick form: figures of the others are those of full runs"""


def shapes_of(size: Size, asked: list[str] | None) -> list[str]:
    """Return the shapes to measure, of those asked for (None: all)."""
    return [one for one in asked or SHAPES if one == QUICK or size is not Size.QUICK]


def main() -> None:
    """Measure, print the tables, print the line."""
    line = parser("slide", __doc__, "fewer examples and rounds")
    line.add_argument("--shape", nargs="*", choices=list(SHAPES), help="default: all; with --quick: 30k")
    line.add_argument("--only", nargs="*", choices=(*PARTS, SEARCH), default=list(PARTS))
    asked = parse(line)
    shapes = shapes_of(asked.size, asked.shape)
    if not shapes:
        line.error(f"--shape: --quick measures {QUICK} only. Leave out --quick.")
    begin()
    figures = dict[str, Measured]()
    with smoke.data(asked.size, write_real):
        if SEARCH in asked.only:
            quality.search(asked.size)
        for part in (one for one in PARTS if one in asked.only):
            measured = PARTS[part](asked.size, shapes)
            if not measured and part not in WITHOUT_FIGURES:
                print(f"{part}: nothing of {', '.join(shapes)}", flush=True)
            figures |= measured
    finish(asked, figures)


if __name__ == "__main__":
    main()
