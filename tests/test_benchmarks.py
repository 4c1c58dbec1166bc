"""Each benchmark runs in its smoke form and prints its figures."""

import importlib
import json
import sys
from collections.abc import Iterator
from itertools import islice
from math import inf
from multiprocessing import forkserver
from pathlib import Path
from random import Random

import pytest
import torch

from benchmarks import faults
from benchmarks.processes import POOLS
from benchmarks.report import NOT_REACHED, Size
from benchmarks.vc_asgd import market, savings
from oddlot import Run
from oddlot.config.faults_file import read_chaos
from oddlot.core.support.errors import UsageError
from oddlot.machines import Steps

BENCHMARKS = Path(faults.__file__).parent
DOCS = BENCHMARKS.parent / "docs"
PARTS_OF_OTHERS = {"torchft_peer", "results", "training_job"}
FIGURES = {
    "allocation": """
        dira_over_random_4 dira_over_random_8 dira_over_random_12 dira_over_random_16 dira_over_bound_4
        dira_over_bound_8 dira_over_bound_12 dira_over_bound_16 dira_over_largest_norm_4 dira_over_largest_norm_8
        dira_over_largest_norm_12 dira_over_largest_norm_16 dira_over_greedy_4 dira_over_greedy_8
        dira_over_greedy_12 dira_over_greedy_16 dira_over_exhaustive_4 diverged outputs_16 joint_actions_16
        seconds_per_decision_16""",
    "checkpoint": """
        pause_over_copy_25m pause_over_copy_100m throughput_while_writing write_over_torch_save""",
    "digits": """
        bit_identical speedup_over_one exact_over_plain combined_bytes_ratio simulated_speedup_64 test_accuracy
        test_accuracy_without_pretraining paper_recipe_accuracy reconstruction_error_over_pca
        reconstruction_error_over_pca_without_pretraining""",
    "faults": """
        accuracy_drop_max wasted_tasks_per_kill goodput_kill goodput_freeze goodput_slow goodput_hub goodput_all
        exactly_once ddp_goodput_slow torchft_goodput_kill torchft_goodput_slow""",
    "gossip": """
        learning_rate_random_partners learning_rate_exponential_graph learning_rate_hypercube learning_rate_adaptive
        learning_rate_fixed_period learning_rate_random_exchanges learning_rate_LocalSGD learning_rate_one_peer_alone
        traffic_ratio time_ratio time_ratio_random time_ratio_overlapped accuracy_gap_points
        adaptive_over_period_gap_points adaptive_over_random_gap_points adaptive_over_local_sgd_gap_points
        adaptive_over_alone_gap_points accuracy accuracy_every_step accuracy_single_peer disagreement
        os_bytes_over_log_bytes kill_survived_share kill_accuracy_gap_points partition_healed""",
    "hub": "memory_factor_100m merge_bandwidth_share_25m merge_bandwidth_share_100m",
    "overhead": """
        single_worker_20ms single_worker_2ms single_worker_20ms_two_in_flight single_worker_2ms_two_in_flight
        sync_over_ddp_30ms sync_over_ddp_8ms async_over_ddp_30ms async_over_ddp_8ms""",
    "parity": """
        max_abs_difference_to_torch sync_gap_points sync_gap_perplexity async_gap_points local_gap_points
        quorum_gap_points whole_job_over_plain lines_changed_max""",
    "planner": """
        he_error_cv0 he_error_fitted momentum_error cpu_batching_speedup tuned_over_untuned deadline_misses spot_saving
        gap_to_optimum_over_greedy gap_to_optimum_over_greedy_trimmed time_over_exhaustive
        time_over_exhaustive_with_search search_share speedup_over_synchronous speedup_over_defaults_min
        prediction_error_seconds prediction_error_dollars deadlines_met_share real_over_best""",
    "queue": """
        jct_gain_backfill_75 jct_gain_60 jct_gain_75 jct_gain_90 jct_gain_highest jct_gain_highest_load qssf_over_sjf_60
        qssf_over_sjf_75 queueing_gain_75 queueing_gain_backfill_75 replay_seconds replay_seconds_backfill
        replay_seconds_million learnt_over_oracle learnt_over_rolling medians_over_oracle fifo_over_learnt
        learnt_over_oracle_sigma_of_templates learnt_over_rolling_sigma_of_templates
        medians_over_oracle_sigma_of_templates fifo_over_learnt_sigma_of_templates utilization_before
        utilization_after wakeups_per_day unserved_share utilization_without_forecast wakeups_per_day_without_forecast
        utilization_published real_jct_gain server_kills jobs_lost jobs_started_twice""",
    "ray": """
        ray_over_local_20ms ray_over_local_200ms ray_over_local_25m copies_per_update_in copies_per_update_out
        async_over_ray_train preempted_time_over_ray_train preempted_time_to_accuracy_over_ray_train
        time_to_accuracy_over_ray_train wasted_tasks_per_loss longest_pause_seconds ray_train_repeated_steps accuracy
        ray_train_accuracy learning_rate
        momentum ray_train_learning_rate ray_train_momentum loss_detected_seconds node_loss_detected_seconds
        goodput_trace exactly_once""",
    "recommend": """
        ndcg_random ndcg_popular ndcg_bpr ndcg_saros_b ndcg_saros_m ndcg_saros_open ndcg_softmax ndcg_attention
        ndcg_random_authors ndcg_popular_authors ndcg_bpr_authors ndcg_saros_b_authors ndcg_saros_m_authors
        ndcg_saros_open_authors ndcg_softmax_authors ndcg_attention_authors ndcg_random_generated
        ndcg_popular_generated ndcg_bpr_generated ndcg_saros_b_generated ndcg_saros_m_generated
        ndcg_saros_open_generated ndcg_softmax_generated ndcg_attention_generated ndcg_random_authors_generated
        ndcg_popular_authors_generated ndcg_bpr_authors_generated ndcg_saros_b_authors_generated
        ndcg_saros_m_authors_generated ndcg_saros_open_authors_generated ndcg_softmax_authors_generated
        ndcg_attention_authors_generated ndcg_random_movietweetings ndcg_popular_movietweetings ndcg_bpr_movietweetings
        ndcg_saros_b_movietweetings ndcg_saros_m_movietweetings ndcg_saros_open_movietweetings
        ndcg_softmax_movietweetings ndcg_attention_movietweetings ndcg_random_authors_movietweetings
        ndcg_popular_authors_movietweetings ndcg_bpr_authors_movietweetings ndcg_saros_b_authors_movietweetings
        ndcg_saros_m_authors_movietweetings ndcg_saros_open_authors_movietweetings ndcg_softmax_authors_movietweetings
        ndcg_attention_authors_movietweetings ndcg_random_retail ndcg_popular_retail ndcg_bpr_retail
        ndcg_softmax_retail ndcg_attention_retail saros_time_over_bpr saros_time_over_bpr_generated
        saros_time_over_bpr_movietweetings gated_ndcg_share ungated_ndcg_share gated_ndcg_share_quiet
        ungated_ndcg_share_quiet target_rank_gain_ratio trimmed_accuracy_drop_points krum_accuracy_drop_points
        mean_accuracy_drop_points trimmed_accuracy_drop_points_last_weights krum_accuracy_drop_points_last_weights
        mean_accuracy_drop_points_last_weights combine_over_copy""",
    "simulator": """
        updates_per_second_1000 cost_growth_10000 answers_per_second_fastest_k_1000 heap_per_second_1000""",
    "slide": """
        speedup_over_dense_30k_lsh speedup_over_dense_200k_lsh speedup_over_dense_670k_lsh
        speedup_over_dense_30k_clusters speedup_over_dense_200k_clusters speedup_over_dense_670k_clusters
        threads_curve memory_over_dense_670k
        time_to_dense_quality_30k time_to_quality_over_sampled_30k time_to_quality_over_sampled_by_frequency_30k
        p1_over_uniform_1000_30k p1_over_uniform_1000_200k p1_over_uniform_1000_670k
        time_to_dense_quality_tate_subjects time_to_quality_over_sampled_tate_subjects
        time_to_quality_over_sampled_by_frequency_tate_subjects time_to_dense_quality_delicious
        time_to_quality_over_sampled_delicious time_to_quality_over_sampled_by_frequency_delicious
        lsh_minus_uniform_p1 clusters_minus_uniform_p1 lsh_minus_unigram_p1 lsh_minus_as_many_unigram_p1
        clusters_minus_unigram_p1 output_layer_floor_multiple_30k output_layer_floor_multiple_200k
        output_layer_floor_multiple_670k inference_speedup_30k inference_p1_share_30k inference_speedup_670k
        inference_p1_share_670k read_megabytes_per_second""",
    "startup": "import_seconds help_seconds first_update_seconds",
    "stragglers": """
        floor_error_max adaptive_k_speedup adaptive_k_speedup_by_algorithm_1 adaptive_k_speedup_by_known_error
        asynchronous_error adaptive_k_error_over_asynchronous least_default_time_over_adaptive_k
        gradients_assigned_ratio joint_time_ratio_max joint_gradient_ratio_max joint_iteration_ratio_max
        fitted_over_oracle joint_time_ratio_by_signs_max joint_gradient_ratio_by_signs_max
        joint_iteration_ratio_by_signs_max tails_time_ratio_max tails_gradient_ratio_max tails_iteration_ratio_max
        goodput_synchronous_at_lockstep_27 goodput_joint_at_lockstep_27 goodput_quorum_at_lockstep_27
        goodput_quorum_no_grace_at_lockstep_27 goodput_vc_asgd_at_lockstep_27 joint_over_best_worst_trace
        real_goodput_proportional real_goodput_synchronous ddp_goodput_slow real_joint_over_synchronous""",
    "vc_asgd": """
        formula_error_max newest_over_formula_max saving_default_mode saving_newest saving_newest_best_market
        saving_over_fedavg_4 saving_over_fedavg_spot saving_over_fedavg_4_spot saving_same_system_on_demand
        bill_saving_p3_min bill_saving_nc6 time_over_on_demand time_over_on_demand_other_traces
        time_over_on_demand_other_traces_within_1_5 time_over_on_demand_other_traces_8_requested accuracy_gap
        real_accuracy_gap virtual_days_per_minute_10000 exactly_once""",
}
NOT_MEASURED = {
    "faults": """goodput_kill goodput_freeze goodput_slow goodput_hub torchft_goodput_kill torchft_goodput_slow""",
    "ray": """
        async_over_ray_train preempted_time_over_ray_train preempted_time_to_accuracy_over_ray_train
        wasted_tasks_per_loss longest_pause_seconds ray_train_repeated_steps accuracy
        ray_train_accuracy
        loss_detected_seconds node_loss_detected_seconds goodput_trace exactly_once""",
}
"""Figures that are null in the smoke form."""
SHORT = {"checkpoint", "hub", "simulator"}
TIERS = {name: pytest.mark.long for name in FIGURES if name not in SHORT} | {"ray": pytest.mark.ray}
"""Benchmarks excluded from `make test`: they start many processes, compile, or train for long."""
IF_REACHED = "time_to_"
"""Prefix of the figures that are null if the target is not reached."""


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    threads, plots = torch.get_num_threads(), _plots()
    yield
    torch.set_num_threads(threads)
    for pool in POOLS.values():
        pool.shutdown()
    POOLS.clear()
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # Python's own tests do the same
    assert _plots() == plots, "a smoke form has written plots"


def _plots() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in DOCS.rglob("*.svg")}


@pytest.mark.usefixtures("fork_server")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(name, marks=TIERS.get(name, ())) for name in FIGURES])
def test_benchmark_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ODDLOT_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", [name, "--smoke"])
    is_package = (BENCHMARKS / name).is_dir()
    importlib.import_module(f"benchmarks.{name}.__main__" if is_package else f"benchmarks.{name}").main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(figures) == sorted(FIGURES[name].split())
    missing = {figure for figure, value in figures.items() if not isinstance(value, float | int)}
    assert {one for one in missing if not one.startswith(IF_REACHED)} == {*NOT_MEASURED.get(name, "").split()}


@pytest.mark.parametrize(
    ("part", "missing", "code"), [("losses", "ray.train", "no_ray_train"), ("trace", "", "no_data")]
)
def test_missing_ray_train_or_data_ends_the_ray_benchmark(
    part: str, missing: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.ray import __main__ as program

    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delenv("ODDLOT_DATA", raising=False)
    monkeypatch.setattr(program, "PARTS", dict.fromkeys(program.PARTS, pytest.fail))
    monkeypatch.setattr(sys, "argv", ["ray", "--quick", "--only", part])
    with pytest.raises(UsageError) as raised:
        program.main()
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("own", "others", "ratio"), [(12.0, [20.0, 24.0], 0.6), (12.0, [inf], 0.4), (inf, [20.0], NOT_REACHED)]
)
def test_time_to_accuracy_uses_the_total_time_if_not_reached(
    own: float, others: list[float], ratio: float
) -> None:
    from benchmarks.ray.__main__ import sooner
    from benchmarks.ray.losses import Outcome

    outcomes = [Outcome(30.0, 1, 1, 0.9, reached) for reached in (own, *others)]
    assert sooner(outcomes[0], outcomes[1:]) == pytest.approx(ratio)


def test_step_rate_counts_from_the_last_worker_start() -> None:
    from benchmarks.ray.job import step_rate

    assert step_rate([[0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0]]) == pytest.approx(4 / 2)


def test_quick_ray_run_uses_the_saved_rates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from benchmarks.ray import tuning
    from benchmarks.ray.job import Rate

    searched = {tuning.OURS: Rate(), tuning.THEIRS: Rate()}
    monkeypatch.setattr(tuning, "search", lambda size: searched)
    monkeypatch.setattr(tuning, "RESULTS", tmp_path)
    assert tuning.chosen(Size.QUICK) == searched
    keys = [key for keys in tuning.KEYS.values() for key in keys]
    saved = {key: {"median": number} for number, key in enumerate(keys)}
    (tmp_path / "ray.json").write_text(json.dumps({"figures": saved}))
    assert tuning.chosen(Size.QUICK) == {tuning.OURS: Rate(0, 1), tuning.THEIRS: Rate(2, 3)}
    assert tuning.chosen(Size.FULL) == searched


def test_every_benchmark_is_tested() -> None:
    """A program is a file with a main block."""
    files = [path for path in BENCHMARKS.rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
    programs = {path.parent.name if path.stem == "__main__" else path.stem for path in files}
    assert programs == FIGURES.keys() | PARTS_OF_OTHERS


@pytest.mark.parametrize(
    "plan", faults.PLANS.values(), ids=lambda plan: f"{len(plan.scenarios)}-{plan.seeds}"
)
def test_fault_scenarios_are_valid_chaos_files(plan: faults.Plan, tmp_path: Path) -> None:
    for scenario in faults.SCENARIOS[1:]:
        (path := tmp_path / "chaos.toml").write_text(faults.toml(plan.faults(scenario), seed=3))
        assert list(read_chaos(path).faults) == plan.faults(scenario), scenario


def test_savings_compare_costs_of_the_same_market(monkeypatch: pytest.MonkeyPatch) -> None:
    """Savings of 2 machine-hours on spot at $1 over 4 on demand at $3.06. Missing the accuracy gives no savings."""
    monkeypatch.setattr(savings, "price_traces", lambda: [("p3.2xlarge", "z", Steps((0.0, 1e6), (1.0, 1.0)))])
    run, hours = Run.__new__(Run), 3600.0
    spot = savings.Trained(run, [(0.0, hours), (0.0, 9 * hours)], hours)
    demand = savings.Trained(run, [(0.0, 2 * hours)] * 2, 2 * hours)
    late = savings.Trained(run, [(0.0, hours)], None)
    missed = savings.COMPARED["saving_over_fedavg_4"][1]
    bills = savings.Bills({savings.OURS: {"c": spot}, savings.BASE: {"": demand}, missed: {"": late}})
    hub = savings.HUB_DOLLARS_PER_HOUR
    saved = bills.savings(savings.OURS, savings.BASE)
    assert saved == {("p3.2xlarge z", "c"): pytest.approx(1 - (2 + hub) / (4 * 3.06 + 2 * hub))}
    assert [*bills.savings(savings.OURS, missed).values()] == [-NOT_REACHED]


def test_recorded_capacity_repeats_from_any_second() -> None:
    trace = market.Recorded(Steps((0.0, 100.0, 200.0, 400.0), (10.0, 0.0, 5.0, 5.0)), 10)
    assert trace.availability == pytest.approx(0.5)
    assert (trace.longest_gap, trace.requested(8)) == (100.0, 16)
    moves = trace.repeated(350.0).moves(2, Random(0))
    assert [(time, comes) for time, _, comes in islice(moves, 5)] == [
        (0.0, True),
        (50.0, True),
        (150.0, False),
        (150.0, False),
        (250.0, True),
    ]
