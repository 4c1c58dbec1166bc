"""`check_strategy`: a property test of a strategy with random histories."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations

from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import UsageError
from oddlot.testing.run_scenario import Data
from oddlot.testing.strategy_trial import MOVES, BrokenPromise, Move, StrategyTrial

__all__ = ["BrokenPromise", "check_strategy"]


@dataclass(frozen=True, slots=True)
class Case:
    """The parameters of a random history."""

    data: Data
    workers: int
    moves: tuple[Move, ...]
    copied_after: int
    """Number of moves before the run is copied."""


def check_strategy(
    make: Callable[[], Strategy],
    *,
    in_flight: Sequence[int] = (1, 2),
    examples: int = 200,
    size: int = 60,
    batch: int = 4,
) -> None:
    """Raise BrokenPromise, with the shortest history found, unless the strategy keeps its promises.

    Random histories run the strategy for one to three epochs. Workers join, leave and are lost. Updates are complete,
    partial, late or invalid. Tasks are cancelled, and time passes. At the end, all open tasks finish.

    - Promise 0: the sample accounting is exact.
    - Promise 1: the same history gives the same actions.
    - Promise 2: a copy made during a run, or saved as JSON and read back, continues identically.
    - Promise 3: late updates of lost workers never reach the strategy.
    - Promise 4: while work and a worker are left, a task is open or an alarm is set.
    - Promise 5: when all open tasks finish and no worker is lost, every sample is merged.
    - Promise 6: the strategy sends only valid commands.

    An exception that the strategy raises is raised unchanged, with the history in its notes. Raise UsageError if
    Hypothesis is missing.

    Args:
        make: Function that returns a new strategy.
        in_flight: Numbers of open tasks per worker to test.
        examples: Number of random histories.
        size: Largest number of samples of an epoch.
        batch: Samples per minibatch.
    """
    found: list[tuple[Case, Exception]] = []

    def look(case: Case) -> None:
        error = None if found else _outcome(make, case)
        if error is not None:
            found.append((case, error))
        if found:
            raise _FoundError

    _each_case(look, examples, in_flight, size, batch)
    if found:
        raise _shortest(make, *found[0]) from None


class _FoundError(Exception):
    """Raised to end the search."""


def _each_case(
    look: Callable[[Case], None], examples: int, in_flight: Sequence[int], size: int, batch: int
) -> None:
    """Call `look` with random cases until it raises `_FoundError`."""
    try:
        from hypothesis import HealthCheck, Phase, given, settings, strategies as st
    except ImportError:
        message = "check_strategy needs Hypothesis: pip install hypothesis"
        raise UsageError(message, "not_installed", package="hypothesis") from None

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
    moves = st.lists(move, min_size=20, max_size=60).map(tuple)
    cases = st.builds(Case, data, st.integers(1, 4), moves, copied_after=st.integers(0, 20))
    quick = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # `_shortest` shrinks faster and further
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with suppress(_FoundError):
        quick(given(cases)(look))()


def _outcome(make: Callable[[], Strategy], case: Case) -> Exception | None:
    """Return the exception that this history raises, or None."""
    return _result(StrategyTrial(make, case.data, case.workers), case)


def _result(trial: StrategyTrial, case: Case) -> Exception | None:
    try:
        trial.live(case.moves, case.copied_after)
        trial.end()
    except Exception as error:  # noqa: BLE001  # strategies may raise any exception
        return error
    return None


def _shortest(make: Callable[[], Strategy], case: Case, error: Exception) -> Exception:
    """Return the same failure with the shortest history found, if possible of few moves with one sample."""
    if (tiny := _tiniest(make, case, error)) is not None:
        return tiny
    simpler = True
    while simpler:
        simpler = False
        for smaller in _simpler(case):
            again = _outcome(make, smaller)
            if again is not None and _kind(again) == _kind(error):
                case, error, simpler = smaller, again, True
                break
    return error


def _kind(error: Exception) -> object:
    return error.promise if isinstance(error, BrokenPromise) else type(error)


def _tiniest(make: Callable[[], Strategy], case: Case, error: Exception) -> Exception | None:
    """Return the same failure with at most three moves and one sample, or None."""
    data = replace(case.data, size=1, epochs=1, in_flight=1, shards=1, barrier=False)
    seen = set[tuple[str, ...]]()
    begun: list[tuple[Move, ...]] = [()]
    for length in range(4):
        # A wrong copy may fail only at the end.
        copied = sorted({0, length}) if _kind(error) == 2 else [0]
        histories, begun = begun, []
        for moves in histories:
            for after in copied:
                trial = StrategyTrial(make, data, workers=length)
                again = _result(trial, Case(data, length, moves, after))
                if again is not None and _kind(again) == _kind(error):
                    return again
            if trial.lived not in seen:  # not if an impossible move was replaced
                seen.add(trial.lived)
                begun += [(*moves, (verb, 0, 0)) for verb in dict.fromkeys(MOVES)]
    return None


def _simpler(case: Case) -> Iterator[Case]:
    """Yield cases with one simplification each, the largest simplifications first."""
    for moves in _shorter(case.moves):
        yield replace(case, moves=moves)
        yield replace(case, moves=tuple((verb, 0, amount) for verb, _, amount in moves))
    for data in _smaller(case.data):
        yield replace(case, data=data)
    for count in sorted({0, max(0, case.copied_after - 1)} - {case.copied_after}):
        yield replace(case, copied_after=count)
    for at, (verb, pick, amount) in enumerate(case.moves):
        plainer = "lose" if verb == "resume" else verb
        for move in ((plainer, pick, amount), (verb, 0, amount), (verb, pick, 0)):
            if move != case.moves[at]:
                yield replace(case, moves=(*case.moves[:at], move, *case.moves[at + 1 :]))


def _smaller(data: Data) -> Iterator[Data]:
    for size in sorted({1, max(1, data.size // 2), max(1, data.size - 1)} - {data.size}):
        yield replace(data, size=size)
    for epochs in range(1, data.epochs or 1):
        yield replace(data, epochs=epochs)
    for shards in range(1, data.shards):
        yield replace(data, shards=shards)
    for in_flight in range(1, data.in_flight):
        yield replace(data, in_flight=in_flight)
    if data.barrier:
        yield replace(data, barrier=False)


def _shorter(moves: tuple[Move, ...]) -> Iterator[tuple[Move, ...]]:
    for length in (16, 8, 4, 2, 1):
        for at in range(0, len(moves), 1 if length < 4 else length):
            yield moves[:at] + moves[at + length :]
    if 2 <= len(moves) < 12:
        yield from combinations(moves, len(moves) - 2)
