"""The figures of all benchmarks, with their descriptions, goals and units."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

COMPARISONS = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Figure:
    """A number that a benchmark prints."""

    what: str
    goal: str = ""
    """A goal such as `>= 0.92` or `<= 1.3`, or empty without a goal."""
    unit: str = ""
    """Unit, or empty for a ratio."""


@dataclass(frozen=True)
class Benchmark:
    """The title, figures and plots of a benchmark."""

    title: str
    figures: Mapping[str, Figure]
    plots: Mapping[str, str] | None = None
    """Caption by file name in docs/plots, without `.svg`."""
    needs_data: bool = False
    """True if the benchmark reads public datasets in $ODDLOT_DATA."""


def is_met(goal: str, value: float | None) -> bool:
    """Return whether a value meets a goal such as `>= 0.92`. None (not reached) does not."""
    comparison, _, bound = goal.partition(" ")
    return value is not None and bool(COMPARISONS[comparison](value, float(bound)))


SPEED = "Steps per second, oddlot /"
PLAIN, DDP = f"{SPEED} plain PyTorch loop", f"{SPEED} DistributedDataParallel (gloo)"
OVERHEAD = {
    "single_worker_20ms": Figure(f"{PLAIN}: one worker, steps of 20 ms.", ">= 0.92"),
    "single_worker_2ms": Figure(f"{PLAIN}: one worker, steps of 2 ms.", ">= 0.80"),
    "single_worker_20ms_two_in_flight": Figure(
        f"{PLAIN}: one worker, steps of 20 ms, `in_flight=2`.", ">= 0.97"
    ),
    "single_worker_2ms_two_in_flight": Figure(
        f"{PLAIN}: one worker, steps of 2 ms, `in_flight=2`.", ">= 0.90"
    ),
    "sync_over_ddp_30ms": Figure(f"{DDP}: two workers, `synchronous`, steps of 30 ms.", ">= 1.0"),
    "sync_over_ddp_8ms": Figure(f"{DDP}: two workers, `synchronous`, steps of 8 ms.", ">= 1.0"),
    "async_over_ddp_30ms": Figure(f"{DDP}: two workers, `asynchronous`, steps of 30 ms.", ">= 1.1"),
    "async_over_ddp_8ms": Figure(f"{DDP}: two workers, `asynchronous`, steps of 8 ms.", ">= 1.2"),
}
HUB = {
    "merge_bandwidth_share_25m": Figure(
        "Memory bandwidth, merge / plain copy: 25 million parameters.", ">= 0.70"
    ),
    "merge_bandwidth_share_100m": Figure(
        "Memory bandwidth, merge / plain copy: 100 million parameters.", ">= 0.70"
    ),
    "memory_factor_100m": Figure(
        "Memory, hub / weights, momentum and four updates: 100 million parameters.", "<= 1.20"
    ),
}
CHECKPOINT = {
    "pause_over_copy_25m": Figure(
        "Longest hub pause during a save / time to copy the state once: 25 million parameters.", "<= 1.2"
    ),
    "pause_over_copy_100m": Figure(
        "Longest hub pause during a save / time to copy the state once: 100 million parameters.", "<= 1.2"
    ),
    "throughput_while_writing": Figure(
        "Samples per second, with a checkpoint after every version / without checkpoints.", ">= 0.9"
    ),
    "write_over_torch_save": Figure(
        "Bytes per second, checkpoint (checksummed and synced) / `torch.save` (neither).", ">= 0.5"
    ),
}
FAULTS = {
    "accuracy_drop_max": Figure("Largest loss of accuracy under any fault.", "<= 0.5", "points"),
    "wasted_tasks_per_kill": Figure("Tasks lost per killed worker, worst run.", "<= 1", "tasks"),
    "goodput_kill": Figure("Goodput with a worker killed every 5 s.", ">= 0.85"),
    "goodput_freeze": Figure("Goodput with one of four workers frozen for 10 s.", ">= 0.85"),
    "goodput_slow": Figure("Goodput with one of four workers 6x slower.", ">= 0.85"),
    "goodput_hub": Figure("Goodput with the hub killed once and resumed.", ">= 0.85"),
    "goodput_all": Figure(
        "Goodput with a worker killed every 5 s, one frozen, one 6x slower, the hub killed.", ">= 0.85"
    ),
    "exactly_once": Figure("1 if every run's log proves that each sample was merged exactly once.", ">= 1"),
    "ddp_goodput_slow": Figure("Goodput of DistributedDataParallel with one of four workers 6x slower."),
    "torchft_goodput_kill": Figure("Goodput of torchft, three replicas, one killed every 5 s."),
    "torchft_goodput_slow": Figure("Goodput of torchft, three replicas, one 6x slower."),
}
SIMULATOR = {
    "updates_per_second_1000": Figure(
        "Speed of the simulator with 1,000 machines, `asynchronous`.", ">= 8000", "updates/s"
    ),
    "cost_growth_10000": Figure("Cost of an update, 10,000 machines / 1,000 machines.", "<= 1.3"),
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
DENSE = "Training speed, {0} / dense PyTorch: {1} outputs."
SIMHASH, DWTA = (f"SLIDE's hash tables ({family}, L = 50)" for family in ("SimHash, K = 9", "DWTA, K = 8"))
HASHES = {"30k": SIMHASH, "200k": SIMHASH, "670k": DWTA}
SOONER = "Time to reach the P@1 of {0} ({1}), {0} / `oddlot.sparse`: {2}."
ENDS = "after four passes, minus one point"
BEST = "best value"
SAMPLED, FREQUENCY = "sampled softmax", "sampled softmax by label frequency"
SETS = {"30k": "30,000 outputs", "tate_subjects": "16,455 real labels", "delicious": "983 real labels"}
LABELS = {"30k": "30,000", "200k": "200,000", "670k": "670,091"}
MORE = "P@1 of clusters minus that of 1,000 random rows"
SLIDE = {
    **{
        f"speedup_over_dense_{shape}_lsh": Figure(DENSE.format(HASHES[shape], labels))
        for shape, labels in LABELS.items()
    },
    **{
        f"speedup_over_dense_{shape}_clusters": Figure(DENSE.format("clusters (ours)", labels), goal)
        for (shape, labels), goal in zip(LABELS.items(), (">= 4", "", ">= 30"), strict=True)
    },
    "threads_curve": Figure(
        "Speed gained from one thread to all cores, SLIDE's hash tables / dense PyTorch: 30,000 outputs."
    ),
    "memory_over_dense_670k": Figure("Peak memory, clusters / dense PyTorch: 670,091 outputs.", "<= 0.4"),
    "time_to_dense_quality_30k": Figure(SOONER.format("dense PyTorch", ENDS, SETS["30k"]), ">= 3"),
    "time_to_quality_over_sampled_30k": Figure(SOONER.format(SAMPLED, BEST, SETS["30k"]), ">= 2"),
    "time_to_quality_over_sampled_by_frequency_30k": Figure(
        SOONER.format(FREQUENCY, BEST, SETS["30k"]), ">= 2"
    ),
    **{
        f"p1_over_uniform_1000_{shape}": Figure(f"{MORE}, {labels} outputs.", "", "points")
        for shape, labels in LABELS.items()
    },
    **{
        f"time_to_{kind}_{name}": Figure(SOONER.format(rival, at, SETS[name]))
        for name in ("tate_subjects", "delicious")
        for kind, rival, at in (
            ("dense_quality", "dense PyTorch", "at the end, minus one point"),
            ("quality_over_sampled", SAMPLED, BEST),
            ("quality_over_sampled_by_frequency", FREQUENCY, BEST),
        )
    },
    "lsh_minus_uniform_p1": Figure(
        "P@1 of SimHash minus that of uniform random rows, 16,455 labels.", "", "points"
    ),
    "clusters_minus_uniform_p1": Figure(
        "P@1 of clusters minus that of uniform random rows, 16,455 labels.", "", "points"
    ),
    "lsh_minus_unigram_p1": Figure(
        "P@1 of SimHash minus that of rows drawn by label frequency, as many draws.", "", "points"
    ),
    "lsh_minus_as_many_unigram_p1": Figure(
        "P@1 of SimHash minus that of rows drawn by label frequency, as many rows.", "", "points"
    ),
    "clusters_minus_unigram_p1": Figure(
        "P@1 of clusters minus that of rows drawn by label frequency, as many draws.", "", "points"
    ),
    **{
        f"output_layer_floor_multiple_{shape}": Figure(
            f"Time of the output layer / time to move its bytes: {labels} outputs."
        )
        for shape, labels in LABELS.items()
    },
    "inference_speedup_30k": Figure("Prediction speed, `exact=False` / scoring all 30,000 outputs.", ">= 5"),
    "inference_p1_share_30k": Figure("P@1 of predictions, `exact=False` / exact: 30,000 outputs.", ">= 0.95"),
    "inference_speedup_670k": Figure("Prediction speed, `exact=False` / scoring all 670,091 outputs."),
    "inference_p1_share_670k": Figure("P@1 of predictions, `exact=False` / exact: 670,091 outputs."),
    "read_megabytes_per_second": Figure(
        "Speed of reading a data set in text form, one core.", ">= 100", "MB/s"
    ),
}
JOINT, SIGNS, TAILS = (
    "adapting k and load / adapting k alone: known error, `least=1`, worst ratio",
    "adapting k and load / adapting k alone: gradient signs, `least=1`, worst ratio",
    "adapting k and load / adapting k alone: other delay models, known error, `least=1`, worst ratio",
)
LOCKSTEP = "where lock-step training has a goodput of 0.27, worst fleet size"
STRAGGLERS = {
    "floor_error_max": Figure(
        "Largest error of the final distance for fixed k, relative to its closed form.", "<= 0.10"
    ),
    "adaptive_k_speedup": Figure("Time to the final distance of k = 40, k = 40 / `adaptive_k`."),
    "adaptive_k_speedup_by_algorithm_1": Figure("Time to that distance, k = 40 / the paper's algorithm 1."),
    "adaptive_k_speedup_by_known_error": Figure(
        "Time to that distance, k = 40 / switches at the known error."
    ),
    "asynchronous_error": Figure(
        "Distance after 1,000 s, asynchronous SGD without damping, at the best of several learning rates."
    ),
    "adaptive_k_error_over_asynchronous": Figure(
        "Distance after 1,000 s, `adaptive_k` at the paper's learning rate / asynchronous SGD at its best one."
    ),
    "least_default_time_over_adaptive_k": Figure(
        "Time to a distance of 0.01, `adaptive_load` / `adaptive_k`: all defaults, the paper's problem."
    ),
    "gradients_assigned_ratio": Figure(
        "Gradients assigned to workers to that distance, `adaptive_load` / `adaptive_k`: all defaults."
    ),
    "joint_time_ratio_max": Figure(f"Time, {JOINT}.", "<= 0.7"),
    "joint_gradient_ratio_max": Figure(f"Gradients, {JOINT}.", "<= 0.8"),
    "joint_iteration_ratio_max": Figure(f"Rounds, {JOINT}.", "<= 1.1"),
    "fitted_over_oracle": Figure(
        "Time, measured response times / known response times: worst ratio.", "<= 1.1"
    ),
    "joint_time_ratio_by_signs_max": Figure(f"Time, {SIGNS}."),
    "joint_gradient_ratio_by_signs_max": Figure(f"Gradients, {SIGNS}."),
    "joint_iteration_ratio_by_signs_max": Figure(f"Rounds, {SIGNS}."),
    "tails_time_ratio_max": Figure(f"Time, {TAILS}."),
    "tails_gradient_ratio_max": Figure(f"Gradients, {TAILS}."),
    "tails_iteration_ratio_max": Figure(f"Rounds, {TAILS}."),
    "goodput_synchronous_at_lockstep_27": Figure(f"Goodput of `synchronous` {LOCKSTEP}."),
    "goodput_joint_at_lockstep_27": Figure(
        f"Goodput of `adaptive_load`, `least` two fifths of all workers' samples, {LOCKSTEP}."
    ),
    "goodput_quorum_at_lockstep_27": Figure(f"Goodput of `quorum` {LOCKSTEP}.", ">= 0.90"),
    "goodput_quorum_no_grace_at_lockstep_27": Figure(f"Goodput of `quorum` with `grace=0` {LOCKSTEP}."),
    "goodput_vc_asgd_at_lockstep_27": Figure(f"Goodput of `vc_asgd` {LOCKSTEP}.", ">= 0.90"),
    "joint_over_best_worst_trace": Figure(
        "Time, `adaptive_load` / best of 22 alternatives: worst of 4 traces and 2 jobs.", "<= 1.1"
    ),
    "real_goodput_proportional": Figure(
        "Goodput of `proportional_load`, four processes, one 5x slower.", ">= 0.9"
    ),
    "real_goodput_synchronous": Figure("Goodput of `synchronous` on the same processes."),
    "ddp_goodput_slow": Figure("Goodput of DistributedDataParallel on the same processes."),
    "real_joint_over_synchronous": Figure(
        "Time to an accuracy of 0.95, `adaptive_load` / `synchronous`, with four times its batch: four processes, one "
        "5x slower.",
        "<= 0.9",
    ),
    "real_joint_over_best_rival": Figure(
        "Time to an accuracy of 0.95, `adaptive_load` / the quickest of five other strategies with about its batch or "
        "the job's: four processes, one 5x slower."
    ),
}
SAVED = "Share of cost saved, 1 - A / B. A: `vc_asgd`"
NEWEST_8, AVERAGING_8 = "with `newest` on 8 spot machines", "federated averaging on 8 machines on demand"
MARKETS = "Median and range of all markets."
VC_ASGD = {
    "formula_error_max": Figure("Largest error of the makespan formula, three loss rates.", "<= 0.02"),
    "newest_over_formula_max": Figure("Makespan, newest weights / formula: worst loss rate.", "<= 1.10"),
    "saving_default_mode": Figure(
        f"{SAVED} in the paper's mode (`newest=False`) on 8 spot machines. B: {AVERAGING_8}. {MARKETS}"
    ),
    "saving_newest": Figure(f"{SAVED} {NEWEST_8}. B: {AVERAGING_8}. {MARKETS}"),
    "saving_newest_best_market": Figure(f"{SAVED} {NEWEST_8}. B: {AVERAGING_8}. The best market alone."),
    "saving_over_fedavg_4": Figure(
        f"{SAVED} {NEWEST_8}. B: federated averaging on 4 machines on demand. {MARKETS}"
    ),
    "saving_over_fedavg_spot": Figure(
        f"{SAVED} {NEWEST_8}. B: federated averaging on 8 spot machines. {MARKETS}"
    ),
    "saving_over_fedavg_4_spot": Figure(
        f"{SAVED} {NEWEST_8}. B: federated averaging on 4 spot machines. {MARKETS}"
    ),
    "saving_same_system_on_demand": Figure(
        f"{SAVED} {NEWEST_8}. B: the same on 8 machines on demand, the paper's comparison. {MARKETS}"
    ),
    "bill_saving_p3_min": Figure(
        f"{SAVED} {NEWEST_8}. B: {AVERAGING_8}. The worst market of 29 p3 prices.", ">= 0.60"
    ),
    "bill_saving_nc6": Figure(
        f"{SAVED} {NEWEST_8}. B: {AVERAGING_8}. The worst market with Azure NC6 prices.", ">= 0.75"
    ),
    "time_over_on_demand": Figure(
        "Time, `newest` on spot / federated averaging on demand: worst trace of the bill, one start.",
        "<= 1.5",
    ),
    "time_over_on_demand_other_traces": Figure(
        "Time, `newest` on spot / federated averaging on demand: 40 starts on each of 16 traces (Bamboo, GCP).",
        "<= 1.5",
    ),
    "time_over_on_demand_other_traces_within_1_5": Figure(
        "Share of these starts with a ratio of at most 1.5."
    ),
    "time_over_on_demand_other_traces_8_requested": Figure(
        "The same ratio if 8 machines are requested, instead of a mean of 8."
    ),
    "accuracy_gap": Figure(
        "Loss of accuracy relative to on demand, both after 12 epochs, worst trace.", "", "points"
    ),
    "real_accuracy_gap": Figure(
        "Loss of accuracy through preemptions, four processes, MNIST.", "<= 0.5", "points"
    ),
    "virtual_days_per_minute_10000": Figure("Speed of the simulator with 10,000 machines.", "", "days/min"),
    "exactly_once": Figure("1 if every run's log proves that each sample was merged exactly once.", ">= 1"),
}
SEARCHED = "the best of 0.05, 0.1, 0.2 and 0.4."
BOTH, PEER = "Samples per second, two Ray workers / two local workers", "Ray Train (elastic, gloo)"
RAY = {
    "ray_over_local_20ms": Figure(f"{BOTH}: 1 million parameters, steps of 20 ms.", ">= 0.80"),
    "ray_over_local_200ms": Figure(f"{BOTH}: 1 million parameters, steps of 200 ms.", ">= 0.93"),
    "ray_over_local_25m": Figure(f"{BOTH}: 25 million parameters, steps of 200 ms.", ">= 0.75"),
    "copies_per_update_in": Figure(
        "Copies of an update's tensors from the worker's memory to the merge.", "<= 1"
    ),
    "copies_per_update_out": Figure("Copies of the weights from the merge to the workers of a node.", "<= 1"),
    "async_over_ray_train": Figure(f"Samples per second, `asynchronous` / {PEER}, undisturbed.", ">= 1"),
    "preempted_time_over_ray_train": Figure(
        f"Time, `asynchronous` / {PEER}: nodes are lost, and others join 10 s later.", "<= 0.75"
    ),
    "preempted_time_to_accuracy_over_ray_train": Figure(
        f"Time to an accuracy of 0.95, `asynchronous` / {PEER}: the same losses.", "<= 0.75"
    ),
    "time_to_accuracy_over_ray_train": Figure(
        f"Time to an accuracy of 0.95, `asynchronous` / {PEER}: no losses."
    ),
    "wasted_tasks_per_loss": Figure("Tasks computed again per lost node.", "<= 1"),
    "longest_pause_seconds": Figure("Longest time between two updates while nodes are lost.", "<= 2", "s"),
    "ray_train_repeated_steps": Figure(f"Steps that {PEER} computes again."),
    "accuracy": Figure("Accuracy of `asynchronous` with lost nodes."),
    "ray_train_accuracy": Figure(f"Accuracy of {PEER} with lost nodes."),
    "learning_rate": Figure(f"Learning rate of `asynchronous`, {SEARCHED}"),
    "momentum": Figure("Momentum of `asynchronous`, the best of 0.5 and 0.9."),
    "ray_train_learning_rate": Figure(f"Learning rate of {PEER}, {SEARCHED}"),
    "ray_train_momentum": Figure(f"Momentum of {PEER}, the best of 0.5 and 0.9."),
    "loss_detected_seconds": Figure("Time from `kill -9` of a worker to its loss in the log.", "<= 1", "s"),
    "node_loss_detected_seconds": Figure(
        "Time from a node's freeze to its workers' loss in the log, `lost_after_seconds=10`.", "<= 11", "s"
    ),
    "goodput_trace": Figure(
        "Goodput, nodes come and go as in the trace g4dn-xlarge-us-east-1c of Bamboo, 60 times faster.",
        ">= 0.88",
    ),
    "exactly_once": Figure("1 if every run's log proves that each sample was merged exactly once.", ">= 1"),
}
EVERY = "Gossip, adaptive / at every step"
CALIBRATION = {
    "traffic_ratio": Figure(f"{EVERY}: bytes, 8 peers, final average included.", "<= 0.08"),
    "time_ratio": Figure(
        f"{EVERY} with the quickest topology: simulated time of the same epochs, a pull of 1.3 steps.",
        "<= 0.50",
    ),
    "time_ratio_random": Figure(f"{EVERY} with random partners, which queue: simulated time.", "<= 0.50"),
    "time_ratio_overlapped": Figure(
        f"{EVERY}, both with `overlap`: simulated time. Pulls travel while steps are computed."
    ),
    "accuracy_gap_points": Figure(
        "Accuracy of the averaged model, gossip at every step (best topology) minus that of adaptive gossip.",
        "<= 0.5",
        "points",
    ),
    "adaptive_over_period_gap_points": Figure(
        "Accuracy of the averaged model, fixed period minus that of adaptive gossip, equal bytes.",
        "<= 0.2",
        "points",
    ),
    "adaptive_over_random_gap_points": Figure(
        "Accuracy of the averaged model, random exchanges minus that of adaptive gossip, equal bytes.",
        "<= 0.2",
        "points",
    ),
    "adaptive_over_local_sgd_gap_points": Figure(
        "Accuracy, LocalSGD (all-reduce on a ring) minus that of adaptive gossip, equal bytes.",
        "<= 0.2",
        "points",
    ),
    "adaptive_over_alone_gap_points": Figure(
        "Accuracy, one peer alone with as many steps minus that of adaptive gossip.", "<= 0", "points"
    ),
    "accuracy": Figure("Accuracy of the averaged model, adaptive."),
    "accuracy_every_step": Figure("Accuracy of the averaged model, gossip at every step (best topology)."),
    "accuracy_single_peer": Figure("Mean accuracy of single peers before the final average, adaptive."),
    "disagreement": Figure(
        "Distance of the peers' models from their average before the final average, relative to its norm, adaptive."
    ),
}


class Calibrated(StrEnum):
    """A method of the gossip calibration."""

    RANDOM_PARTNERS = "random partners"
    EXPONENTIAL_GRAPH = "exponential graph"
    HYPERCUBE = "hypercube"
    ADAPTIVE = "adaptive"
    FIXED_PERIOD = "fixed period"
    RANDOM_EXCHANGES = "random exchanges"
    LOCAL_SGD = "LocalSGD"
    ALONE = "one peer alone"

    @property
    def rate_key(self) -> str:
        """Return the key of the method's learning rate on Fashion-MNIST."""
        return f"learning_rate_{self.replace(' ', '_')}"


GOSSIP_RATES = (0.03, 0.06, 0.12, 0.24)
"""Learning rates that are searched for each method."""
MAX_TRAFFIC = 0.08
"""Largest bytes of adaptive gossip / gossip at every step."""
RATES = {
    one.rate_key: Figure(f"Best learning rate of {', '.join(map(str, GOSSIP_RATES))}: {one}.")
    for one in Calibrated
}
GOSSIP = {
    **{key: replace(one, what=f"{one.what} Fashion-MNIST.") for key, one in CALIBRATION.items()},
    **{f"{key}_cifar10": replace(one, what=f"{one.what} CIFAR-10.") for key, one in CALIBRATION.items()},
    "os_bytes_over_log_bytes": Figure(
        "Bytes between four processes, counted by the operating system / in the logs.", "<= 1.02"
    ),
    "kill_survived_share": Figure("Share of runs that reach their goal after `kill -9` of a peer.", ">= 1"),
    "kill_accuracy_gap_points": Figure(
        "Accuracy of the averaged model, undisturbed minus that after `kill -9` of a peer.", "<= 1", "points"
    ),
    "partition_healed": Figure(
        "1 if both halves of a partition trained on, and agree after it has healed.", ">= 1"
    ),
    **{key: replace(one, what=f"{one.what} Fashion-MNIST.") for key, one in RATES.items()},
    **{f"{key}_cifar10": replace(one, what=f"{one.what} CIFAR-10.") for key, one in RATES.items()},
}
PLANNER = {
    "he_error_cv0": Figure(
        "Seconds per update of 32 machines in 1 to 32 groups, prediction / simulator: largest error, equal times.",
        "<= 0.05",
    ),
    "he_error_fitted": Figure(
        "As before, with lognormal times of variation 0.3 and 1.0: largest error.", "<= 0.10"
    ),
    "momentum_error": Figure(
        "Best momentum on least squares with exponential delays, theorem 7 - measured: largest difference.",
        "<= 0.15",
    ),
    "cpu_batching_speedup": Figure(
        "Samples per second on this CPU with the best batch size / one image at a time, ResNet-20 for 32 x 32 pixels."
    ),
    "tuned_over_untuned": Figure(
        "Virtual seconds to an accuracy with 16 groups, best momentum / 0.9, each at its own best learning rate.",
        "<= 0.75",
    ),
    "time_over_exhaustive": Figure(
        "Virtual seconds to the goal, planned / best of all groups, momenta and batch sizes: worst case.",
        "<= 1.1",
    ),
    "time_over_exhaustive_with_search": Figure(
        "As before, with the time of the trials that the planner gave up.", "<= 1.25"
    ),
    "search_share": Figure("Share of these trials in the time of search and run: largest.", "<= 0.15"),
    "speedup_over_synchronous": Figure(
        "32 stragglers, virtual seconds to the goal: synchronous at its best learning rate / planned, worst case.",
        ">= 1.9",
    ),
    "speedup_over_defaults_min": Figure(
        "As before, the better of synchronous and asynchronous at momentum 0.9, each at its best rate / planned.",
        ">= 1.3",
    ),
    "prediction_error_seconds": Figure(
        "Time to the goal, median of simulated runs of other seeds / predicted - 1: largest.", "<= 0.2"
    ),
    "prediction_error_dollars": Figure("Cost to the goal, as before.", "<= 0.2"),
    "deadlines_met_share": Figure(
        "Simulated runs that meet a deadline of 1.3 times the exhaustive best; 0 if it was not promised.",
        ">= 0.95",
    ),
    "real_over_best": Figure(
        "Seconds to an accuracy with 4 worker processes, two slowed down: planned groups / best of 1, 2 and 4.",
        "<= 1.15",
    ),
    "deadline_misses": Figure(
        "Job of 8 hours on demand with a deadline of 12 hours, `fill_in` on recorded spot markets: missed deadlines.",
        "<= 0",
        "runs",
    ),
    "spot_saving": Figure("Cost of that job, saving against all machines on demand."),
    "gap_to_optimum_over_greedy": Figure(
        "Cost of that job above the optimum by hindsight, `fill_in` / `greedy`: traces as recorded.", "<= 0.6"
    ),
    "gap_to_optimum_over_greedy_trimmed": Figure(
        "As before, without the hours before the first machine of each trace.", "<= 0.6"
    ),
}
PARITY = {
    "max_abs_difference_to_torch": Figure(
        "Largest difference of a weight from a plain loop, one worker with `synchronous`.",
        "<= 0",
    ),
    "sync_gap_points": Figure(
        "Accuracy, plain loop less `synchronous` after equal samples, 1 and 4 workers.",
        "<= 0.3",
        "points",
    ),
    "sync_gap_perplexity": Figure(
        "Perplexity of a small GPT, `synchronous` / plain loop, less 1, after equal samples.", "<= 0.01"
    ),
    "async_gap_points": Figure("Accuracy gap of `asynchronous`, 4 workers.", "<= 1", "points"),
    "local_gap_points": Figure("Accuracy gap of `local_sgd`, 4 workers.", "<= 1", "points"),
    "quorum_gap_points": Figure("Accuracy gap of a quorum of `synchronous`, 4 workers.", "<= 1", "points"),
    "whole_job_over_plain": Figure(
        "Samples per second of a whole job, oddlot / best plain loop with 0 or 2 loading processes.",
        ">= 0.95",
    ),
    "lines_changed_max": Figure("Lines added or changed in an example script, the most of all.", "<= 10"),
}
DIGITS = {
    "bit_identical": Figure(
        "Runs with other workers, kills, copies, a resume and the simulator end with the same bits (1: all).",
        ">= 1",
    ),
    "speedup_over_one": Figure("Speedup of exact rounds / number of workers, up to the cores.", ">= 0.85"),
    "exact_over_plain": Figure(
        "Time of an exact round / of a round that is not exact, same batch.", "<= 1.3"
    ),
    "combined_bytes_ratio": Figure("Bytes of updates / bytes of one value per sample and weight."),
    "simulated_speedup_64": Figure(
        "Speedup of 64 workers with full-batch rounds, by simulation with measured times."
    ),
    "test_accuracy": Figure("MNIST: accuracy of the classifier, pre-trained and fine-tuned.", ">= 0.985"),
    "test_accuracy_without_pretraining": Figure("The same epochs of fine-tuning without pre-training."),
    "paper_recipe_accuracy": Figure(
        "Accuracy with the paper's recipe: full batch, no biases, no fine-tuning."
    ),
    "reconstruction_error_over_pca": Figure(
        "Squared error per image of the 30-number code / of a PCA with 30 components.", "<= 0.35"
    ),
    "reconstruction_error_over_pca_without_pretraining": Figure("The same without pre-training."),
}
FIFO_GAIN = "Philly's jobs: mean completion time, `fifo` / `qssf`: load"
QUEUE = {
    "jct_gain_backfill_75": Figure(
        "Philly's jobs: mean completion time, `fifo_backfill` / `qssf_backfill`: load 0.75.", ">= 1.4"
    ),
    "jct_gain_60": Figure(f"{FIFO_GAIN} 0.60.", ">= 2.8"),
    "jct_gain_75": Figure(f"{FIFO_GAIN} 0.75.", ">= 4.0"),
    "jct_gain_90": Figure(f"{FIFO_GAIN} 0.90.", ">= 3.5"),
    "jct_gain_highest": Figure(f"{FIFO_GAIN} of the highest gain (paper: 6.5, on other clusters)."),
    "jct_gain_highest_load": Figure("The load of the highest gain."),
    "qssf_over_sjf_60": Figure("Philly's jobs: mean completion time, `qssf` / `sjf`: load 0.60.", "<= 1.35"),
    "qssf_over_sjf_75": Figure("Philly's jobs: mean completion time, `qssf` / `sjf`: load 0.75.", "<= 1.5"),
    "queueing_gain_75": Figure("Philly's jobs: mean queueing delay, `fifo` / `qssf`: load 0.75."),
    "queueing_gain_backfill_75": Figure(
        "Philly's jobs: mean queueing delay, `fifo_backfill` / `qssf_backfill`: load 0.75."
    ),
    "replay_seconds": Figure("Time of a replay of 61,281 jobs under `qssf`.", "<= 5", "s"),
    "replay_seconds_backfill": Figure("Time of a replay of 61,281 jobs under `qssf_backfill`.", "<= 60", "s"),
    "replay_seconds_million": Figure("Time of a replay of a million generated jobs under `qssf`.", unit="s"),
    "learnt_over_oracle": Figure(
        "Recurrent jobs: mean completion time, learnt predictions / true durations.", "<= 1.25"
    ),
    "learnt_over_rolling": Figure(
        "Recurrent jobs: mean completion time, learnt predictions / rolling means.", "<= 1"
    ),
    "medians_over_oracle": Figure(
        "Recurrent jobs: mean completion time, exact medians of a user's jobs of a template / true durations."
    ),
    "fifo_over_learnt": Figure("Recurrent jobs: mean completion time, `fifo` / learnt predictions."),
    "learnt_over_oracle_sigma_of_templates": Figure(
        "Learnt predictions / true durations, sigma 1 of the templates, 0.3 of the jobs of one."
    ),
    "learnt_over_rolling_sigma_of_templates": Figure(
        "Learnt predictions / rolling means, sigma 1 of the templates, 0.3 of the jobs of one."
    ),
    "medians_over_oracle_sigma_of_templates": Figure(
        "Exact medians / true durations, sigma 1 of the templates, 0.3 of the jobs of one."
    ),
    "fifo_over_learnt_sigma_of_templates": Figure(
        "First come, first served / learnt predictions, sigma 1 of the templates, 0.3 of the jobs of one."
    ),
    "utilization_before": Figure("Philly's machines: share in use, all switched on."),
    "utilization_after": Figure(
        "Philly's machines: share in use of those switched on, with a forecast.", ">= 0.87"
    ),
    "wakeups_per_day": Figure("Wake-ups per day with a forecast.", "<= 0.5"),
    "unserved_share": Figure("Share of the time in which machines are missing, with a forecast.", "<= 0.005"),
    "utilization_without_forecast": Figure(
        "Share in use of those switched on: the most machines used in a window, and a buffer."
    ),
    "wakeups_per_day_without_forecast": Figure("Wake-ups per day without a forecast."),
    "utilization_published": Figure(
        "Share in use of those switched on, with the published forecast, which sees the future."
    ),
    "real_jct_gain": Figure(
        "30 real trainings on two slots: mean completion time, `fifo` / learnt order, with kills of the server.",
        ">= 1.5",
    ),
    "server_kills": Figure("Kills of the server in both runs.", ">= 10", "kills"),
    "jobs_lost": Figure("Jobs that were lost.", "<= 0", "jobs"),
    "jobs_started_twice": Figure("Jobs that were started twice.", "<= 0", "jobs"),
}
RECOMMEND_LOGS = {
    "": "MovieLens small",
    "_generated": "a generated log",
    "_movietweetings": "MovieTweetings",
    "_retail": "Online Retail",
}
"""Logs by the end of the figures' names."""
RECOMMENDERS = {
    "random": "random scores",
    "popular": "popularity",
    "bpr": "BPR",
    "saros_b": "SAROS",
    "saros_m": "SAROS with momentum",
    "saros_open": "SAROS without thresholds",
    "softmax": "softmax over the items",
    "attention": "attention over the last items",
}
RECOMMEND = {
    **{
        f"ndcg_{name}{counted}{log}": Figure(f"NDCG@10 of {what}: {of}{how}.")
        for log, of in RECOMMEND_LOGS.items()
        for counted, how in (("", ""), ("_authors", ", as the authors count it"))
        for name, what in RECOMMENDERS.items()
        if not (log == "_retail" and (counted or name.startswith("saros")))
    },
    **{
        f"saros_time_over_bpr{log}": Figure(
            f"Time to reach 95 % of the best NDCG@10 of the method, SAROS / BPR: {of}."
        )
        for log, of in RECOMMEND_LOGS.items()
        if log != "_retail"
    },
    "gated_ndcg_share": Figure(
        "NDCG@10 with 5 % or 10 % bots / without bots, with thresholds on blocks.", ">= 0.95"
    ),
    "ungated_ndcg_share": Figure("The same without thresholds."),
    "gated_ndcg_share_quiet": Figure(
        "NDCG@10 with 5 % bots that click as often as users / without bots, with thresholds on blocks."
    ),
    "ungated_ndcg_share_quiet": Figure("The same without thresholds."),
    "target_rank_gain_ratio": Figure(
        "Rank that the bots' items gain, with thresholds / without them.", "<= 0.5"
    ),
    "trimmed_accuracy_drop_points": Figure(
        "Accuracy of a moving average lost with one hostile worker of five: trimmed mean.", "<= 1", "points"
    ),
    "krum_accuracy_drop_points": Figure("The same: Krum.", "<= 2", "points"),
    "mean_accuracy_drop_points": Figure("The same: mean.", unit="points"),
    "trimmed_accuracy_drop_points_last_weights": Figure(
        "Without a moving average of the weights: trimmed mean.", "<= 1", "points"
    ),
    "krum_accuracy_drop_points_last_weights": Figure("The same: Krum.", "<= 2", "points"),
    "mean_accuracy_drop_points_last_weights": Figure("The same: mean.", unit="points"),
    "combine_over_copy": Figure(
        "Time of a trimmed mean of 8 updates with 25 million values / of a copy (floor 4.5)."
    ),
}
ALLOCATION = {
    "dira_over_random_4": Figure("Cost, learnt / random allocation: N = 4, M = 3.", "<= 0.80"),
    "dira_over_random_8": Figure("Cost, learnt / random allocation: N = 8, M = 6.", "<= 0.90"),
    "dira_over_random_12": Figure("Cost, learnt / random allocation: N = 12, M = 9."),
    "dira_over_random_16": Figure("Cost, learnt / random allocation: N = 16, M = 12."),
    **{
        f"dira_over_{key}_{n}": Figure(f"Cost, learnt / {what}: N = {n}, M = {3 * n // 4}.")
        for key, what in (
            ("bound", "perfect channels"),
            ("largest_norm", "largest state norm first"),
            ("greedy", "greedy search with the known model"),
        )
        for n in (4, 8, 12, 16)
    },
    "dira_over_exhaustive_4": Figure("Cost, learnt / exhaustive search with the known model: N = 4, M = 3."),
    "diverged": Figure("Plants on which the learnt allocation diverged.", unit="plants"),
    "outputs_16": Figure("Outputs of the network at N = 16, M = 12.", unit="outputs"),
    "joint_actions_16": Figure("Joint actions at N = 16, M = 12 (N^M).", unit="actions"),
    "seconds_per_decision_16": Figure("Time of an allocation of 12 channels to 16 subsystems.", unit="s"),
}
BENCHMARKS = {
    "overhead": Benchmark("Overhead", OVERHEAD),
    "hub": Benchmark("Hub", HUB),
    "checkpoint": Benchmark("Checkpoints", CHECKPOINT),
    "startup": Benchmark("Start-up time", STARTUP),
    "simulator": Benchmark("Simulator", SIMULATOR),
    "parity": Benchmark("Parity with PyTorch", PARITY, needs_data=True),
    "planner": Benchmark("Planner", PLANNER, needs_data=True),
    "digits": Benchmark(
        "Digits",
        DIGITS,
        {"digits_speedup": "Speedup of exact full-batch rounds, by simulation with measured times."},
        needs_data=True,
    ),
    "allocation": Benchmark("Allocation", ALLOCATION),
    "recommend": Benchmark("Recommender", RECOMMEND, needs_data=True),
    "queue": Benchmark(
        "Queue",
        QUEUE,
        {
            "queue_gain": "Philly's jobs: gain in mean completion time over the load.",
            "queue_parking": "Philly's machines: utilization over wake-ups per day, by rule.",
        },
        needs_data=True,
    ),
    "faults": Benchmark("Faults", FAULTS, needs_data=True),
    "ray": Benchmark("Ray", RAY, needs_data=True),
    "gossip": Benchmark(
        "Gossip",
        GOSSIP,
        {
            "gossip_map": "Time to an accuracy by method, speed of the links and number of peers.",
            "gossip_disagreement": "Fashion-MNIST: distance between the models of peers over time.",
            "gossip_disagreement_cifar10": "CIFAR-10: distance between the models of peers over time.",
        },
        needs_data=True,
    ),
    "stragglers": Benchmark(
        "Stragglers",
        STRAGGLERS,
        {"stragglers_path": "k and load of the joint policy, as the distance to the optimum falls."},
        needs_data=True,
    ),
    "vc_asgd": Benchmark(
        "VC-ASGD",
        VC_ASGD,
        {
            "vc_asgd_bill": "Accuracy over time, on demand and on spot machines (Fashion-MNIST, seed 0). "
            "22 November 2026: 12 epochs, an earlier form of the benchmark."
        },
        needs_data=True,
    ),
    "slide": Benchmark(
        "Huge output layers",
        SLIDE,
        {
            "slide_seconds": "P@1 at the end of runs of different lengths, by training time.",
            "slide_threads": "Training speed by number of threads, relative to one thread.",
        },
        needs_data=True,
    ),
}
