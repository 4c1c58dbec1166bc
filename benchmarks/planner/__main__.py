"""The planner's predictions against simulated runs.

- Seconds per update of 32 machines in 1 to 32 groups, against the simulator without gradients.
- The best momentum on least squares with exponential delays, against theorem 7 of "Asynchrony begets Momentum".
- The speed of ResNet-20 with the best batch size, over one image at a time (`oddlot profile`). Full form: also of a
  small network.
- The time to an accuracy on digits with tuned momentum, over the time with 0.9, each at its own best learning rate.
- The time of a plan against an exhaustive search and against default settings, and its predictions against simulated
  runs of other seeds. Full form: two jobs on three fleets. `--quick`: one job on 32 spot machines with stragglers.
- The time of a plan for 4 worker processes, two of them slowed down, against all numbers of groups measured.
- The time to the goal with the paper's optimizer, with and without its probes.
- The cost of a job with a deadline on recorded spot markets, against greedy buying and the optimum by hindsight.

ODDLOT_DATA=... python -m benchmarks.planner [--quick|--smoke] [--save]
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.planner import deadlines, search
from benchmarks.planner.batching import batching_speedup
from benchmarks.planner.hardware import errors
from benchmarks.planner.jobs import JOBS
from benchmarks.planner.momentum import differences
from benchmarks.planner.paper_optimizer import MAX_SECONDS, paper_runs
from benchmarks.planner.real import real_over_best
from benchmarks.planner.tuning import tuned_over_untuned
from benchmarks.report import Size, finish, parse, parser


def main() -> None:
    """Measure, print the tables and the figures.

    Figures in virtual time are measured in two processes, real times afterwards.
    """
    options = parse(parser("planner", __doc__, "fewer updates and seeds, within 6 minutes"))
    size = options.size
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        searches = pool.submit(
            search.figures, size, size.pick(1, 5, 20), size.pick((32,), (32,), (16, 32, 64))
        )
        tuned = pool.submit(
            tuned_over_untuned, size.pick(1, 3, 3), size.pick(2, 36, 36), size.pick(0.15, 0.95, 0.95)
        )
        buying = pool.submit(deadlines.figures, size)
        times = pool.submit(errors, size.pick(40, 200, 4_000))
        momentum = pool.submit(
            differences,
            size.pick((5.0,), (5.0, 20.0), (5.0, 10.0, 20.0)),
            size.pick((2,), (1, 2, 4, 8), (1, 2, 4, 8)),
            size.pick(100, 20_000, 100_000),
        )
        longest = size.pick(20.0, MAX_SECONDS, MAX_SECONDS)
        pool.submit(paper_runs, size.pick(1, 1, 3), longest, tuple(JOBS)[: size.pick(1, 1, 2)]).result()
        found = times.result()
        figures = {
            "he_error_cv0": max(found[0.0]),
            "he_error_fitted": max(found[0.3] + found[1.0]),
            "momentum_error": max(momentum.result()),
            **buying.result(),
            **searches.result(),
            "tuned_over_untuned": tuned.result(),
        }
    figures["cpu_batching_speedup"] = batching_speedup(is_full=size is Size.FULL)
    goal = size.pick("accuracy>=0.2", "accuracy>=0.95", "accuracy>=0.95")
    figures["real_over_best"] = real_over_best(goal, 30, size.pick(1, 1, 3))
    finish(options, figures)


if __name__ == "__main__":
    main()
