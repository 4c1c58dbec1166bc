"""Public records of step times: small examples of each format, original files, and machines with such times."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.machines.step_time_records import (
    StepTimes,
    machines_like,
    read_minibatch_times,
    read_operation_times,
    read_vm_times,
)
from oddlot.timing.delay_fitting import fit_delays
from tests.machines.files import short_id, written
from tests.transcripts import raises

MINIBATCHES = ",worker,gpu,time,batch_time_norm\n0,0,25,2,476\n1,1,25,1,509\n2,0,25,1,480\n"
OPERATIONS = (
    "dp_rank,stage,rank,step,optype,start_ts,duration\n"
    "0,0,0,17,forward-compute,3.0,2.0\n"
    "0,0,0,16,forward-compute,0.0,1.0\n0,0,0,16,backward-compute,1.0,2.0\n0,0,0,16,forward-send,1.0,9.0\n"
    "0,1,1,16,forward-compute,0.0,4.0\n"
    "1,0,2,16,forward-compute,0.0,1.5\n"
)
VMS = (
    "test_suite,test_name,vm_lifespan,vm_region,vm_sku,unit,value,runtime,starttime,VM_id\n"
    "Sysbench,CPU,long,w,D8,Events Per Second,50,1,2023-05-30 06:11:26.680,7\n"
    "Sysbench,CPU,long,w,D8,Events Per Second,100,1,2023-05-29 06:11:26.680,7\n"
    "Sysbench,CPU,short,w,D8,Events Per Second,100,1,2023-05-29 06:11:26.680,8\n"
    "OSBench,Create,long,w,D8,us Per Event,40,1,2023-05-29 06:11:26.680,7\n"
)


def test_minibatch_times_are_in_time_order(tmp_path: Path) -> None:
    assert read_minibatch_times(written(tmp_path / "a.csv", MINIBATCHES)) == {"0": (480, 476), "1": (509,)}


def test_unusual_names_and_empty_lines_are_accepted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", MINIBATCHES + '9,"a\x0b\u2028b",25,1,3\n\n')
    assert read_minibatch_times(path)["a\x0b\u2028b"] == (3.0,)
    assert read_minibatch_times(str(path)) == read_minibatch_times(path)


def test_replica_time_is_that_of_its_slowest_stage(tmp_path: Path) -> None:
    assert read_operation_times(written(tmp_path / "a.csv.gz", OPERATIONS)) == {"0": (4.0, 2.0), "1": (1.5,)}


def test_vm_results_are_times_or_rates(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", VMS)
    assert read_vm_times(path, "Sysbench", "D8") == {"7": (0.01, 0.02)}
    assert read_vm_times(path, "Sysbench", "D8", "short") == {"8": (0.01,)}
    assert read_vm_times(path, "OSBench", "D8") == {"7": (40.0,)}


minibatches, operations = read_minibatch_times, read_operation_times
sysbench = partial(read_vm_times, suite="Sysbench", sku="D8")


@pytest.mark.parametrize(
    ("read", "text", "code", "fields"),
    [
        (minibatches, MINIBATCHES.replace("time,", "when,"), "missing_column", {"line": 1, "name": "time"}),
        (minibatches, MINIBATCHES + "3,0,25,3\n", "wrong_column_count", {"line": 5, "given": 4}),
        (minibatches, MINIBATCHES + "3,0,25,3,NaN\n", "invalid_number", {"line": 5, "given": "NaN"}),
        (minibatches, MINIBATCHES + "3,0,25,3,0\n", "invalid_duration", {"line": 5, "given": "0"}),
        (minibatches, MINIBATCHES + "3,,25,3,9\n", "missing_name", {"line": 5}),
        (minibatches, MINIBATCHES + f"3,{'x' * 200_000},25,3,9\n", "invalid_csv", {"line": 5}),
        (minibatches, MINIBATCHES[:32], "empty_file", {}),
        (minibatches, "", "missing_column", {"line": 1, "name": "worker"}),
        (minibatches, MINIBATCHES.replace(",w", ",worker,w", 1), "name_twice", {"line": 1, "name": "worker"}),
        (operations, OPERATIONS.replace(",16,", ",x,"), "invalid_number", {"line": 3, "given": "x"}),
        (operations, OPERATIONS.replace("\n1,0,2", "\n,0,2"), "missing_name", {"line": 7}),
        (partial(sysbench, suite="OSBench"), VMS.replace("680,7\n", "680,\n"), "missing_name", {"line": 5}),
        (sysbench, VMS.replace(",50,", ",1e-150,"), "time_too_long", {}),
        (partial(sysbench, suite="Sysbenc"), VMS, "unknown_name", {"kind": "suite", "nearest": "Sysbench"}),
        (partial(sysbench, sku="B8"), VMS, "unknown_name", {"kind": "sku", "given": "B8"}),
    ],
    ids=short_id,
)
def test_invalid_record_names_the_line(
    read: Callable[[Path], StepTimes], text: str, code: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "a.csv", text)
    with raises(UsageError, code, path=str(path), **fields):
        read(path)


def test_machines_have_the_recorded_speed_and_variation() -> None:
    machines = machines_like({"a": (1.0, 2.0, 3.0), "b": (6.0,)}, 3, seconds_per_sample=0.5)
    assert [machine.name for machine in machines] == ["m0", "m1", "m2"]
    assert [machine.seconds_per_sample for machine in machines] == pytest.approx([0.25, 0.75, 0.25])
    time = machines[0].delay.start(Random(1))
    assert sorted(time() for _ in range(3)) == pytest.approx([0.5, 1.0, 1.5])
    assert machines[1].delay.start(Random(1))() == 1.0


# --- original files ----------------------------------------------------------------------------------

DATA = Path(os.environ.get("ODDLOT_DATA", ""))
RECORDS = "straggler_alibaba_minibatch", "straggler_bytedance", "straggler_azure_vm_noise"


@pytest.mark.skipif(
    not all((DATA / name).is_dir() for name in RECORDS),
    reason=f"ODDLOT_DATA names no folder with {', '.join(RECORDS)}",
)
def test_published_records_are_read() -> None:
    alibaba, bytedance, azure = (DATA / name for name in RECORDS)
    ten = read_minibatch_times(alibaba / "job_1_norm.csv")
    assert (len(ten), sum(map(len, ten.values()))) == (10, 3_000)
    replicas = read_operation_times(bytedance / "trace-AR.csv.gz")
    assert {rank: len(times) for rank, times in replicas.items()} == dict.fromkeys("0123", 44)
    means = sorted(fmean(times) for times in replicas.values())
    assert means[-1] > 2.2 * means[-2], "one is slow"
    (best, *_) = fit_delays([time / fmean(times) for times in ten.values() for time in times])
    assert best.distance < 0.06
    vms = read_vm_times(azure / "azure_vm_noise_westus2.csv.gz", "OSBench", "B8ms")
    assert sum(map(len, vms.values())) == 11_433
