"""AdaptiveLoad: the best k and samples per task at each error, with given or measured round times."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oddlot
from oddlot import SGD, AdaptiveLoad, Job, Machine, ProportionalLoad, Run, Simulated
from oddlot.core.commands import Abort, Start, Step
from oddlot.core.conductor import Conductor
from oddlot.core.events import Arrived, Changed, Joined, Lost, RoundTimesFitted, Ticked
from oddlot.core.records import Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import samples_in
from oddlot.core.support.errors import UsageError
from oddlot.core.tasks import Facts
from oddlot.machines import Exponential, Lifetime, Link
from oddlot.strategies import ByError, ByGradients
from oddlot.strategies.support.round_planning import RoundKind, stages
from oddlot.strategies.support.stage_switching import ByPlateau, Switch
from oddlot.timing.order_statistics import rounds_of
from oddlot.timing.response_times import Hypoexponential
from tests.strategies.plain_model import PlainModel, Played, played
from tests.transcripts import raises, warns

WORKERS, SAMPLES, BATCH, LR, A = 6, 60_000, 16, 0.003, 1.0
ROWS = rounds_of([Hypoexponential(1.0, 0.2)] * WORKERS, (1, 2, 4, 8, 16))
FALLING, NOISE = torch.ones(SAMPLES), torch.randn(SAMPLES, generator=torch.Generator().manual_seed(1))


def slope(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss with the mean of the batch's numbers as its gradient."""
    out: Tensor = model(torch.ones(1, 1)).sum() * batch[0].mean()
    return out


def one() -> nn.Module:
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    return net


def a_job(numbers: Tensor) -> Job:
    """Return a job with one weight. It is also the metric `error`. If all numbers are 1, each round lowers it by LR."""
    return Job(
        one,
        (numbers,),
        training_step=slope,
        eval_data=(torch.ones(2, 1), torch.zeros(2)),
        predict=lambda net, batch: (net(batch[0])[:, 0], batch[1]),
        metrics={"error": lambda out, targets: float(out.mean())},
        optimizer=SGD(lr=LR),
        batch_size=BATCH,
    )


LINK = Link(latency_milliseconds=500, delay=Exponential())
MACHINES = [Machine(f"m{n}", 0.2, Exponential(), LINK, stops_at_once=True) for n in range(WORKERS)]


def trained(strategy: AdaptiveLoad, numbers: Tensor = FALLING, until: str = "versions>=20") -> Run:
    return oddlot.fit(a_job(numbers), strategy, Simulated(MACHINES), until=until, evaluate_every="1 versions")


def played_until(
    versions: int,
    strategy: AdaptiveLoad,
    numbers: Tensor = FALLING,
    machines: Sequence[Machine] = MACHINES,
    in_flight: int = 1,
) -> Played:
    """Train like `trained`, but without PyTorch."""
    model = PlainModel(numbers.tolist(), lr=LR)
    how = {"versions": versions, "evaluate_every": 1, "in_flight": in_flight}
    return played(strategy, machines, model, BATCH, **how)


@cache
def by_error() -> Played:
    return played_until(330, AdaptiveLoad(ROWS, ByError(A, "error"), least=1))


def rounds(run: Run | Played) -> list[tuple[float, int, int]]:
    """Return the start time, number of updates and samples per task of each round."""
    found, began, given = [], 0.0, 0
    for record in run.records:
        for action in record.actions:
            if isinstance(action, Step):
                found.append((began, len(action.shares), given))
                began = record.now
            elif isinstance(action, Start):
                given = samples_in(action.task.spans)
    return found


def fits_of(run: Run | Played) -> list[Record]:
    """Return the records with fitted round times."""
    return [record for record in run.records if isinstance(record.event, RoundTimesFitted)]


def test_error_selects_k_and_load_of_rounds() -> None:
    run = by_error()
    path = stages(RoundKind(*row) for row in ROWS)
    seen = set[int]()
    for version, (_, k, samples) in list(enumerate(rounds(run)))[2:]:  # no evaluation before
        at = next(i for i, stage in enumerate(path) if (1 - LR * version) / A >= stage.until)
        near = {(path[i].choice.k, path[i].choice.samples) for i in (max(0, at - 1), at)}
        assert (k, samples) in near, "the round under way keeps its load"
        seen.add(at)
    assert len(seen) > 5


def test_slow_tasks_are_cancelled_and_their_workers_restarted() -> None:
    run = by_error()
    starts = sum(isinstance(action, Start) for record in run.records for action in record.actions)
    aborts = sum(isinstance(action, Abort) for record in run.records for action in record.actions)
    taken = sum(k for _, k, _ in rounds(run))
    assert aborts > 2 * taken
    assert taken + aborts < starts < 1.01 * (taken + aborts), (
        "but for leases that lapsed, and tasks that had just begun"
    )


def test_plateau_of_the_metric_ends_stages() -> None:
    """A stage ends when the metric no longer falls: it falls in all rounds, or in no round."""
    first, *_, last = (
        (stage.choice.k, stage.choice.samples) for stage in stages(RoundKind(*row) for row in ROWS)
    )
    strategy = AdaptiveLoad(ROWS, ByPlateau("error", "min", patience=10), least=1)
    falling = rounds(played_until(60, strategy))
    assert {(k, samples) for _, k, samples in falling} == {first}
    still = rounds(played_until(200, strategy, 0 * FALLING))
    assert (*still[0][1:],) == first
    assert (*still[-1][1:],) == last
    sizes = [k * samples for _, k, samples in still]
    assert 10 <= sizes.index(next(size for size in sizes if size > sizes[0])) <= 13, (
        "patience, and what is under way"
    )


def test_noisy_gradients_end_stages() -> None:
    strategy = AdaptiveLoad(ROWS, ByGradients(2, threshold=0, burn_in=10), least=1)
    found = [k * samples for _, k, samples in rounds(played_until(300, strategy, NOISE))]
    assert found == sorted(found)
    kept = sorted(set(found))
    assert kept[0] == 1
    assert all(after >= 1.5 * before for before, after in pairwise(kept[:-1])), (
        "by a gain, but for the last one"
    )
    assert len(kept) > 5
    still = rounds(played_until(60, strategy))
    assert {(k, samples) for _, k, samples in still} == {(1, 1)}


def test_agreeing_gradients_shrink_rounds_below_a_batch() -> None:
    """`least` prevents smaller rounds. After the end of a stage, rounds only grow."""
    switch = ByGradients(2, threshold=1)
    falling = [k * samples for _, k, samples in rounds(played_until(120, AdaptiveLoad(ROWS, switch)))]
    assert falling[0] >= BATCH
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == 1
    assert len(set(falling)) > 4, "stage by stage"
    least = AdaptiveLoad(ROWS, ByGradients(2, threshold=1), least=BATCH)
    assert {k * samples for _, k, samples in rounds(played_until(60, least))} == {falling[0]}
    noise = AdaptiveLoad(ROWS, ByGradients(1, threshold=0))
    sizes = [k * samples for _, k, samples in rounds(played_until(200, noise, NOISE))]
    fell = [at for at, (before, after) in enumerate(pairwise(sizes)) if after < before]
    rose = [at for at, (before, after) in enumerate(pairwise(sizes)) if after > before]
    assert fell
    assert max(fell) < min(rose)


def test_larger_rounds_of_similar_duration_are_used_at_once() -> None:
    """The network takes most of the time here. `ByError` still uses smaller rounds while they are faster."""
    rows = ((WORKERS, 4, 2.0), (WORKERS, 16, 2.1))
    for switch, taken in ((ByGradients(), 16), (ByError(1e-9, "error"), 4)):
        found = rounds(played_until(5, AdaptiveLoad(rows, switch, least=1)))
        assert {given for _, _, given in found} == {taken}


def test_rounds_are_measured_at_the_start_and_periodically() -> None:
    strategy = AdaptiveLoad(switch=ByError(A, "error"), least=1, measuring=0.1)
    run = played_until(330, strategy)
    fits = fits_of(run)
    found = rounds(run)
    assert [row[1:] for row in found[:4]] == [(WORKERS, BATCH)] * 4
    assert fits[0].now == found[4][0], "then it is known"
    assert all(k < WORKERS for _, k, _ in found[4:20])
    whole = [
        (began, after)
        for (began, k, load), (after, _, _) in pairwise(found[4:])
        if (k, load) == (WORKERS, BATCH)
    ]
    assert len(fits) > 1
    share = sum(after - began for began, after in whole) / run.seconds
    assert 0.05 < share < 0.2
    last = fits[-1].event
    assert isinstance(last, RoundTimesFitted)
    rows = {row[:2]: row[2] for row in last.rounds}
    exact = {row[:2]: row[2] for row in ROWS}
    assert rows[1, 16] == pytest.approx(exact[1, 16], rel=0.5)
    assert rows[6, 16] == pytest.approx(exact[6, 16], rel=0.5)


def test_measuring_zero_measures_rounds_once() -> None:
    run = played_until(250, AdaptiveLoad(switch=ByError(A, "error"), least=1, measuring=0.0))
    assert len(fits_of(run)) == 1


def test_replay_uses_round_times_from_the_log() -> None:
    strategy = AdaptiveLoad(switch=ByError(A, "error"), least=1, measuring=0.1)
    run = trained(strategy, until="versions>=60")
    assert rounds(run) == rounds(played_until(60, strategy)), "as with the plain model"
    assert len(fits_of(run)) == 1
    state = Conductor(
        AdaptiveLoad(switch=ByError(A, "error"), least=1, measuring=0.1), SampleLedger(SAMPLES), BATCH
    )
    for record in run.records:
        assert state.handle(record.event, record.now).actions == record.actions


def test_last_stage_with_all_workers_is_rarely_measured() -> None:
    run = played_until(300, AdaptiveLoad(switch=ByError(1000.0, "error"), least=1, measuring=0.0))
    assert [row[1:] for row in rounds(run)[-20:]] == [(WORKERS, BATCH)] * 20
    assert len(fits_of(run)) <= 1 + 300 // 100


def test_one_worker_or_several_tasks_in_flight_are_measured() -> None:
    three = [Machine(f"m{n}", 0.2, Exponential()) for n in range(3)]
    for machines, in_flight in (([Machine("m", 0.2)], 1), (three, 2)):
        run = played_until(60, AdaptiveLoad(least=1), machines=machines, in_flight=in_flight)
        assert fits_of(run)
        assert min(samples for _, _, samples in rounds(run)[8:]) < BATCH


def test_shrunken_fleet_uses_smaller_rounds() -> None:
    lives = [Lifetime(10.0), Lifetime(10.0), None]
    machines = [Machine(f"m{n}", 0.2, lifetime=life) for n, life in enumerate(lives)]
    run = played_until(60, AdaptiveLoad(least=40), machines=machines)
    assert {k for _, k, _ in rounds(run)[-20:]} == {1}


def test_noisy_fits_do_not_advance_the_stage() -> None:
    strategy = AdaptiveLoad(least=1)
    chance = random.Random(1)
    state = Conductor(strategy, SampleLedger(SAMPLES), BATCH)
    state.handle(Joined("a"), 0.0)
    for number in range(300):
        rows = tuple((k, b, seconds * chance.uniform(0.7, 1.4)) for k, b, seconds in ROWS)
        state.handle(RoundTimesFitted(rows), float(number))
    k, samples, _ = strategy.path[strategy.stage]
    assert k * samples <= 2


def test_noisy_fits_do_not_revert_the_stage() -> None:
    strategy = AdaptiveLoad(switch=ByGradients(1, threshold=0), least=1)
    chance = random.Random(1)
    state = Conductor(strategy, SampleLedger(SAMPLES), BATCH)
    state.handle(Joined("a"), 0.0)
    state.handle(RoundTimesFitted(ROWS), 0.0)
    while strategy.size < 10:
        state.handle(Changed(state.version, inner=-1.0), 0.0)
    reached, sizes = strategy.size, set[int]()
    for number in range(200):
        rows = tuple((k, b, seconds * chance.uniform(0.7, 1.4)) for k, b, seconds in ROWS)
        state.handle(RoundTimesFitted(rows), float(number))
        k, samples, _ = strategy.path[strategy.stage]
        sizes.add(k * samples)
    assert reached / 2 <= min(sizes) <= max(sizes) <= 2 * reached


def test_gradient_statistics_restart_when_a_fit_changes_rounds() -> None:
    """If a new fit changes the rounds of the current stage, earlier gradients no longer count."""
    strategy = AdaptiveLoad(loads=(4, 16))
    assert isinstance(strategy.switch, ByGradients)
    state = Conductor(strategy, SampleLedger(SAMPLES), BATCH)
    state.handle(Joined("a"), 0.0)
    for slower, begins in ((1.0, True), (1.0, False), (9.0, True)):
        rows = tuple((k, load, slower * k + load) for k in (1, 4) for load in (4, 16))
        strategy.switch.pflug.rounds = 60
        state.handle(RoundTimesFitted(rows), 1.0)
        assert (strategy.switch.pflug.rounds == 0) == begins


def test_growing_fleet_is_measured_again() -> None:
    machines = [Machine(f"m{n}", 0.2, Exponential(), joins_at_seconds=100.0 * (n > 1)) for n in range(4)]
    run = played_until(400, AdaptiveLoad(measuring=0.001), machines=machines)
    fits = [
        (record.now, record.event) for record in run.records if isinstance(record.event, RoundTimesFitted)
    ]
    largest = [max(k for k, _, _ in event.rounds) for _, event in fits]
    assert largest[0] == 2
    assert largest[-1] == 4
    assert next(now for (now, _), k in zip(fits, largest, strict=True) if k == 4) < 200


def test_worker_that_joins_a_measured_round_waits_for_the_next() -> None:
    """A round of all workers would never end if workers kept joining."""
    state = Conductor(AdaptiveLoad(), SampleLedger(SAMPLES), BATCH)
    for node in ("a", "b"):
        state.handle(Joined(node), 0.0)
    state.handle(Arrived(Facts("a:1", "a", 0, BATCH)), 1.0)
    assert state.handle(Joined("c"), 1.5).actions == ()
    step, *starts = state.handle(Arrived(Facts("b:2", "b", 0, BATCH)), 2.0).actions
    assert isinstance(step, Step)
    assert {start.task.node for start in starts if isinstance(start, Start)} == {"a", "b", "c"}


def test_few_preemptions_in_a_large_fleet_cause_no_new_fit() -> None:
    life = Lifetime(100.0)
    machines = [Machine(f"m{n}", 0.2, Exponential(), lifetime=life, seconds_to_return=1.0) for n in range(60)]
    run = played_until(300, AdaptiveLoad(least=1, measuring=0.001), machines=machines)
    assert sum(isinstance(record.event, Lost) for record in run.records) > 20
    assert len(fits_of(run)) < 10


class Mine(ProportionalLoad):
    """A user-defined subclass."""


@pytest.mark.parametrize("around", [ProportionalLoad, Mine])
def test_proportional_load_around_adaptive_load_warns(
    around: type[ProportionalLoad],
) -> None:
    on = Simulated([Machine("m0", 0.1)])
    with warns("unequal_loads", strategy="AdaptiveLoad"):
        oddlot.fit(a_job(FALLING), around(AdaptiveLoad()), on, until="versions>=1")


def unsteady(seconds: int, **how: Any) -> Run:
    """Run on five machines with exponential times of 2 s per batch on average."""
    machines = [Machine(f"m{n}", 0.1, Exponential(), **how) for n in range(5)]
    on = Simulated(machines, computes=False)
    with warns("no_gradients_to_adapt_to", strategy="AdaptiveLoad"):
        return oddlot.fit(
            replace(a_job(FALLING), batch_size=20), AdaptiveLoad(), on, until=f"seconds>={seconds}"
        )


@pytest.mark.parametrize(("at_once", "seconds"), [(False, 800), (True, 400)])
def test_measured_rounds_have_no_timeouts(at_once: bool, seconds: int) -> None:
    """Timeouts are long enough although earlier updates of the workers were among the first of their rounds. Workers
    that have not acknowledged a cancellation take part."""
    run = unsteady(seconds, stops_at_once=at_once)
    assert not any(isinstance(record.event, Ticked) for record in run.records), "a lease has lapsed"
    assert len(fits_of(run)) >= 2


def test_constantly_changing_fleet_is_measured_part_of_the_time() -> None:
    run = unsteady(400, stops_at_once=True, lifetime=Lifetime(30.0), seconds_to_return=5.0)
    began, whole = 0.0, 0.0
    for record in run.records:
        if any(isinstance(action, Step) for action in record.actions):
            aborted = any(isinstance(action, Abort) for action in record.actions)
            began, whole = record.now, whole + (0.0 if aborted else record.now - began)
    assert whole < 0.2 * run.summary["seconds"]


@pytest.mark.parametrize("switch", [ByPlateau("los", "min"), ByError(1.0, "los")])
def test_switch_metric_must_be_evaluated(switch: Switch) -> None:
    with raises(UsageError, "metric_not_evaluated", metric="los"):
        trained(AdaptiveLoad(switch=switch))
    with raises(UsageError, "metric_not_evaluated", metric="loss"):
        oddlot.fit(
            replace(a_job(FALLING), eval_data=None, metrics={}),
            AdaptiveLoad(switch=ByPlateau()),
            until="versions>=1",
        )


def test_rounds_below_the_least_samples_are_excluded() -> None:
    run = played_until(100, AdaptiveLoad(ROWS, ByError(A, "error"), least=16))
    assert min(k * samples for _, k, samples in rounds(run)) >= 16
    given = AdaptiveLoad(switch=ByError(A, "error"), loads=(3, 5), least=1)
    found = {samples for _, _, samples in rounds(played_until(300, given))}
    assert found >= {3, 5}
    assert found <= {3, 4, 5, 6}, "no sample is left alone"
    small = tuple(row for row in ROWS if row[0] * row[1] < BATCH)
    run = played_until(100, AdaptiveLoad(small, ByError(A, "error")))
    most = max(k * samples for k, samples, _ in small)
    assert {k * samples for _, k, samples in rounds(run)} == {most}, "where all are smaller"


@pytest.mark.parametrize(
    ("make", "code", "key"),
    [
        (lambda: AdaptiveLoad(((0, 1, 1.0),)), "invalid_value", "table"),
        (lambda: AdaptiveLoad(((1, 1, float("nan")),)), "invalid_value", "table"),
        (lambda: AdaptiveLoad(((1, 1),)), "invalid_value", "table"),  # type: ignore[arg-type]  # on purpose
        (lambda: AdaptiveLoad(5), "invalid_value", "table"),  # type: ignore[arg-type]  # on purpose
        (lambda: AdaptiveLoad(((1, 1, "x"),)), "invalid_value", "table"),  # type: ignore[arg-type]
        (lambda: AdaptiveLoad(((1.5, 2, 1.0),)), "invalid_value", "table"),  # type: ignore[arg-type]
        (lambda: AdaptiveLoad(((True, 2, 1.0),)), "invalid_value", "table"),
        (lambda: AdaptiveLoad(loads=(4, True)), "invalid_value", "loads"),
        (lambda: AdaptiveLoad(loads=(4, 0)), "invalid_value", "loads"),
        (lambda: AdaptiveLoad(((1, 4, 1.0),), loads=(4,)), "loads_beside_table", "loads"),
        (lambda: AdaptiveLoad(ROWS, least=97), "least_above_all_rounds", "least"),
        (lambda: AdaptiveLoad(gain=0.5), "invalid_value", "gain"),
        (lambda: AdaptiveLoad(measuring=1.0), "invalid_value", "measuring"),
        (lambda: AdaptiveLoad(((1, 1, 0.5), (3, 1, 1.0))).validate(2, ["loss"]), "too_few_workers", "table"),
        (lambda: ByError(0.0), "invalid_value", "a"),
        (lambda: ByError(1.0, lowest=float("nan")), "invalid_value", "lowest"),
    ],
)
def test_invalid_settings_are_rejected(make: Callable[[], Any], code: str, key: str) -> None:
    with raises(UsageError, code) as caught:
        make()
    assert caught.value.key == key
