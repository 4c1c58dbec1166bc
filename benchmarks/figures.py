"""The figures of all benchmarks: what each one measures, its goal and its unit."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass

COMPARISONS = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Figure:
    """A number that a benchmark prints."""

    what: str
    goal: str = ""
    """`>= 0.92` or `<= 1.3`; empty if there is none."""
    unit: str = ""
    """Empty for a ratio."""


@dataclass(frozen=True)
class Benchmark:
    """A program in this folder, and the figures that it prints."""

    title: str
    figures: Mapping[str, Figure]
    plots: Mapping[str, str] | None = None
    """Caption by file name in docs/plots, without `.svg`."""
    needs_data: bool = False
    """True if it reads published data sets below $ODDLOT_DATA."""


def is_met(goal: str, value: float) -> bool:
    """Compare a value with a goal such as `>= 0.92`."""
    comparison, _, bound = goal.partition(" ")
    return bool(COMPARISONS[comparison](value, float(bound)))


SPEED = "Steps per second of oddlot over those of"
PLAIN, DDP = f"{SPEED} a plain PyTorch loop", f"{SPEED} DistributedDataParallel (gloo)"
OVERHEAD = {
    "single_worker_20ms": Figure(f"{PLAIN}, one worker, steps of 20 ms.", ">= 0.92"),
    "single_worker_2ms": Figure(f"{PLAIN}, one worker, steps of 2 ms.", ">= 0.80"),
    "single_worker_20ms_two_in_flight": Figure(
        f"{PLAIN}, one worker, steps of 20 ms, `in_flight=2`.", ">= 0.97"
    ),
    "single_worker_2ms_two_in_flight": Figure(
        f"{PLAIN}, one worker, steps of 2 ms, `in_flight=2`.", ">= 0.90"
    ),
    "sync_over_ddp_30ms": Figure(f"{DDP}, two workers, `synchronous`, steps of 30 ms.", ">= 1.0"),
    "sync_over_ddp_8ms": Figure(f"{DDP}, two workers, `synchronous`, steps of 8 ms.", ">= 1.0"),
    "async_over_ddp_30ms": Figure(f"{DDP}, two workers, `asynchronous`, steps of 30 ms.", ">= 1.1"),
    "async_over_ddp_8ms": Figure(f"{DDP}, two workers, `asynchronous`, steps of 8 ms.", ">= 1.2"),
}
HUB = {
    "merge_bandwidth_share_25m": Figure(
        "Memory bandwidth of a merge over that of a plain copy, 25 million parameters.", ">= 0.70"
    ),
    "merge_bandwidth_share_100m": Figure(
        "Memory bandwidth of a merge over that of a plain copy, 100 million parameters.", ">= 0.70"
    ),
    "memory_factor_100m": Figure(
        "Memory of the hub over weights, momentum and four updates, 100 million parameters.", "<= 1.20"
    ),
}
CHECKPOINT = {
    "pause_over_copy_25m": Figure(
        "Longest pause of the hub during a save over one copy of the state, 25 million parameters.", "<= 1.2"
    ),
    "pause_over_copy_100m": Figure(
        "Longest pause of the hub during a save over one copy of the state, 100 million parameters.", "<= 1.2"
    ),
    "throughput_while_writing": Figure(
        "Samples per second with a checkpoint after every version over those without checkpoints.", ">= 0.9"
    ),
    "write_over_torch_save": Figure(
        "Bytes per second of a checkpoint (checked and synced) over `torch.save` (neither).", ">= 0.5"
    ),
}
FAULTS = {
    "accuracy_drop_max": Figure("Largest loss of accuracy under any fault.", "<= 0.5", "points"),
    "wasted_tasks_per_kill": Figure("Tasks lost per killed worker, worst run.", "<= 1", "tasks"),
    "goodput_kill": Figure("Goodput with a worker killed every 5 s.", ">= 0.85"),
    "goodput_freeze": Figure("Goodput with one of four workers frozen for 10 s.", ">= 0.85"),
    "goodput_slow": Figure("Goodput with one of four workers slower by 5.", ">= 0.85"),
    "goodput_hub": Figure("Goodput with the hub killed once and resumed.", ">= 0.85"),
    "goodput_all": Figure("Goodput with all of these faults together.", ">= 0.85"),
    "exactly_once": Figure("1 if every run's log proves that each sample was merged exactly once.", ">= 1"),
    "ddp_goodput_slow": Figure("Goodput of DistributedDataParallel with one of four workers slower by 5."),
    "torchft_goodput_kill": Figure("Goodput of torchft, three replicas, one killed every 5 s."),
    "torchft_goodput_slow": Figure("Goodput of torchft, three replicas, one slower by 5."),
}
SIMULATOR = {
    "updates_per_second_1000": Figure(
        "Speed of the simulator with 1,000 machines, `asynchronous`.", ">= 8000", "updates/s"
    ),
    "cost_growth_10000": Figure("Cost of an update with 10,000 machines over that with 1,000.", "<= 1.3"),
    "answers_per_second_fastest_k_1000": Figure(
        "Speed of the simulator with 1,000 machines, `fastest_k` with k = 500.", "", "updates/s"
    ),
    "heap_per_second_1000": Figure("A bare heap of 1,000 entries, for comparison.", "", "pops/s"),
}
STARTUP = {
    "import_seconds": Figure("`import oddlot`, above the start of Python.", "<= 0.15", "s"),
    "help_seconds": Figure("`oddlot --help`, above the start of Python.", "<= 0.5", "s"),
    "first_update_seconds": Figure("From the call of `fit` to the first merge, two workers.", "<= 4.0", "s"),
}
DENSE = "Training speed of `oddlot.sparse` over dense PyTorch"
SOONER = "Time of {} to reach {} over that of `oddlot.sparse`, {}."
ENDS = "its own P@1 after four passes less one point"
BEST = "its best P@1"
SAMPLED, FREQUENCY = "sampled softmax", "sampled softmax by label frequency"
SETS = {"30k": "30,000 outputs", "tate_subjects": "16,455 real labels", "delicious": "983 real labels"}
LABELS = {"30k": "30,000", "200k": "200,000", "670k": "670,091"}
MORE = "P@1 of clusters above 1,000 random rows"
SLIDE = {
    "speedup_over_dense_30k": Figure(f"{DENSE}, 30,000 outputs.", ">= 4"),
    "speedup_over_dense_200k": Figure(f"{DENSE}, 200,000 outputs."),
    "speedup_over_dense_670k": Figure(f"{DENSE}, 670,091 outputs.", ">= 30"),
    "memory_over_dense_670k": Figure("Peak memory over dense PyTorch, 670,091 outputs.", "<= 0.4"),
    "time_to_dense_quality_30k": Figure(SOONER.format("dense PyTorch", ENDS, SETS["30k"]), ">= 3"),
    "time_to_quality_over_sampled_30k": Figure(SOONER.format(SAMPLED, BEST, SETS["30k"]), ">= 2"),
    "time_to_quality_over_sampled_by_frequency_30k": Figure(SOONER.format(FREQUENCY, BEST, SETS["30k"])),
    **{
        f"p1_over_uniform_1000_{shape}": Figure(f"{MORE}, {labels} outputs.", "", "points")
        for shape, labels in LABELS.items()
    },
    **{
        f"time_to_{kind}_{name}": Figure(SOONER.format(rival, at, SETS[name]))
        for name in ("tate_subjects", "delicious")
        for kind, rival, at in (
            ("dense_quality", "dense PyTorch", "its last P@1 less one point"),
            ("quality_over_sampled", SAMPLED, BEST),
            ("quality_over_sampled_by_frequency", FREQUENCY, BEST),
        )
    },
    "lsh_minus_uniform_p1": Figure("P@1 of SimHash above uniform random rows, 16,455 labels.", "", "points"),
    "clusters_minus_uniform_p1": Figure(
        "P@1 of clusters above uniform random rows, 16,455 labels.", "", "points"
    ),
    "lsh_minus_unigram_p1": Figure(
        "P@1 of SimHash above rows drawn by label frequency, as many draws.", "", "points"
    ),
    "lsh_minus_as_many_unigram_p1": Figure(
        "P@1 of SimHash above rows drawn by label frequency, as many rows.", "", "points"
    ),
    "clusters_minus_unigram_p1": Figure(
        "P@1 of clusters above rows drawn by label frequency, as many draws.", "", "points"
    ),
    **{
        f"output_layer_floor_multiple_{shape}": Figure(
            f"Time of the output layer over that of moving its bytes, {labels} outputs."
        )
        for shape, labels in LABELS.items()
    },
    "inference_speedup_30k": Figure("Prediction speed over scoring all 30,000 outputs.", ">= 5"),
    "inference_p1_share_30k": Figure("P@1 of that prediction over exact P@1, 30,000 outputs.", ">= 0.95"),
    "inference_speedup_670k": Figure("Prediction speed over scoring all 670,091 outputs."),
    "inference_p1_share_670k": Figure("P@1 of that prediction over exact P@1, 670,091 outputs."),
    "read_megabytes_per_second": Figure(
        "Speed of reading a data set in text form, one core.", ">= 100", "MB/s"
    ),
}
JOINT, SIGNS, TAILS = (
    "of adapting k and load over adapting k alone, known error, worst ratio",
    "of adapting k and load over adapting k alone, by gradient signs, worst ratio",
    "of adapting k and load over adapting k alone, other delay models, worst",
)
LOCKSTEP = "where lock-step training has a goodput of 0.27, worst fleet size"
STRAGGLERS = {
    "floor_error_max": Figure(
        "Largest error against the closed form of the final distance for fixed k.", "<= 0.10"
    ),
    "adaptive_k_speedup": Figure("Time of k = 40 over that of `adaptive_k`, to the distance of k = 40."),
    "adaptive_k_speedup_by_algorithm_1": Figure("The same for the paper's algorithm 1."),
    "adaptive_k_speedup_by_known_error": Figure("The same for switches at the known error."),
    "adaptive_k_error_over_asynchronous": Figure(
        "Distance of `adaptive_k` over asynchronous SGD after 1,000 s."
    ),
    "joint_time_ratio_max": Figure(f"Time {JOINT}.", "<= 0.7"),
    "joint_gradient_ratio_max": Figure(f"Gradients {JOINT}.", "<= 0.8"),
    "joint_iteration_ratio_max": Figure(f"Rounds {JOINT}.", "<= 1.1"),
    "fitted_over_oracle": Figure(
        "Time with measured response times over that with known ones, worst ratio.", "<= 1.1"
    ),
    "joint_time_ratio_by_signs_max": Figure(f"Time {SIGNS}."),
    "joint_gradient_ratio_by_signs_max": Figure(f"Gradients {SIGNS}."),
    "joint_iteration_ratio_by_signs_max": Figure(f"Rounds {SIGNS}."),
    "tails_time_ratio_max": Figure(f"Time {TAILS}."),
    "tails_gradient_ratio_max": Figure(f"Gradients {TAILS}."),
    "tails_iteration_ratio_max": Figure(f"Rounds {TAILS}."),
    "goodput_synchronous_at_lockstep_27": Figure(f"Goodput of `synchronous` {LOCKSTEP}."),
    "goodput_joint_at_lockstep_27": Figure(f"Goodput of `adaptive_load` {LOCKSTEP}."),
    "goodput_quorum_at_lockstep_27": Figure(f"Goodput of `quorum` {LOCKSTEP}.", ">= 0.90"),
    "goodput_quorum_no_grace_at_lockstep_27": Figure(f"Goodput of `quorum` with `grace=0` {LOCKSTEP}."),
    "goodput_vc_asgd_at_lockstep_27": Figure(f"Goodput of `vc_asgd` {LOCKSTEP}.", ">= 0.90"),
    "joint_over_best_worst_trace": Figure(
        "Time of `adaptive_load` over the best of 22 alternatives, worst of 4 traces and 2 jobs.", "<= 1.1"
    ),
    "real_goodput_proportional": Figure(
        "Goodput of `proportional_load`, four processes, one slower by 5.", ">= 0.9"
    ),
    "real_goodput_synchronous": Figure("Goodput of `synchronous` on the same processes."),
    "ddp_goodput_slow": Figure("Goodput of DistributedDataParallel on the same processes."),
    "real_joint_over_synchronous": Figure(
        "Time of `adaptive_load` over `synchronous` to an accuracy of 0.95, four processes, one slower by 5.",
        "<= 0.9",
    ),
}
VC_ASGD = {
    "formula_error_max": Figure("Largest error of the makespan formula, three loss rates.", "<= 0.02"),
    "newest_over_formula_max": Figure(
        "Makespan with the newest weights over the formula, worst rate.", "<= 1.10"
    ),
    "bill_saving_p3_min": Figure(
        "Cost saved by VC-ASGD on spot machines against federated averaging on demand, worst of 29 p3 price traces.",
        ">= 0.60",
    ),
    "bill_saving_nc6": Figure(
        "Cost saved by VC-ASGD on spot machines against federated averaging on demand, at Azure NC6 prices.",
        ">= 0.75",
    ),
    "time_over_on_demand": Figure("Time on spot machines over that on demand, worst trace.", "<= 1.5"),
    "accuracy_gap": Figure(
        "Loss of accuracy against on demand, both after 12 epochs, worst trace.", "", "points"
    ),
    "real_accuracy_gap": Figure(
        "Loss of accuracy through preemptions, four processes, MNIST.", "<= 0.5", "points"
    ),
    "virtual_days_per_minute_10000": Figure("Speed of the simulator with 10,000 machines.", "", "days/min"),
    "exactly_once": Figure("1 if every run's log proves that each sample was merged exactly once.", ">= 1"),
}
BENCHMARKS = {
    "overhead": Benchmark("Overhead", OVERHEAD),
    "hub": Benchmark("Hub", HUB),
    "checkpoint": Benchmark("Checkpoints", CHECKPOINT),
    "startup": Benchmark("Start-up time", STARTUP),
    "simulator": Benchmark("Simulator", SIMULATOR),
    "faults": Benchmark("Faults", FAULTS, needs_data=True),
    "stragglers": Benchmark(
        "Stragglers",
        STRAGGLERS,
        {"stragglers_path": "k and load of the joint policy, as the distance to the optimum falls."},
        needs_data=True,
    ),
    "vc_asgd": Benchmark(
        "VC-ASGD",
        VC_ASGD,
        {"vc_asgd_bill": "Accuracy over time, on demand and on spot machines (Fashion-MNIST, seed 0)."},
        needs_data=True,
    ),
    "slide": Benchmark(
        "Huge output layers",
        SLIDE,
        {"slide_seconds": "P@1 at the end of runs of several lengths, over training time."},
        needs_data=True,
    ),
}
