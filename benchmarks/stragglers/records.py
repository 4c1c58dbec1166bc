"""Generated step times for the smoke form, in the files and formats of the public records."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from random import Random

from benchmarks.stragglers.networks import RECORDS

MACHINES, STEPS = 4, 12


def write(folder: Path) -> None:
    """Write a few steps of a few machines, the last of them slow, in the format of each record."""
    forms = {"alibaba": _alibaba, "bytedance-ar": _bytedance, "bytedance-se": _bytedance, "azure": _azure}
    for name, (file, _) in RECORDS.items():
        (folder / file).parent.mkdir(exist_ok=True)
        content = "\n".join(forms[name]()).encode()
        (folder / file).write_bytes(gzip.compress(content) if file.endswith(".gz") else content)


def _times() -> Iterator[tuple[int, int, float]]:
    """Yield machine, step and time."""
    chance = Random(0)
    for machine in range(MACHINES):
        for step in range(STEPS):
            yield machine, step, (3.0 if machine == MACHINES - 1 else 1.0) * chance.lognormvariate(0.0, 0.1)


def _alibaba() -> Iterator[str]:
    yield ",worker,gpu,time,batch_time_norm"
    for row, (machine, step, time) in enumerate(_times()):
        yield f"{row},{machine},25,{step},{500 * time:.0f}"


def _bytedance() -> Iterator[str]:
    yield "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc"
    for machine, step, time in _times():
        for kind, share in (("forward-compute", 1 / 3), ("backward-compute", 2 / 3)):
            yield f"{machine},0,0,{step},{kind},{step},{share * time},0,0,0,0"


def _azure() -> Iterator[str]:
    yield "test_suite,test_name,vm_lifespan,vm_region,vm_sku,unit,value,runtime,starttime,VM_id"
    for machine, step, time in _times():
        yield f"OSBench,Create Files,long,westus2,B8ms,us Per Event,{time},1,2023-05-29 {step:02}:00:00,{machine}"
