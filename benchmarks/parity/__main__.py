"""Training with oddlot against the plain PyTorch loop that it replaces.

- The largest difference of a weight from a plain loop on the same minibatches, for one worker with `synchronous`.
- The accuracy after equal samples, with 1 and 4 workers, against the plain loop. `sync` has the job's settings; the
  others have the best of a few learning rates, and `asynchronous` a smaller momentum.
- The perplexity of a small GPT after equal samples, with `synchronous`.
- Samples per second of a whole job with loading, augmentation, evaluation and checkpoints, against the better of plain
  loops with 0 and 2 loading processes.
- The lines that the example scripts need to run with oddlot.

ODDLOT_DATA=... python -m benchmarks.parity [--quick|--smoke] [--save]
"""

from dataclasses import replace

import numpy as np

from benchmarks.parity.exactness import BATCH, Arrays, largest_differences
from benchmarks.parity.example_pairs import most_lines_changed
from benchmarks.parity.gaps import SETTINGS, gaps
from benchmarks.parity.whole_job import whole_job_over_plain
from benchmarks.report import Size, finish, parse, parser
from oddlot import Job
from oddlot.workloads.char_lm import char_lm
from oddlot.workloads.cifar10 import cifar10
from oddlot.workloads.mnist import mnist
from oddlot.workloads.small_cnn import pictures_job


def main() -> None:
    """Measure, print the tables and the figures."""
    options = parse(parser("parity", __doc__, "10,000 images, 2 epochs, within 6 minutes"))
    size = options.size
    jobs = _jobs(size)
    pictures = jobs["MNIST"]
    train, test = (_scaled(part) for part in (pictures.train_data, pictures.eval_data))
    few = _first(train, size.pick(256, 1024, 4096))
    figures = {"max_abs_difference_to_torch": largest_differences(few, 2, size.pick(1, 3, 3))}
    epochs, seeds = size.pick(1, 2, 5), range(size.pick(1, 3, 3))
    for name, job in jobs.items():
        for key, gap in gaps(name, job, "accuracy", epochs, [*seeds], _points).items():
            figure = f"{key}_gap_points"
            figures[figure] = max(gap, figures.get(figure, gap))
    figures["sync_gap_perplexity"] = gaps(
        "char_lm", _language(size), "perplexity", epochs, [*seeds], _relative, SETTINGS[:2]
    )["sync"]
    figures["whole_job_over_plain"] = whole_job_over_plain(
        _first(train, 10_000), _first(test, 1_000), size.pick(1, 3, 5), size.pick(1, 3, 5)
    )
    figures["lines_changed_max"] = float(most_lines_changed())
    finish(options, figures)


def _jobs(size: Size) -> dict[str, Job]:
    """Return the jobs of images: MNIST, with CIFAR-10 in the full form, or noise in the smoke form."""
    if size is Size.SMOKE:
        seeded = np.random.default_rng(0)
        noise = [
            (
                seeded.integers(256, size=(count, 28, 28), dtype=np.uint8),
                seeded.integers(10, size=count, dtype=np.uint8),
            )
            for count in (512, 256)
        ]
        return {"MNIST": pictures_job("noise", noise[0], noise[1], 8, BATCH, "")}
    job = mnist(batch_size=BATCH)
    if size is Size.QUICK:
        return {"MNIST": replace(job, train_data=_first(job.train_data, 10_000))}
    return {"MNIST": job, "CIFAR-10": cifar10(batch_size=BATCH)}


def _language(size: Size) -> Job:
    """Return the job of a small GPT on 100,000 characters, or on all in the full form."""
    return char_lm(tokens=size.pick(5_000, 100_000, 0), width=size.pick(8, 64, 64))


def _first(arrays: Arrays, count: int) -> Arrays:
    return arrays[0][:count], arrays[1][:count]


def _scaled(arrays: Arrays) -> Arrays:
    """Return images with values from 0 to 1."""
    return arrays[0].astype(np.float32) / 255, arrays[1]


def _relative(plain: float, ours: float) -> float:
    """Return how much larger a perplexity is, relative to the plain loop."""
    return ours / plain - 1 if plain else ours


def _points(plain: float, ours: float) -> float:
    """Return how much worse an accuracy is, in percentage points."""
    return 100 * (plain - ours)


if __name__ == "__main__":
    main()
