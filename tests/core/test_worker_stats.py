"""Statistics of workers: timeouts and task sizes."""

import pytest

from oddlot.core.worker_stats import WorkerStats


def worker_stats(results: int = 0, seconds: float = 8.0, samples: int = 4) -> WorkerStats:
    it = WorkerStats()
    it.join("a", now=0.0)
    for _ in range(results):
        it.result("a", samples, seconds, now=9.0)
    return it


def slow(times: float = 64.0) -> WorkerStats:
    """Return statistics with worker a `times` times slower than b and c."""
    it = worker_stats(results=1, seconds=times)
    for node in ("b", "c"):
        it.join(node, now=0.0)
        it.result(node, 4, 1.0, now=1.0)
    return it


def test_timeout_before_any_update_is_ten_minutes_and_doubles() -> None:
    it = worker_stats()
    assert it.timeout("a", 8) == 600.0
    it.timed_out("a")
    assert it.timeout("a", 8) == 1_200.0


def test_timeout_of_an_unmeasured_worker_is_a_minute_and_doubles() -> None:
    it = worker_stats()
    it.join("b", now=0.0)
    it.result("b", 8, 1.0, now=1.0)
    assert it.timeout("a", 8) == 60.0
    it.timed_out("a")
    assert it.timeout("a", 8) == 120.0
    it.timed_out("a")
    assert it.timeout("a", 8) == 240.0


def test_update_that_took_zero_seconds_counts() -> None:
    it = worker_stats()
    it.join("b", now=0.0)
    it.result("b", 8, 0.0, now=1.0)
    assert it.timeout("a", 8) == 60.0
    it.result("b", 1, 100.0, now=1.0)
    assert it.timeout("a", 8) == pytest.approx(4 * 10.0 * 8), "a tenth of the newest"


def test_timeout_with_few_updates_is_four_times_the_mean() -> None:
    assert worker_stats(results=4).timeout("a", 4) == 60.0
    assert worker_stats(results=4).timeout("a", 10) == 4 * 2.0 * 10


def test_timeout_of_a_new_worker_is_four_times_the_usual_pace() -> None:
    it = worker_stats(results=1, seconds=200.0)
    it.lose("a")
    it.join("b", now=10.0)
    assert it.timeout("b", 4) == 4 * 200.0
    it.result("a", 4, 100.0, now=11.0)
    assert it.timeout("b", 4) == 4 * 200.0, "nothing comes of those that are gone"
    it.join("c", now=10.0)
    it.result("c", 4, 100.0, now=11.0)
    assert it.timeout("b", 4) == pytest.approx(4 * 190.0), "the usual pace moves by a tenth"


def test_timeout_is_four_times_the_95th_percentile_of_a_worker() -> None:
    it = worker_stats(results=5)
    assert it.timeout("a", 3) == 4 * 2.0 * 3
    for seconds_per_sample in range(1, 21):  # the twenty latest tasks count: 1 to 20 s per sample
        it.result("a", 2, seconds_per_sample * 2.0, now=20.0)
    assert len(it.members["a"].seconds_per_sample) == 20
    assert it.timeout("a", 3) == 4 * 19.0 * 3
    it.timed_out("a")
    assert it.timeout("a", 3) == 2 * 4 * 19.0 * 3


def test_timeout_is_at_least_one_second() -> None:
    it = worker_stats(results=5, seconds=0.001)
    assert it.timeout("a", 4) == 1.0
    it.timed_out("a")
    assert it.timeout("a", 4) == 2.0


def test_update_resets_the_count_of_consecutive_timeouts() -> None:
    it = worker_stats(results=5, seconds=0.001)
    it.timed_out("a")
    it.result("a", 4, 0.001, now=10.0)
    assert it.timeout("a", 4) == 1.0


def test_update_without_samples_changes_no_statistics() -> None:
    it = worker_stats()
    it.result("a", 0, 5.0, now=5.0)
    assert it.members["a"].results == 0
    assert it.members["a"].last_heard == 5.0


@pytest.mark.parametrize(("drops", "load"), [(0, 8), (1, 8), (2, 4), (3, 4), (4, 2), (6, 2), (20, 2)])
def test_two_consecutive_drops_halve_the_load_of_a_slow_worker(drops: int, load: int) -> None:
    it = slow()
    for _ in range(drops):
        it.dropped("a")
    assert it.load("a", 8) == load
    assert it.load("a", 1) == 1


@pytest.mark.parametrize(("times", "load"), [(0.5, 64), (1.0, 64), (1.2, 64), (1.5, 32), (4.0, 16), (8.0, 8)])
def test_load_is_halved_until_task_times_match_other_workers(times: float, load: int) -> None:
    """Tasks of workers of equal speed are not halved: smaller tasks for all would not reduce staleness."""
    it = slow(times)
    for _ in range(100):
        it.dropped("a")
    assert it.load("a", 64) == load


def test_load_stays_full_without_other_measured_workers() -> None:
    it = worker_stats(results=3)
    it.join("b", now=0.0)
    for _ in range(4):
        it.dropped("a")
    assert it.load("a", 8) == 8


def test_merge_resets_consecutive_drops_and_keeps_the_load() -> None:
    it = slow()
    for _ in range(5):
        it.dropped("a")
        it.merged("a")
    assert it.load("a", 8) == 8
    it.dropped("a")
    it.dropped("a")
    it.merged("a")
    assert it.load("a", 8) == 4


def test_events_of_a_lost_worker_are_ignored() -> None:
    it = worker_stats(results=1)
    it.lose("a")
    it.result("a", 4, 1.0, now=3.0)
    it.timed_out("a")
    it.dropped("a")
    it.merged("a")
    it.lose("a")
    assert it.members == {}


def test_worker_totals_are_counted() -> None:
    member = worker_stats(results=3).members["a"]
    assert (member.results, member.samples, member.last_heard, member.joined) == (3, 12, 9.0, 0.0)


def test_twenty_consecutive_merges_restore_the_load() -> None:
    it = slow()
    for _ in range(4):
        it.dropped("a")
    for _ in range(19):
        it.merged("a")
    assert it.load("a", 8) == 2
    it.merged("a")
    assert it.load("a", 8) == 4
    for _ in range(19):
        it.merged("a")
    it.dropped("a")  # restarts the count of merges in a row
    it.merged("a")
    assert it.load("a", 8) == 4
    for _ in range(100):
        it.merged("a")
    assert it.load("a", 8) == 8


def test_median_pace_ignores_one_slow_task() -> None:
    it = worker_stats(results=4)
    it.result("a", 4, 800.0, now=9.0)
    assert it.members["a"].median == 2.0
    assert it.members["a"].pace > 20
