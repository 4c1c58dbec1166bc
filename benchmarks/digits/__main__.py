"""Digits by map, combine and reduce (Sun et al. 2015).

- Whether the weights after all stages of `digit_autoencoder` have the same bits with 1, 2 and 4 workers, with killed
  workers, with a resume, with copies of slow tasks, and in the simulator.
- The speedup of exact rounds by the number of workers, on this machine and by simulation, their time over rounds that
  are not exact, and the bytes of their updates.
- Full form: the accuracy and the reconstruction error on MNIST, with and without pre-training, and with the paper's
  recipe.

ODDLOT_DATA=... python -m benchmarks.digits [--quick|--smoke] [--save]
"""

from benchmarks.digits.accuracy import measure
from benchmarks.digits.exactness import bit_identical
from benchmarks.digits.speed import figures
from benchmarks.report import Size, finish, parse, parser


def main() -> None:
    """Measure, print the tables and the figures."""
    options = parse(parser("digits", __doc__, "10,000 images, small networks, within 6 minutes"))
    size = options.size
    epochs = {"pretrain_epochs": 1, "autoencoder_epochs": 1, "classifier_epochs": size.pick(1, 2, 2)}
    widths = size.pick((784, 32, 30), (784, 128, 30), (784, 256, 128, 30))
    network = {"limit": size.pick(1_400, 4_000, 10_000), "widths": widths, **epochs}
    found = {
        "bit_identical": bit_identical(network),
        **figures(size, is_saved=options.save),
        **(measure(size) if size is not Size.QUICK else {}),
    }
    finish(options, found)


if __name__ == "__main__":
    main()
