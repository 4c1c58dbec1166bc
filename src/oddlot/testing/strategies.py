"""Does a strategy keep its promises, whatever happens? Random histories, and the shortest one that breaks one."""

from collections.abc import Callable, Sequence

from oddlot.core.errors import UsageError
from oddlot.core.strategy import Strategy
from oddlot.testing.play import Data
from oddlot.testing.trial import MOVES, PROMISES, BrokenPromise, Move, Trial

__all__ = ["BrokenPromise", "check_strategy"]


def check_strategy(
    make: Callable[[], Strategy],
    *,
    in_flight: Sequence[int] = (1, 2),
    examples: int = 100,
    size: int = 40,
    batch: int = 8,
) -> None:
    """Raise `BrokenPromise`, with the shortest history found, unless the strategy keeps its promises.

    `make` gives a new strategy each time. Random histories of joins, losses, leavings, whole, partial, late and
    refused results, cancellations and passing time drive a real conductor over one to three epochs of up to
    `size` samples, in one to three shards, with and without an epoch barrier; then everybody answers.

        promise 1   the same history gives the same actions
        promise 2   a copy made in mid-run, or saved as JSON and read back, continues identically
        promise 3   late results of lost workers never reach the strategy
        promise 4   someone is always working or an alarm is set, while there is work left and a worker to do it
        promise 5   every finite history ends with nothing held
        beside them the books add up, and the strategy asks only for what they allow
    """
    try:
        from hypothesis import HealthCheck, Phase, given, settings
        from hypothesis import strategies as st
        from hypothesis.errors import FlakyFailure
    except ImportError:
        raise UsageError("check_strategy needs Hypothesis: pip install hypothesis") from None

    data = st.builds(
        Data,
        size=st.integers(1, size),
        epochs=st.integers(1, 3),
        barrier=st.booleans(),
        in_flight=st.sampled_from(list(in_flight)),
        batch=st.just(batch),
        shards=st.integers(1, 3),
        skip_bad=st.just(value=True),
    )
    move = st.tuples(st.sampled_from(MOVES), st.integers(0, 7), st.integers(0, 3))
    moves = st.integers(0, 40).flatmap(lambda count: st.lists(move, min_size=count, max_size=count))

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=data, moves=moves, copied_after=st.integers(0, 20))
    def every_history(data: Data, moves: list[Move], copied_after: int) -> None:
        trial = Trial(make, data)
        trial.live(moves, copied_after)
        trial.end()

    try:
        every_history()
    except BrokenPromise as broken:
        raise BrokenPromise(str(broken)) from None
    except FlakyFailure as flaky:
        raise BrokenPromise(
            f"promise 1 is broken: {PROMISES[1]}.\nHere a history broke a promise, and not when it was repeated: the "
            f"strategy keeps something outside itself.\nThe first time {flaky.exceptions[0]}"
        ) from None
