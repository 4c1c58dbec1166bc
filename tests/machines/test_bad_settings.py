"""Invalid settings of machines, of their times and of their availability are rejected."""

from collections.abc import Callable
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oddlot.config.faults_file import read_chaos
from oddlot.config.fleet_file import read_fleet
from oddlot.core.support.errors import UsageError
from oddlot.faults import Chaos, Fault
from oddlot.machines import Pools, Steps
from oddlot.machines.delay_models import Erlang, Lognormal, ShiftedExponential, Trace
from oddlot.machines.machine import Lifetime, Link, Machine
from oddlot.machines.market_traces import read_alive
from oddlot.machines.step_time_records import machines_like, read_minibatch_times, read_vm_times
from oddlot.timing.delay_fitting import fit_delays
from oddlot.timing.order_statistics import rounds_of
from oddlot.timing.response_times import Hypoexponential, Measured, Scattered, Shifted
from tests.machines.files import short_id, subject
from tests.transcripts import raises

WORKERS = [Hypoexponential(1.0, 0.025)] * 2
TWO: Any = {"seconds": (0.0, 5.0), "values": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("make", "name", "given"),
    [
        (Machine, "name", "w:1"),
        (Machine, "name", "w1.2"),
        (Machine, "name", ""),
        (Machine, "name", 3),
        (partial(Machine, "a"), "seconds_to_return", "5"),
        (partial(Machine, "a"), "seconds_to_return", -5),
        (partial(Machine, "a"), "delay", 3),
        (partial(Machine, "a"), "link", 100),
        (partial(Machine, "a"), "seconds_per_sample", 0),
        (partial(Machine, "a"), "seconds_per_sample", nan),
        (partial(Machine, "a"), "dollars_per_hour", -1),
        (partial(Machine, "a"), "joins_at_seconds", inf),
        (Lifetime, "mean_seconds", 0),
        (Link, "megabits_per_second", 0),
        (Link, "megabits_per_second", nan),
        (Link, "latency_milliseconds", -1),
        (Lognormal, "cv", -0.1),
        (Lognormal, "cv", 1000.1),
        (Lognormal, "cv", nan),
        (Lognormal, "cv", inf),
        (Erlang, "shape", 0),
        (ShiftedExponential, "shift", 1.0),
        (ShiftedExponential, "shift", -0.5),
        (Trace, "multipliers", ()),
        (Trace, "multipliers", 3),
        (Trace, "multipliers", "x"),
        (Trace, "multipliers", (1.0, "x")),
        (Trace, "multipliers", (1.0, 0.0)),
        (Trace, "multipliers", (inf,)),
        (partial(Pools, 1, 5.0), "share", 0),
        (partial(Steps, values=()), "seconds", ()),
        (partial(Steps, (0.0,)), "values", (inf,)),
        (partial(Steps, **TWO), "period_seconds", 5.0),
        (partial(Hypoexponential, seconds_per_sample=1.0), "communication_seconds", 0.0),
        (partial(Shifted, 1.0, 1.0), "shift", 1.0),
        (partial(Measured, seconds_per_sample=()), "communication_seconds", ()),
        (partial(Scattered, Erlang(1)), "seconds_per_sample", -1),
        (partial(Scattered, seconds_per_sample=1.0), "delay", Trace),
        (fit_delays, "times", []),
        (fit_delays, "times", [1.0]),
        (fit_delays, "times", [1.0, 0.0]),
        (fit_delays, "times", [1.0, -1.0]),
        (fit_delays, "times", [1.0, nan]),
        (fit_delays, "times", [1.0, inf]),
        (fit_delays, "times", [1e-320, 1e300]),
        (fit_delays, "times", [[1.0, 2.0], [3.0, 4.0]]),
        (partial(rounds_of, loads=[4]), "workers", []),
        (partial(rounds_of, loads=[4]), "workers", [Lognormal(0.1)]),
        (partial(rounds_of, loads=[4]), "workers", [Hypoexponential]),
        (partial(rounds_of, WORKERS), "loads", []),
        (partial(rounds_of, WORKERS), "loads", [0]),
        (partial(rounds_of, WORKERS), "loads", [1, nan]),
        (partial(rounds_of, WORKERS), "loads", [2.5]),
        (partial(rounds_of, WORKERS), "loads", [True]),
        (partial(rounds_of, WORKERS), "loads", 4),
        (partial(rounds_of, WORKERS, [1]), "ks", [3]),
        (partial(rounds_of, WORKERS, [1]), "ks", [0]),
        (partial(rounds_of, WORKERS, [1]), "ks", [True]),
        (partial(machines_like, count=3), "times", [(1.0,)]),
        (partial(machines_like, {"a": (1.0,)}), "count", 0),
        (partial(machines_like, {"a": (1.0,)}), "count", "3"),
        (partial(machines_like, {"a": (1.0,)}), "count", 2.0),
        (partial(machines_like, {"a": (1.0,)}), "count", True),
        (partial(machines_like, {"a": (1.0,)}, 3), "seconds_per_sample", 0.0),
        (partial(machines_like, {"a": (1.0,)}, 3), "seconds_per_sample", "0.1"),
        (partial(machines_like, {"a": (1.0,)}, 3), "seconds_per_sample", nan),
        (partial(read_vm_times, "absent", "OSBench"), "sku", None),
        (partial(read_alive, Path("absent")), "unit", "days"),
        (read_minibatch_times, "path", 3),
        (Fault, "kind", "explode"),
        (partial(Fault, "kill"), "at_seconds", 5),
        (partial(Fault, "kill"), "at_versions", (0.5,)),
        (partial(Fault, "kill"), "at_versions", (True,)),
        (partial(Fault, "slow", at_seconds=(5,)), "factor", 0.0),
        (Chaos, "faults", ["kill"]),
        (read_fleet, "path", 3),
        (read_chaos, "path", 3),
        (read_chaos, "path", "a\0b"),
        (read_chaos, "path", ""),
    ],
    ids=short_id,
)
def test_invalid_value_is_rejected(make: Callable[..., object], name: str, given: Any) -> None:
    with raises(UsageError, "invalid_value", name=name, given=given) as caught:
        make(**{name: given})
    assert caught.value.key == name


@pytest.mark.parametrize(
    ("make", "settings", "code", "about"),
    [
        (Steps, {"seconds": (0.0, 1.0), "values": (1.0,)}, "different_lengths", None),
        (Steps, {"seconds": (0.0, 0.0), "values": (1.0, 2.0)}, "times_out_of_order", None),
        (Steps(**TWO, period_seconds=6.0).window, {}, "missing_setting", "period_seconds"),
        (partial(Measured, (1.0,)), {"seconds_per_sample": (1.0, 2.0)}, "different_lengths", None),
        (
            partial(Fault, "kill_hub"),
            {"machine": "w1", "every_seconds": 1},
            "setting_of_another_kind",
            "machine",
        ),
        (partial(Fault, "kill"), {"per_hour": 1, "for_seconds": 1}, "setting_of_another_kind", "for_seconds"),
        (partial(Fault, "delay"), {"at_seconds": (5,)}, "missing_setting", "delay_seconds"),
    ],
    ids=short_id,
)
def test_conflicting_settings_are_rejected(
    make: Callable[..., object], settings: dict[str, Any], code: str, about: str | None
) -> None:
    with raises(UsageError, code) as caught:
        make(**settings)
    assert subject(caught.value) == about


@pytest.mark.parametrize(
    ("times", "code"),
    [
        ({}, "empty_record"),
        ({"a": ()}, "empty_record"),
        ({"a": "1.0"}, "invalid_record"),
        ({"a": 1.0}, "invalid_record"),
        ({"a": np.array(1.0)}, "invalid_record"),
        ({"a": {1.0}}, "invalid_record"),
        ({"a": (1.0,), "b": (0.0,)}, "invalid_duration"),
        ({"a": (-1.0,)}, "invalid_duration"),
        ({"a": (nan,)}, "invalid_duration"),
        ({"a": (1e308, 1e308)}, "invalid_duration"),
        ({"a": ("1.0",)}, "invalid_duration"),
        ({"a": (True,)}, "invalid_duration"),
    ],
)
def test_invalid_step_times_are_rejected(times: dict[str, Any], code: str) -> None:
    with raises(UsageError, code) as caught:
        machines_like(times, 3)
    assert caught.value.key == "times"


@pytest.mark.parametrize("times", [{"m0": (1.0, 2.0)}, "abc", [[1.0, 2.0], [3.0, 4.0, 5.0]]])
def test_non_numeric_times_are_not_fitted(times: Any) -> None:
    with raises(UsageError, "no_numbers", given=times):
        fit_delays(times)
